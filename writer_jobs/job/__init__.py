"""Code of the jobs for ``spark-submit``: arguments, inputs, output, runs, signals and exit codes."""

"""What the jobs for ``spark-submit`` share: arguments, output, sources, records of runs, being stopped."""

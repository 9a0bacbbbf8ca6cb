"""An S3, Spark and jars on one machine, for commands, demos, soaks and tests."""

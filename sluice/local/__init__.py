"""What a demo, a soak or a test needs on one machine: an S3, Spark, jars."""

"""Delta, Spark and Hadoop: table logs, snapshots, files, types and values, sessions, and the JVM's errors."""

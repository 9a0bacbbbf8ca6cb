"""Delta's insides, Hadoop's files and the JVM's errors: whatever of this project speaks through py4j."""

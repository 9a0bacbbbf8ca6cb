"""Everything of this project that calls the JVM through py4j: Delta's internals, Hadoop's files, the JVM's errors."""

"""ZooKeeper servers for tests, demos and a first try."""

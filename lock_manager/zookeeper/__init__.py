"""ZooKeeper as the coordinator: queues of contenders, sessions, holds."""

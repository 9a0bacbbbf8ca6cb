"""The coordinator that ZooKeeper is: queues of contenders, sessions, holds. Nothing else imports kazoo."""

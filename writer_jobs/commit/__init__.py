"""One write under one hold: its work, the lock that it needs, and its outcome."""

"""Shows who holds which lock, and breaks one."""

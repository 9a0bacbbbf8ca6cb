"""Whether everything is there that a locked write needs."""

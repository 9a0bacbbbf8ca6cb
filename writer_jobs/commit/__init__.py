"""One write under one hold: what it does, which lock it needs, when it takes it, and what became of it."""

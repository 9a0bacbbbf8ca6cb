"""The commit guard: it decides which commits a hold allows."""

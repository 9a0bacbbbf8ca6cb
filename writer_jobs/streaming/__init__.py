"""Structured Streaming queries whose micro-batches go into a table under its lock, each exactly once."""

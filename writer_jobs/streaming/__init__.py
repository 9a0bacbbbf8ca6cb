"""Structured Streaming queries whose micro-batches are applied to a table under its lock, each exactly once."""

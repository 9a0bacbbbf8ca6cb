"""Runs all jobs at once on one table and restarts them; then stock Delta without a lock, for comparison."""

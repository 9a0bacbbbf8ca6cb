"""Run all jobs at once on one table, and kill and restart them; then do the same with stock Delta without a lock."""

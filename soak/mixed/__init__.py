"""All jobs at once on one table, killed and started again; and the same with stock Delta and no lock, to compare."""

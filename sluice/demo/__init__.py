"""``sluice demo``: several Spark writers load real data into one table, and a reader that is not ours checks it."""

"""``sluice demo``: several Spark writers load real data into one table, and ``deltalake`` checks it."""

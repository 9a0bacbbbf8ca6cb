"""Care of tables: how healthy one is, what mends it, and the work itself, which gives way to writers."""

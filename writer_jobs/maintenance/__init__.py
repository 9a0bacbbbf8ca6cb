"""Maintenance of tables: their health, findings, plans, and the work itself, which gives way to waiting writers."""

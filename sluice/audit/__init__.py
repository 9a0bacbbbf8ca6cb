"""Reads a table's log without Spark, and checks the promises: ``sluice log`` and ``sluice verify``."""

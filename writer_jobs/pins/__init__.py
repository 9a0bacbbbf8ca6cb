"""Pins: versions of one or several tables from one moment, which stay readable until the pin expires."""

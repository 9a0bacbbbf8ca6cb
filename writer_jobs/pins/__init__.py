"""Pins: one moment of one or several tables that can be read again, until a day that is agreed."""

"""Prepares jobs for a cluster: the zip, the jars, and settings from a stack."""

"""Prepares jobs for a cluster: the zip, the jars, and the settings from a stack."""

"""Runs many writers, injects faults, and checks the promises. For development only."""

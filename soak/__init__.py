"""Run many writers, inject faults, and check the promises. For development only."""

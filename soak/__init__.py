"""Many writers, faults, and a verdict: the promises tried on this machine."""

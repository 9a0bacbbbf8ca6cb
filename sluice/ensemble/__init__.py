"""The state of the ensemble's servers, one by one and together."""

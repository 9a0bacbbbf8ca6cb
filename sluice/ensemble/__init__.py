"""The ensemble's servers, each for itself and all together."""

"""The ensemble's servers, each on its own and all together."""

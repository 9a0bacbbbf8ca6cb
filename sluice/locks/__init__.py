"""Who holds which lock, and how one is taken away."""

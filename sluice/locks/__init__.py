"""``sluice status`` and ``sluice break``: show the holders and waiters of locks, and remove holders."""

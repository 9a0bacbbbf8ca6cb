"""``sluice doctor``: checks everything that a locked write needs."""

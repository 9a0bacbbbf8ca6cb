"""``sluice doctor``: checks the requirements of a locked write."""

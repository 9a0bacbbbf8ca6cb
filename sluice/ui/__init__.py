"""``sluice ui``: a page that shows the locks, the logs and the metrics of all tables, and changes nothing."""

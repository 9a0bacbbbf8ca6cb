"""Feeds: messages of other systems, decoded to changes of rows."""

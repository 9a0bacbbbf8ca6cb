"""Feeds: messages of other stores, decoded and applied to Delta tables."""

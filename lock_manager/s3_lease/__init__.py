"""Locks in objects on S3: ``s3-lease://BUCKET/PREFIX``. No other service is needed.

``state.py`` has the rules, as functions of a queue. ``objects.py`` stores queues with conditional requests.
"""

"""Locks in objects on S3: ``s3-lease://BUCKET/PREFIX``. No other service is needed.

``state.py`` has the rules, as functions of a queue. ``queue_object.py`` stores queues by conditional requests.
"""

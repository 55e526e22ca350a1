"""The ready queue: a policy's keys, which ready task is next, what gets ready when one has run.

May import: inspector.
"""

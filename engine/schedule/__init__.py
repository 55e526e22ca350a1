"""The ready queue: policies that choose the next task, and dependencies that make tasks ready.

May import: inspector.
"""

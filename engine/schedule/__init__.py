"""The ready queue: policies, which ready task is next, and which tasks become ready.

May import: inspector.
"""

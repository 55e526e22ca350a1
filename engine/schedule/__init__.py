"""The ready queue: policies, the choice of the next task, and dependencies between tasks.

May import: inspector.
"""

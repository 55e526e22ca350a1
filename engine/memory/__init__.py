"""Memory: lifetimes of storages, measured and predicted timelines of a backward, and the memory from before it.

May import: inspector, execution, schedule.
"""

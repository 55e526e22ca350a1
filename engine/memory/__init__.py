"""Memory: lifetimes of storages, a backward's timeline, measured or predicted, and what was there before.

May import: inspector, execution, schedule.
"""

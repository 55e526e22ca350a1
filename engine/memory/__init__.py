"""Memory: lifetimes of storages, and a backward's timeline, measured or predicted, with the memory alive before it.

May import: inspector, execution, schedule.
"""

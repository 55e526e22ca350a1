"""What each task would do with memory, and the level that an order makes; nothing is run.

May import: inspector, queue, memory, tasks.
"""

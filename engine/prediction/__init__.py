"""What each task would do with memory, and the level that an order makes; no backward is run.

May import: inspector, words, queue, memory, tasks.
"""

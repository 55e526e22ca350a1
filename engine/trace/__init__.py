"""What happened in one backward: records, statistics, its file, its peak explained.

May import: inspector, words, queue, memory, tasks.
"""

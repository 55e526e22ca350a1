"""The record of one backward: trace, statistics, file, exports, and its peak explained.

May import: inspector, memory, execution, schedule.
"""

"""The record of one backward: trace, statistics, file, exports, and the report on its peak.

May import: inspector, memory, execution, schedule.
"""

"""Memory of a backward: the timeline, its measurement from allocator events, and its prediction.

May import: inspector, execution, schedule.
"""

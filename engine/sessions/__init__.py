"""A backward under way: both engines, stepping, going back, branches.

May import: inspector, words, queue, memory, checking, tasks, prediction, measuring, trace, orders, stops, hips,
batching.
"""

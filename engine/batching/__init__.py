"""Products of matrices that could run as one, and running them so.

May import: inspector, words, queue, memory, tasks, trace, orders, stops.
"""

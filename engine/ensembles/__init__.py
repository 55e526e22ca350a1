"""Modules called side by side that could be called as one; ts.advise.

May import: inspector, words, memory, tasks, measuring, trace, orders, batching, sessions, programs.
"""

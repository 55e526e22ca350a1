"""What stops a run: breakpoints, watchpoints, where a bad value came from.

May import: inspector, words, queue, trace.
"""

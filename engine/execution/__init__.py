"""Execution of single tasks by the rules of PyTorch's engine: input buffers, hooks, accumulation, and undo.

May import: inspector, schedule.
"""

"""Execution of one task by the rules of PyTorch's engine: buffers, hooks, accumulation, and the state for undo.

May import: inspector, schedule.
"""

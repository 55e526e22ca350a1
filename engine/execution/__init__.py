"""Runs one task of a backward by the rules of PyTorch's engine: buffers, hooks, accumulation, and what undo needs.

May import: inspector, schedule.
"""

"""Saved tensors let go and made again: plan, judge, follow, replay.

May import: inspector, words, queue, memory, tasks, prediction, trace, orders, programs.
"""

"""Saved tensors let go and made again: plan, judge, follow, replay.

May import: inspector, words, queue, memory, prediction, trace, orders, programs.
"""

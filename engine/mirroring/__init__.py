"""Recomputation of saved tensors: choose which to drop, predict the peak, apply the plan, recompute.

May import: inspector, words, queue, memory, tasks, prediction, trace, orders, programs.
"""

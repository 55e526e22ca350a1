"""Backwards of HIPS autograd, run and measured.

May import: inspector, memory, tasks, prediction, measuring.
"""

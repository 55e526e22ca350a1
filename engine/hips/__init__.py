"""Backwards of HIPS autograd, run and measured.

May import: inspector, words, memory, tasks, prediction, measuring.
"""

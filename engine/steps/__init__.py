"""Whole training steps, forward, backward and optimizer: whether they fit, and what would make them.

May import: inspector, words, prediction, programs, mirroring.
"""

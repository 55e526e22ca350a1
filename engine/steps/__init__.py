"""Whole training steps, forward, backward and optimizer: recorded in a loop; whether they fit, and what would help.

May import: inspector, words, memory, measuring, prediction, tasks, trace, orders, sessions, programs, mirroring.
"""

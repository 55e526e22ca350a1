"""Faults over a whole program or two runs: NaN, unused, diff.

May import: inspector, words, queue, memory, trace, orders, tasks, stops, sessions, programs.
"""

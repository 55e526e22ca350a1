"""Faults over a whole program or two runs: NaN, unused, diff.

May import: inspector, words, queue, trace, stops, sessions, programs.
"""

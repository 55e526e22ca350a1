"""Whether one task's backward is right: finite differences, float64 replay.

May import: inspector, words.
"""

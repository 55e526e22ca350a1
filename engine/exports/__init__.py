"""What other tools read: tables for pandas, a trace for Perfetto and chrome://tracing.

May import: inspector, words, queue, memory, trace, steps.
"""

"""Which order: the table of policies, planners, bounds, exact search, precedences.

May import: inspector, words, queue, memory, tasks, prediction, trace.
"""

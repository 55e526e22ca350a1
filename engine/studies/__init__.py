"""Tables over many runs: compare, makespan and the three benchmarks.

May import: inspector, words, queue, memory, prediction, measuring, tasks, trace, orders, hips, workloads, sessions,
programs, mirroring, steps.
"""

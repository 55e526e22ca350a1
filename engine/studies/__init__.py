"""Tables over many runs (compare, makespan, benchmarks), and the ready-made workloads they run.

May import: inspector, training, recompute, api, session, planning, recording, memory, execution, schedule.
"""

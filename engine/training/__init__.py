"""Training loops and whole steps: observation, recording, and prediction of whether a step fits into memory.

May import: inspector, diagnose, recompute, api, session, planning, recording, memory, execution.
"""

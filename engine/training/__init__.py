"""Whole training loops and steps: watched, recorded, predicted to fit.

May import: inspector, diagnose, recompute, api, session, planning, recording, memory, execution.
"""

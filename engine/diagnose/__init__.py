"""Diagnosis: NaN, unused parameters, order dependence, differences between two runs, and advice.

May import: inspector, api, session, planning, recording, memory, execution, schedule.
"""

"""Diagnoses: NaN, unused parameters, order dependence, differences between two runs, advice on savings.

May import: inspector, api, session, planning, recording, memory, execution, schedule.
"""

"""Finds faults and savings: NaN, unused parameters, order dependence, differences of two runs, advice.

May import: inspector, api, session, planning, recording, memory, execution, schedule.
"""

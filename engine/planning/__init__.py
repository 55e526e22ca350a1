"""Orders of a backward: policies by name, planners, lower bounds, searches, constraints.

May import: inspector, recording, memory, execution, schedule.
"""

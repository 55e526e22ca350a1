"""The verbs that run a user's loss (backward, debug, profile, set_policy), and how its state is restored.

May import: inspector, session, planning, recording, memory, execution, schedule.
"""

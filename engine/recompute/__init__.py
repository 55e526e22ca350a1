"""Recomputation: the plan of saved tensors to drop, its predicted peak, its application and its explanation.

May import: inspector, api, planning, memory, execution, schedule.
"""

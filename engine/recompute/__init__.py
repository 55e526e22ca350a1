"""Recomputation: plans which saved tensors to drop, predicts the peak, applies the plan, explains it.

May import: inspector, api, planning, memory, execution, schedule.
"""

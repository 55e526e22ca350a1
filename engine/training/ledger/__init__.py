"""The ledger of a loop's parameters: the optimizers that hold and step each, and when its gradient is cleared.

May import: inspector, diagnose, api, and the modules of training.
"""

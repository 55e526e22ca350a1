"""The ledger of a loop's parameters: which optimizer holds and steps each, its gradient, who clears it, whether it moves.

May import: inspector, diagnose, api, and the modules of training.
"""

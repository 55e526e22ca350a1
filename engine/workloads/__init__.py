"""Ready models and programs.

May import: inspector, hips.
"""

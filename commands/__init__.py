"""The command line.

May import: inspector, engine, widgets.
"""

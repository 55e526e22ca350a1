"""The commands of the command line.

May import: inspector, engine, widgets.
"""

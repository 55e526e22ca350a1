"""Reports, tables and figures as HTML.

May import: inspector, engine.
"""

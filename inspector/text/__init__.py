"""Text for users: sizes, counts, tables, reports, progress.

May import: renderers, validation.
"""

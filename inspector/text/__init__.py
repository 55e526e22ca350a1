"""Text output: sizes, counts, tables, reports, progress.

May import: renderers, validation.
"""

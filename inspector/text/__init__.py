"""Text that people read: sizes, counts, tables, reports, progress.

May import: renderers, validation.
"""

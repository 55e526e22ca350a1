"""Memory as data: storages, categories, footprints, layouts, the rule of summing; nothing is run.

May import: inspector, words.
"""

"""Norms of a loop's modules: summed by module, and kept over all steps in bounded memory.

May import: inspector, words, exports.
"""

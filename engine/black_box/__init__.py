"""One training step as data: kept while the loop runs, written to a folder, read with care, run again.

May import: inspector, words, tasks, trace, programs, finding.
"""

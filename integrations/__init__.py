"""Callbacks for training frameworks, in the convention of each. Frameworks are imported when a callback is first used.

May import: engine.
"""

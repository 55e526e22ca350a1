"""Clipping that reaches no gradient."""

"""Gradients that a hook or the loop takes: nothing is wrong."""

"""Gradients that are never cleared, or cleared before the step uses them."""

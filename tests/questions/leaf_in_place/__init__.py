"""A leaf that requires grad is modified in place."""

"""One batch with a huge gradient."""

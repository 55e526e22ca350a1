"""Common troubles of training loops, one small program a file, and healthy programs beside them."""

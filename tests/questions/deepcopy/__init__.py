"""A deep copy of a tensor with a graph."""

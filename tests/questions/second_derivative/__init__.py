"""A second derivative that PyTorch does not have."""

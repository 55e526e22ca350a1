"""Parameters that no optimizer holds, and attributes that PyTorch does not read."""

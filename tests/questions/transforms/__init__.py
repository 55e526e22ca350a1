"""Transforms of torch.func inside the loop."""

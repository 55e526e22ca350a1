"""Errors inside of transforms of torch.func."""

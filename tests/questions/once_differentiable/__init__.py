"""A second derivative through a Function that is marked once_differentiable."""

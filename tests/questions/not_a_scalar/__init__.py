"""A loss that is not one real number."""

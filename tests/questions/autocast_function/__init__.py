"""A custom Function whose backward mixes dtypes after a forward under autocast."""

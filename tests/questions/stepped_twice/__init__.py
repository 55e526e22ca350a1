"""Parameters that two optimizers step with the same gradient."""

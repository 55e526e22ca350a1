"""Products of matrices that can run as one: finding them, and running them so."""

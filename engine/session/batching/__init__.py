"""Matrix products that can run as one batch: finding them, and running them."""

"""Batched execution: finds matrix products that can run together, and runs them."""

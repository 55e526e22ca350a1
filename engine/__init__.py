"""Engines, scheduling policies, measurement and planning of a backward. Imports only `inspector` and torch."""

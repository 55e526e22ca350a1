"""Verbs leave no side effects for their user."""

"""Breakpoints and watchpoints: the conditions that stop a session, and where a bad gradient came from."""

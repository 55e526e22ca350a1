"""Breakpoints and watchpoints: the conditions that stop a session, and the origin of a NaN or inf."""

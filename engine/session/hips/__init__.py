"""Backwards of the package autograd (HIPS): run by a session, summed and measured."""

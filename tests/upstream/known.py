"""Tests of PyTorch that can't pass when `.backward()` is redirected, and why."""

from __future__ import annotations

NATIVE_BFS = ("bfs native", "bfs native full")

KNOWN: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "TestAutograd::test_profiler_seq_nr",
        NATIVE_BFS,
        "wants the profiler to show the forward's sequence numbers in the backward; they are what pins another order",
    ),
    (
        "TestAutograd::test_reentrant_priority",
        NATIVE_BFS,
        "wants the later created of two ready nodes to run first; the earlier one got ready first",
    ),
    (
        "TestMultithreadAutograd::test_multi_grad_any_hooks",
        NATIVE_BFS,
        "wants a leaf's hook to run before a Function that raises; the Function got ready first",
    ),
)
"""Class::test, the redirects under which it fails, and the reason."""


def reason_for(test: str, redirect: str) -> str | None:
    """Why the test fails under "bfs native" or another redirect; None where it should not."""
    return next((reason for name, redirects, reason in KNOWN if name == test and redirect in redirects), None)

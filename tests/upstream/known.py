"""Tests of PyTorch that can't pass when `.backward()` is redirected, and why."""

from __future__ import annotations

LATER_ORDERS = ("bfs native", "dfs native")
BFS = ("bfs native", "bfs direct")
DIRECT = ("heap direct", "bfs direct", "dfs direct")

_PACKED = "wants what hooks of saved tensors packed to be freed while its node is still held, which Python can't"

KNOWN: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "TestAutograd::test_profiler_seq_nr",
        LATER_ORDERS,
        "wants the profiler to show the forward's sequence numbers in the backward; they are what pins another order",
    ),
    (
        "TestAutogradMultipleDispatchCPU::test_set_sequence_nr_cpu",
        ("dfs native", "dfs direct"),
        "wants the order of the sequence numbers, which it sets; the other node got ready last",
    ),
    (
        "TestAutograd::test_reentrant_priority",
        BFS,
        "wants the later created of two ready nodes to run first; the earlier one got ready first",
    ),
    (
        "TestMultithreadAutograd::test_multi_grad_any_hooks",
        BFS,
        "wants a leaf's hook to run before a Function that raises; the Function got ready first",
    ),
    ("TestAllowMutationOnSaved::test_save_base_and_modify_view", DIRECT, _PACKED),
    ("TestAllowMutationOnSaved::test_saved_but_not_anymore", DIRECT, _PACKED),
    ("TestAllowMutationOnSaved::test_with_out_variant", DIRECT, _PACKED),
    ("TestAutograd::test_grad_fn_attr_bindings", DIRECT, _PACKED),
    (
        "TestAutograd::test_current_graph_task_execution_order",
        DIRECT,
        "wants torch to foretell the order from inside; its engine knows nothing of the tasks",
    ),
    (
        "TestAutograd::test_current_graph_task_id",
        DIRECT,
        "wants numbers without gaps; hooks of a tensor run in a small run of the engine, with a number of its own",
    ),
    (
        "TestAutograd::test_current_node",
        DIRECT,
        "lists the operators which a dispatch mode sees; a task called from Python detaches its gradients",
    ),
    (
        "TestAutograd::test_deep_reentrant",
        DIRECT,
        "nests 2,000 backwards, too many for Python's stack; the engine takes another thread every 60",
    ),
)
"""Class::test, the redirects under which it fails, with a trace or without, and the reason."""


def reason_for(test: str, redirect: str) -> str | None:
    """Why the test fails under "bfs native" or another redirect; None where it should not."""
    policy_and_engine = " ".join(redirect.split()[:2])
    reasons = (reason for name, redirects, reason in KNOWN if name == test and policy_and_engine in redirects)
    return next(reasons, None)

"""Run by test_find_hooks.py in a separate process."""

from __future__ import annotations

import gc

import torch
from torch import nn

from tapescope.engine.execution.find_hooks import HookWatch
from tapescope.inspector.torch_private.hooks import node_hooks


def a_watch_finds_hooks_of_dead_tensors_of_nodes_and_retained_gradients() -> None:
    def possible(hook: str) -> bool:
        x = torch.ones(2, requires_grad=True)
        y = x.exp()
        z = y.sin()
        node, nodes = y.grad_fn, [z.grad_fn, y.grad_fn]
        gc.collect()  # hooks of other tests in cycles
        watch = HookWatch(nodes)
        assert not watch.possible(), "another test left a hook behind"
        if hook == "tensor":
            y.register_hook(lambda gradient: None)
            del y
        elif hook == "node":
            node.register_prehook(lambda gradients: None)
        elif hook == "leaf":
            x.register_post_accumulate_grad_hook(lambda leaf: None)
        elif hook == "retain":
            z.retain_grad()
        found = watch.possible()
        assert found == HookWatch(nodes).possible()
        return found

    assert not possible("none")
    assert all(map(possible, ("tensor", "node", "leaf", "retain")))


def a_hook_that_comes_later_is_noticed_without_looking_again() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    gc.collect()
    watch = HookWatch([y.grad_fn])
    assert not watch.registered()
    y.register_hook(lambda gradient: None)
    assert watch.registered() and watch.registered()


def what_is_no_hook_of_a_graph_is_not_counted() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    module = nn.Linear(2, 2)
    module.register_full_backward_hook(lambda module, given, taken: None)
    watch = HookWatch([y.grad_fn])
    assert not watch.possible(), "a module's hooks are no node's"
    node_hooks(y.grad_fn)
    assert not watch.possible(), "nor is our own look at a node"


def a_hook_is_a_tensors_whoever_else_holds_its_dict() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    handle = x.register_hook(lambda gradient: None)
    other = [x._backward_hooks]
    assert HookWatch([y.grad_fn]).possible()
    handle.remove()
    del other


a_watch_finds_hooks_of_dead_tensors_of_nodes_and_retained_gradients()
a_hook_that_comes_later_is_noticed_without_looking_again()
what_is_no_hook_of_a_graph_is_not_counted()
a_hook_is_a_tensors_whoever_else_holds_its_dict()

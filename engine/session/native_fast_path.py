"""Backwards of PyTorch's engine that do not read their graph: in its own order, or in a cached one."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from ...inspector.capture.build_graph import DEEP, free_one_by_one, outlive_backward, root_edges
from ...inspector.capture.build_graph import read_graph as graph_of
from ...inspector.garbage_collector import collector_paused
from ...inspector.graph.freed_nodes import any_spent, is_spent
from ...inspector.graph.graph import Graph
from ...inspector.graph.live_nodes import LiveNodes
from ...inspector.graph.operations_and_calls import Facts
from ...inspector.graph.source_lines import warn
from ...inspector.torch_private.compiled import compiled_autograd_is_on, keep_compiler_out
from ...inspector.torch_private.engine import backward_with_start
from ...inspector.torch_private.saved_variables import first_freed
from ...inspector.torch_private.sequence_numbers import (
    UNNUMBERED,
    Pin,
    current_number,
    current_numbers,
    empty_queue,
    no_pins,
    pins_open,
    settle_queue,
    youngest_first,
)
from ...inspector.torch_private.thread_state import functorch_is_active
from ..execution.backward_arguments import BackwardCall, check_root_gradients
from ..execution.saved_tensor_errors import backward_begins, backward_continues
from ..planning.order_cache import (
    CACHED_ORDERS,
    EngineOrder,
    engine_key,
    may_have_new_hooks,
    node_facts,
    youngest_key,
)
from ..planning.policies import POLICIES
from ..planning.simulate import schedule
from ..recording.run import Run
from ..schedule.dependencies import Pending
from ..schedule.device_queues import Queues
from ..schedule.fsdp_stages import has_stages
from ..schedule.greedy_order import chosen_order
from ..schedule.policy import Choice, Policy, following
from .native_engine import DISTURBED, Plan, explain, is_engines_own, one_queue, run_native
from .rank_agreement import in_group

_MOST_CHECKED = 50  # nodes searched for the first one that has run; it is usually the root
_UNREAD = "not planned, because the last graphs that looked like this one kept PyTorch's own order"
_Edges = list[tuple[Node, int]]


def run_without_graph(call: BackwardCall, policy: Policy | Choice, queues: Queues) -> Callable[[], Run] | None:
    """Run a backward without reading its graph, if possible, and return a function that returns the run; otherwise
    return None. `Run.graph` reads the graph on first access.

    The graph must be read if `inputs=` excludes tasks, if a capture has information about it, if devices have queues of
    their own (their order is not known in advance), and for a user's own policy, which may look at anything.
    """
    if call.limits is not None or queues != "one":
        return None
    if Facts.alive() or compiled_autograd_is_on() or functorch_is_active():
        return None
    if is_engines_own(policy):
        return _in_own_order(call, root_edges(call.outputs))
    static = isinstance(policy, Policy) and POLICIES.get(policy.name) is policy and not policy.dynamic
    if not static or len(call.outputs) > 1 or in_group() or pins_open():
        return None
    if torch.is_anomaly_enabled():  # anomaly mode would report `_NotCached` as an error of the backward
        return None
    assert isinstance(policy, Policy)
    roots = root_edges(call.outputs)
    # A leaf as root: it and the added start node would both have number UINT64_MAX, and which of two equal numbers pops
    # first is unspecified (engine.h, CompareNodeTaskTime).
    if current_number(roots[0][0]) == UNNUMBERED:
        return None
    # Reading a graph's order costs more than a small backward. While a loop's graphs keep the engine's own order, most
    # of its backwards only look at the youngest nodes.
    key = youngest_key(policy, call.keep_graph, roots[0][0])
    last: EngineOrder | None = None if key is None else CACHED_ORDERS.get(key)
    if last is not None and last.may_run_unread():
        return _in_own_order(call, roots, last.name, last.note or _UNREAD)
    return _in_cached_order(call, policy, roots, key)


def _in_own_order(call: BackwardCall, roots: _Edges, name: str = "heap", note: str = "") -> Callable[[], Run]:
    if call.engine_run is None:
        check_root_gradients(call.outputs, call.grad_tensors)
    freed = _spent_or_freed(node for _, node in youngest_first(node for node, _ in roots))
    since = backward_begins()
    try:
        with one_queue(torch.accelerator.is_available()):
            started_ns = time.perf_counter_ns()
            call.run()
            elapsed_ns = time.perf_counter_ns() - started_ns
    except Exception as error:
        explain(error, graph_of(call.outputs), freed, since)
        raise
    return partial(_late, call, roots, lambda graph: schedule(graph, "heap"), name, elapsed_ns, note)


def _in_cached_order(call: BackwardCall, policy: Policy, roots: _Edges, key: Hashable) -> Callable[[], Run]:
    """Run in the order cached for such a graph; plan and cache it the first time.

    `key` is the `youngest_key` of the graph; None if it has none.
    """
    reading, elapsed_ns, since = ExitStack(), 0, backward_begins()
    start = _Start(policy, call.keep_graph, roots[0][0], reading.close)
    try:
        try:
            with reading, one_queue(torch.accelerator.is_available()):
                reading.enter_context(collector_paused())  # torch creates a Python object for each node
                started_ns = time.perf_counter_ns()
                # Only inside a graph task does the engine tell its own order (_current_graph_task_execution_order). The
                # start finds the cached order by it, before the first node runs.
                backward_with_start(start.begin, call.run_with)
                elapsed_ns = time.perf_counter_ns() - started_ns - start.took_ns
        except _NotCached:
            empty_queue()
        except Exception as error:
            explain(error, graph_of(call.outputs), start.freed, since)
            raise
        finally:
            if start.pin is not None:
                start.pin.close()
                settle_queue()
    finally:  # again, since an interrupt may end the inner `finally`
        if start.pin is not None:
            start.pin.close()
    if start.pin is not None and start.pin.disturbed:
        warn(DISTURBED)
    cached = start.cached
    if cached is None:
        run = _planned(call, policy, start)
        return lambda: run
    if key is not None:
        last = CACHED_ORDERS.get(key)
        if last is not None and (last.places is None) != (cached.places is None):
            last.is_ambiguous = cached.is_ambiguous = True
        CACHED_ORDERS.put(key, cached)
    ordered = partial(_numbered, start)
    return partial(_late, call, roots, ordered, cached.name, elapsed_ns, cached.note)


def _planned(call: BackwardCall, policy: Policy, start: _Start) -> Run:
    """Read the graph, plan an order, run it, and cache it."""
    plan = Plan.of(call, policy)
    nodes = start.nodes
    facts = node_facts(policy, nodes)
    new_hooks = may_have_new_hooks(policy)  # before a backward in a hook changes the answer
    backward_continues()
    run = run_native(call, plan)
    graph = plan.graph
    if start.key is not None and len(nodes) == len(plan.order) and not has_stages(graph):
        places = {node: place for place, node in enumerate(nodes)}
        order = [places[graph.nodes[task_id]] for task_id in plan.order]
        found = EngineOrder.of(policy, nodes, facts, order, run.policy, run.note)
        if found.places is None or not new_hooks:
            CACHED_ORDERS.put(start.key, found)
    return run


class _NotCached(BaseException):
    """Raised if the order of such a graph is not cached; nothing has run."""


class _Start:
    """The start of a backward before its first task: finds the cached order by the engine's own order, and pins it.

    Args:
        policy: the policy.
        keep_graph: whether saved tensors are cached.
        root: the root node.
        done: called when the start has ended.

    Attributes:
        key: the cache key of the graph; None if other backwards have pinned nodes, which hides the engine's order.
        nodes: the nodes in the engine's own order.
        cached: the cached order.
        pin: pins the nodes in that order; None for the engine's own order.
        freed: the first freed node, which may be the first to raise.
        took_ns: the time the start took.
    """

    def __init__(self, policy: Policy, keep_graph: bool, root: Node, done: Callable[[], None]) -> None:
        self._policy = policy
        self._keep_graph = keep_graph
        self._root = root
        self._done = done
        self.key: Hashable | None = None
        self.nodes: Sequence[Node] = ()
        self.cached: EngineOrder | None = None
        self.pin: Pin | None = None
        self.freed: Node | None = None
        self.took_ns = 0

    def begin(self, nodes: list[Node]) -> None:
        """Find and pin the order of `nodes`, which are all nodes in the engine's own order."""
        self.nodes = nodes
        try:
            # THPCppFunction_dealloc frees nodes that Python has seen recursively, which overflows the stack in a deep
            # graph.
            if len(nodes) >= DEEP:
                free_one_by_one(self._root, [node for node in nodes if node is not self._root])
            began_ns = time.perf_counter_ns()
            with no_pins() as alone:
                if not alone:
                    raise _NotCached
                numbers = current_numbers(nodes)
                self.key = engine_key(self._policy, self._keep_graph, nodes, numbers)
                self.cached = CACHED_ORDERS.get(self.key)
                if self.cached is not None and not self.cached.suits(nodes):  # its nodes take other gradients
                    self.cached = None
                if self.cached is None:
                    raise _NotCached
                if self.cached.places is not None:
                    # In the engine's own order, which is mostly that of the nodes in memory.
                    self.pin = Pin(nodes, nodes.__len__, numbers, self.cached.numbers)
                    self.pin.open()
            self.freed = _spent_or_freed(self.ordered())
            self.took_ns = time.perf_counter_ns() - began_ns
        finally:
            self._done()

    def ordered(self) -> Iterator[Node]:
        """Return the nodes in the order in which they run."""
        places = None if self.cached is None else self.cached.places
        return iter(self.nodes) if places is None else map(self.nodes.__getitem__, places)


def _late(
    call: BackwardCall,
    roots: _Edges,
    order: Callable[[Graph], Sequence[int]],
    policy: str,
    elapsed_ns: int,
    note: str = "",
) -> Run:
    """Return the run, which reads its graph on first access, or when the loss dies if nodes would keep tensors alive
    then: saved tensors of a retained graph, and see `outlive_backward`."""
    tensors: list[ref[Tensor]] = []

    def read() -> Graph:
        graph = graph_of([GradientEdge(node, number) for node, number in roots])
        losses = [each() for each in tensors]
        if losses and isinstance(graph.nodes, LiveNodes) and None not in losses:
            graph.nodes.watch(losses)
        return graph

    run = Run.late(read, order, policy, elapsed_ns, note)
    forget = partial(_release, ref(run), roots, call.keep_graph)
    tensors += [ref(each, forget) for each in call.outputs if isinstance(each, Tensor)]
    if len(tensors) < len(roots):
        tensors.clear()
    return run


def _release(run: ref[Run], roots: _Edges, is_retained: bool, loss: object) -> None:
    """Read the run's graph; the run then keeps it without its nodes."""
    if (found := run()) is not None and (is_retained or outlive_backward([node for node, _ in roots])):
        _ = found.graph


keep_compiler_out(_release)  # runs when the loss is freed, possibly in compiled code


def _numbered(start: _Start, graph: Graph) -> list[int]:
    """Return the order in which the engine runs nodes with these sequence numbers.

    It differs from the numbering if the graph only resembles the planned one, and its edges do not allow that order.
    """
    ids = {node: task_id for task_id, node in enumerate(graph.nodes)}
    return chosen_order(graph, following(POLICIES["heap"], [ids[node] for node in start.ordered()]), Pending(graph))


def _spent_or_freed(nodes: Iterable[Node]) -> Node | None:
    """Return the first node that a backward has run or freed, which would raise; None if none is known."""
    nodes = islice(nodes, _MOST_CHECKED)
    if not any_spent():
        return first_freed(nodes)  # which mostly needs the first nodes alone
    nodes = list(nodes)
    return first_freed(nodes) or next(filter(is_spent, nodes), None)

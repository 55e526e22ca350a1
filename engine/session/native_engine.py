"""The native engine: PyTorch's C++ engine runs everything, in an order pinned through sequence numbers."""

from __future__ import annotations

import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from ...inspector.garbage_collector import collector_paused
from ...inspector.graph.freed_nodes import is_spent
from ...inspector.graph.graph import Graph
from ...inspector.graph.source_lines import warn
from ...inspector.torch_private.allocators import profiler_is_on
from ...inspector.torch_private.engine import real_graph_task_id
from ...inspector.torch_private.engine_errors import called_by_engine, running_function
from ...inspector.torch_private.hooks import leaf_hooks, own, post_accumulate_hooks, register_post_hook
from ...inspector.torch_private.nodes import leaf_of
from ...inspector.torch_private.saved_variables import FREED, first_freed
from ...inspector.torch_private.sequence_numbers import Pin, falling_numbers, pins_open, settle_queue
from ...inspector.torch_private.thread_state import unobserved
from ..execution.backward_arguments import BackwardCall
from ..execution.find_hooks import LateTensorHooks
from ..execution.run_hooks import Gradients, hook_name
from ..execution.saved_tensor_errors import backward_begins
from ..planning.policies import POLICIES, note_on, order_name
from ..planning.policy_orders import bound
from ..planning.scheduling_problem import Problem
from ..planning.simulate import schedule
from ..recording.recorder import Recorder
from ..recording.run import Run
from ..recording.statistics import Level
from ..recording.trace_ready import task_range
from ..schedule.dependencies import Pending, queue_lengths
from ..schedule.device_queues import Queues
from ..schedule.policy import Choice, Key, Policy, is_dynamic, label_of, policy_name
from ..schedule.ready_queue import sort_key
from .error_notes.explain_error import explain_error
from .rank_agreement import in_group, reason_against

if TYPE_CHECKING:
    from ..memory.measure_backward import Measurement
    from ..memory.task_boundaries import MemoryWatch


class LiveNumbers:
    """The ready tasks by key, each with a sequence number such that the engine pops the lowest key first.

    A new key gets a number between those of its neighbours. If there is no room between them, all ready tasks are
    renumbered; their relative order stays, so that the engine's heap stays valid.

    Args:
        number: sets a task's sequence number.
    """

    def __init__(self, number: Callable[[int, int], None]) -> None:
        self._number = number
        self._keys: list[Key] = []  # ascending and distinct
        self.tasks: list[int] = []  # the task of each key: the order in which they run if no other arrives
        self._numbers: list[int] = []  # descending

    def add(self, task_id: int, key: Key) -> None:
        """Add a task that became ready. Must be called before the engine pushes it."""
        place = bisect_left(self._keys, key)
        self._keys.insert(place, key)
        self.tasks.insert(place, task_id)
        neighbours: Mapping[int, int] = {0: self._numbers[place - 1]} if place else {}
        if place < len(self._numbers):
            neighbours = {**neighbours, len(neighbours) + 1: self._numbers[place]}
        found = falling_numbers(1 + len(neighbours), neighbours)
        if found is None:
            self.number_all()
        else:
            number = found[1 if place else 0]
            self._numbers.insert(place, number)
            self._number(task_id, number)

    def remove(self, task_id: int) -> None:
        """Remove a task that the engine has popped, usually the first."""
        place = self.tasks.index(task_id)
        del self._keys[place], self.tasks[place], self._numbers[place]

    def number_all(self) -> None:
        """Renumber all ready tasks evenly."""
        # Every task keeps its place relative to the others, so the engine's heap stays valid although the numbers in it
        # change.
        numbers = falling_numbers(len(self.tasks), {})
        assert numbers is not None, "there are more numbers than tasks"
        self._numbers = numbers
        for task_id, number in zip(self.tasks, numbers, strict=True):
            self._number(task_id, number)


_FREED = FREED.partition(" (")[0]


@dataclass(frozen=True, slots=True)
class Plan:
    """The graph, policy and order of a backward before it runs.

    Attributes:
        graph: the graph.
        policy: the policy.
        needed: ids of the tasks that run; None for all.
        order: their ids in the policy's order; empty for a dynamic policy.
        devices: the devices with tasks, each of which may have its own queue.
    """

    graph: Graph
    policy: Policy | Choice
    needed: frozenset[int] | None
    order: list[int]
    devices: frozenset[str]

    @staticmethod
    def of(call: BackwardCall, policy: Policy | Choice) -> Plan:
        graph = call.graph()
        needed = call.needed(graph)
        if first_freed(graph.nodes) is None and not any(map(is_spent, graph.nodes)):
            policy = bound(policy, Problem(graph, None, needed, keep_graph=call.keep_graph, names_hooks=False))
        elif not isinstance(policy, Policy) or policy.plan is not None:
            policy = POLICIES["heap"]  # so that PyTorch raises its own error
        order = [] if is_dynamic(policy) else schedule(graph, policy, needed)
        return Plan(graph, policy, needed, order, frozenset(map(str, graph.devices)))

    def agreed(self) -> Plan:
        """Return this plan if all ranks of the process group run its order, or there are no others; otherwise PyTorch's
        order.

        Raises:
            RuntimeError: the other ranks' orders are unknown.
        """
        if self.policy is POLICIES["heap"] or not in_group():
            return self
        own = schedule(self.graph, "heap", self.needed)
        if is_dynamic(self.policy):
            # Tell the other ranks, which would otherwise wait for this one's answer until the time limit.
            reason_against(self.graph, self.needed, None)
            why: str | None = "it chooses tasks while the backward runs, so ranks cannot agree on its order in advance"
        else:
            why = reason_against(self.graph, self.needed, None if self.order == own else self.order)
        if why is None or self.order == own:
            return self
        policy = replace(POLICIES["heap"], name=f"{policy_name(self.policy)}: heap", note=why)
        return replace(self, policy=policy, order=own)


def run_native(
    call: BackwardCall,
    plan: Plan,
    trace: Level | None = None,
    queues: Queues = "one",
    measurement: Measurement | None = None,
) -> Run:
    """Run `call` as planned.

    Hooks are registered only for a trace or a memory measurement, under a dynamic policy, or with a queue per device.
    If tasks of several devices overlap and memory is measured, the order is that of their starts.
    """
    since = backward_begins()
    plan = plan.agreed()
    graph, policy = plan.graph, plan.policy
    dynamic = is_dynamic(policy)
    several = queues == "per device" and len(plan.devices) > 1
    if several and dynamic:
        raise ValueError(f'policy {policy_name(policy)} is dynamic and needs queues="one"')
    if measurement is not None:
        measurement.settle(graph, threads=queues == "per device" and plan.devices != {"cpu"})
    watch = pin = None
    if dynamic or several or trace is not None or measurement is not None:
        watch = Watch(plan, None if trace is None else Recorder(graph, policy, trace))
    nodes = [graph.nodes[task_id] for task_id in plan.order]
    if not is_engines_own(policy):
        pin = Pin(nodes, lambda: max(queue_lengths(graph, plan.order))) if watch is None else watch.pin
    freed = first_freed(nodes) or next(filter(is_spent, nodes), None)

    def timed() -> int:
        with watch or nullcontext():
            if watch is not None and measurement is not None:
                given = graph, call.outputs, call.given, call.keep_graph, call.create_graph
                with unobserved():
                    watch.memory = measurement.begin(*given)
                if watch.recorder is not None:
                    watch.recorder.apart = watch.memory.apart
            started_ns = time.perf_counter_ns()
            call.run()
            elapsed_ns = time.perf_counter_ns() - started_ns
            if measurement is not None:
                measurement.end()
            return elapsed_ns

    try:
        with one_queue(queues == "one" and plan.devices != {"cpu"}):
            elapsed_ns = timed() if pin is None else pin.during(timed)
    except Exception as error:
        if watch is not None:
            watch.explain(error)
        else:
            explain(error, graph.in_order(plan.order), freed, since)
        raise
    finally:
        if pin is not None:
            settle_queue()
    if pin is not None and pin.disturbed:
        warn(DISTURBED)
    order = tuple(plan.order if watch is None else watch.order)
    planned = order if dynamic else tuple(plan.order)
    record = None if watch is None or watch.recorder is None else watch.recorder.trace()
    run = Run(graph, order_name(policy), "native", order, planned, elapsed_ns, trace=record, note=note_on(policy))
    if measurement is None:
        return run
    return run.with_memory(measurement.results())


DISTURBED = (
    "another backward ran at the same time and renumbered leaves that both share, so the order of this one may differ "
    'from its plan; trace="off" records the actual order'
)


def is_engines_own(policy: Policy | Choice) -> bool:
    """Return whether the engine follows this policy without pinned numbers; on other platforms its order of equal
    numbers is unknown."""
    key = policy.key if isinstance(policy, Policy) and policy.plan is None else None
    # Nodes with equal numbers pop in the order of the C++ library's heap; only libstdc++'s is known (binary_heap.py).
    return key is POLICIES["heap"].key and sys.platform == "linux" and not pins_open()


def one_queue(has_several: bool) -> AbstractContextManager[object]:
    """Return a context with one ready queue for all devices, needed for a total order; accelerators otherwise have a
    queue and thread each."""
    # Engine::ready_queue (engine.cpp) returns the calling thread's queue for all devices if multithreading is off.
    return torch.autograd.set_multithreading_enabled(False) if has_several else nullcontext()


def explain(error: Exception, graph: Graph, freed: Node | None, since: int | None) -> None:
    """Add the name of the task that raised to the error, if it is certain without a `Watch`. For `since` see
    `backward_begins`."""
    node = running_function(error)
    if freed is not None and str(error).startswith(_FREED) and (is_spent(freed) or called_by_engine(error) is None):
        node = freed  # the first task that can raise this
    if node in graph.nodes:
        error.add_note(f"tapescope: raised in {graph.describe(graph.nodes.index(node))}")
    else:
        error.add_note('tapescope: run it again on a fresh forward with trace="off" to see which task raised')
    nothing_ran = freed is not None and not is_spent(freed)  # assumes that the freed node raised before any other ran
    explain_error(error, graph, () if nothing_ran else None, since)


def _all_hooks(handle: RemovableHandle) -> dict[int, Any]:
    """Return all hooks of the dict that contains a handle's hook, in running order."""
    hooks: dict[int, Any] | None = handle.hooks_dict_ref()
    assert hooks is not None, "the node is alive and holds its hooks"
    return hooks


class Watch:
    """Follows one run of the engine through a hook before and one after each task, registered while it is open.

    Tasks of another thread's backward, of a nested backward in a hook or of a reentrant checkpoint may run the same
    leaves; they are ignored. With a queue per device, hooks run in several threads.

    Attributes:
        tasks: ids of the tasks that run.
        order: ids of the tasks that have ended.
        ready: the tasks in the engine's queue, with their arrivals.
        taken: the task that the engine has popped but not started.
        pin: sets the order in the engine; must be opened before the run.
        live: under a dynamic policy, numbers the tasks as they become ready.
        recorder: records the run, if set.
        memory: measures the memory, if set.
    """

    def __init__(self, plan: Plan, recorder: Recorder | None) -> None:
        self.graph = graph = plan.graph
        self.tasks = range(len(graph)) if plan.needed is None else sorted(plan.needed)
        self.order: list[int] = []
        self.ready: dict[int, int] = {}
        self.taken: int | None = None
        self.recorder = recorder
        self.memory: MemoryWatch | None = None
        self._tensor_hooks = None if recorder is None else LateTensorHooks(graph.nodes)
        self.pin = Pin([graph.nodes[task_id] for task_id in self.tasks], self.ready.__len__)
        self._pinned = False
        self._roots = {root.task for root in graph.roots}
        self._pending = Pending(graph, plan.needed)
        self._arrived = 0
        self._graph_task: int | None = None
        self._inside: dict[int, int] = {}  # the running task by thread
        self._ranges: dict[int, AbstractContextManager[None]] = {}  # its range in a profiler's trace, by thread
        self._lock = Lock()
        self._starting = Lock()  # trace and memory must see tasks in the same order
        self._handles: dict[int, tuple[RemovableHandle, RemovableHandle]] = {}  # pre- and post-hook by task
        self._handles_seen = 0
        self.follow(plan.policy, plan.order)
        self._arrive(self._pending.start())

    def follow(self, policy: Policy | Choice, planned: Sequence[int]) -> None:
        """Switch to a policy.

        While the engine runs, this may only be called from a hook, or at a stop in one.

        Args:
            policy: the policy.
            planned: all tasks in order, those that have run and those still to run, if known.
        """
        self.policy = policy
        self._label = label_of(policy)
        self._planned = planned
        self._rank = {task_id: place for place, task_id in enumerate(planned)}
        self.live: LiveNumbers | None = None
        nodes, pin = self.graph.nodes, self.pin
        if isinstance(policy, Policy) and policy.dynamic:
            self.live = LiveNumbers(lambda task_id, number: pin.number(nodes[task_id], number))
            for task_id, arrival in self.ready.items():
                if task_id != self.taken:
                    self.live.add(task_id, sort_key(policy, self.graph, task_id, arrival))
        elif self._pinned:
            pin.reorder([nodes[task_id] for task_id in planned[len(self.order) :]])
        else:
            self.pin = Pin([nodes[task_id] for task_id in planned], self.ready.__len__)

    def upcoming(self) -> list[int]:
        """Return the ready tasks in the order in which they run if no other arrives."""
        taken = [] if self.taken is None else [self.taken]
        if self.live is not None:
            return taken + list(self.live.tasks)
        return taken + sorted(self.ready.keys() - taken, key=self._rank.__getitem__)

    def first(self) -> int | None:
        """Return the first of `upcoming`, or the running task if none is ready. Any thread may call this."""
        taken = self.taken
        if taken is not None or not self.ready:
            return next(iter(list(self._inside.values())), None) if taken is None else taken
        if self.live is not None:
            return next(iter(self.live.tasks[:1]), None)
        place = len(self.order)
        return self._planned[place] if place < len(self._planned) else None

    def take(self, task_id: int) -> None:
        """Record that the engine has popped a task."""
        self.taken = task_id
        if self.live is not None:
            self.live.remove(task_id)

    def __enter__(self) -> Watch:
        """Register the hooks; the pin must be open."""
        try:
            with collector_paused():
                for task_id in self.tasks:
                    node = self.graph.nodes[task_id]
                    before = own(node.register_prehook(partial(self._before, task_id)))
                    after = register_post_hook(node, partial(self._after, task_id))
                    self._handles[task_id] = before, after
            self._handles_seen = RemovableHandle.next_id
            self._pinned = True
            if self.live is not None:
                self.live.number_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        for before, after in self._handles.values():
            before.remove()
            after.remove()
        self._handles.clear()
        for each in self._ranges.values():  # of a task that raised
            each.__exit__(None, None, None)
        self._ranges.clear()
        self._tensor_hooks = None  # it holds the nodes

    def move_hooks_last(self) -> None:
        """Move these hooks behind those that users have registered since, so that they see the users' results."""
        if RemovableHandle.next_id != self._handles_seen:
            for handles in self._handles.values():
                for handle in handles:
                    hooks = _all_hooks(handle)
                    # python_hook.cpp reads PyDict_Values(dict), the insertion order of the C dict. An OrderedDict keeps
                    # its own links, so move_to_end() would have no effect there.
                    hooks[handle.id] = hooks.pop(handle.id)
            self._handles_seen = RemovableHandle.next_id

    def explain(self, error: BaseException) -> None:
        """Add to the error in which task it was raised."""
        error.add_note(f"tapescope: raised {self._place(error)}")
        explain_error(error, self.graph, self.order)

    def _place(self, error: BaseException | None) -> str:
        describe = self.graph.in_order([*self.order, *self._inside.values(), *self.upcoming()]).describe
        if self._inside:
            return "in " + " or ".join(describe(task_id) for task_id in self._inside.values())
        upcoming = [describe(task_id) for task_id in self.upcoming()[:1]]
        if upcoming and error is not None and called_by_engine(error) is not None:
            return f"in the hooks that run before {upcoming[0]}"
        parts = [f"after the end of {describe(self.order[-1])}"] if self.order else []
        parts += [f"before the start of {task}" for task in upcoming]
        return " and ".join(parts) or "before anything ran"

    def _before(self, task_id: int, gradients: Gradients) -> Gradients | None:
        if self.owns(task_id):
            self._begin(task_id, gradients)
        return None

    def owns(self, task_id: int) -> bool:
        """Return whether the engine calls this task's hook for the observed run."""
        graph_task = real_graph_task_id()
        # Hooks stay on nodes that other backwards share, such as leaves, and are also called for those. The first graph
        # task that runs a root is the observed one.
        if self._graph_task is None and task_id in self._roots:
            self._graph_task = graph_task
        return graph_task == self._graph_task

    def _begin(self, task_id: int, gradients: Gradients) -> None:
        # Threads of several devices call hooks at the same time.
        with self._lock:
            if task_id != self.taken:
                self.take(task_id)
            self.taken = None
            del self.ready[task_id]
            self._inside[get_ident()] = task_id
        with self._starting:
            if self.recorder is not None:
                self.recorder.start(task_id, gradients)
                if self._tensor_hooks is not None and not self._tensor_hooks.quiet:
                    self._note_before(task_id, self._tensor_hooks)
            if self.memory is not None:
                self.memory.start(task_id, gradients)
        if profiler_is_on():
            self._ranges[get_ident()] = profiled = task_range(self.graph, task_id)
            profiled.__enter__()

    def _after(self, task_id: int, outputs: Gradients, gradients: Gradients) -> None:
        if real_graph_task_id() != self._graph_task:
            return
        if self._ranges and (profiled := self._ranges.pop(get_ident(), None)) is not None:
            profiled.__exit__(None, None, None)
        if self.memory is not None:
            self.memory.end(task_id, outputs)
        if self.recorder is not None:
            if self._tensor_hooks is not None and not self._tensor_hooks.quiet:
                if self.graph.tasks[task_id].is_leaf:
                    self._note("post_accumulate", post_accumulate_hooks(leaf_of(self.graph.nodes[task_id])))
                self._note("post", _all_hooks(self._handles[task_id][1]).values())
            self.recorder.end(outputs)
        with self._lock:
            self.order.append(task_id)
            del self._inside[get_ident()]
            self._arrive(self._pending.run(task_id))

    def _note_before(self, task_id: int, tensor_hooks: LateTensorHooks) -> None:
        """Record the user's hooks that run before the task."""
        assert self.recorder is not None
        for hook in tensor_hooks.of(task_id):
            self.recorder.hook(*hook)
        if self.graph.tasks[task_id].is_leaf:
            self._note("tensor", leaf_hooks(leaf_of(self.graph.nodes[task_id])))
        self._note("pre", _all_hooks(self._handles[task_id][0]).values())

    def _note(self, kind: str, hooks: Collection[Any]) -> None:
        """Record the user's hooks."""
        assert self.recorder is not None
        if len(hooks) == 1 and kind in ("pre", "post"):  # only this object's hook
            return
        for hook in hooks:
            if getattr(hook, "func", None) not in (self._before, self._after):
                self.recorder.hook(kind, hook_name(hook))

    def _arrive(self, task_ids: Sequence[int]) -> None:
        for task_id in task_ids:
            arrival = self.ready[task_id] = self._arrived
            self._arrived += 1
            key = None
            if self.live is not None:
                assert isinstance(self.policy, Policy)
                key = sort_key(self.policy, self.graph, task_id, arrival)
                self.live.add(task_id, key)
            if self.recorder is not None:
                self.recorder.arrive(task_id, self._label(self.graph.tasks[task_id], arrival), key)

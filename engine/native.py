"""The native engine: PyTorch's own C++ engine runs everything, in an order pinned to it through sequence numbers."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from threading import Lock, get_ident
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node
from torch.utils.hooks import RemovableHandle

from ..inspector.graph import Graph, Outputs
from ..inspector.torch_internals import (
    Pin,
    called_by_engine,
    compiled_autograd_is_on,
    first_saving,
    functorch_is_active,
    leaf_hooks,
    leaf_of,
    pins_open,
    post_accumulate_hooks,
    real_graph_task_id,
    running_function,
    torch_backward,
)
from ..inspector.walk import graph as graph_of
from .live_numbers import LiveNumbers
from .needed import Inputs, needed_tasks
from .policies import POLICIES, Choice, Policy, is_dynamic, label_of, policy_name
from .ready_queue import sort_key
from .roots import as_outputs, root_gradients
from .run import Run
from .schedule import Pending, schedule
from .statistics import Level
from .task_hooks import Gradients, hook_name
from .trace import Recorder

Queues = Literal["one", "per device"]

_FREED = "Trying to backward through the graph a second time"


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one `torch.autograd.backward`."""

    tensors: Outputs
    grad_tensors: Tensor | Sequence[Tensor | None] | None
    retain_graph: bool | None
    create_graph: bool
    inputs: Inputs | None

    @staticmethod
    def of(
        tensors: Outputs,
        grad_tensors: Tensor | Sequence[Tensor | None] | None,
        retain_graph: bool | None,
        create_graph: bool,
        inputs: Inputs | None,
    ) -> Call:
        """The same with each generator read once."""
        if isinstance(inputs, dict):
            inputs = list(inputs.values())
        elif not isinstance(inputs, Tensor | GradientEdge | Mapping | None):
            inputs = tuple(inputs)  # type: ignore[assignment]
        if not isinstance(grad_tensors, Tensor | None):
            grad_tensors = tuple(grad_tensors)
        return Call(as_outputs(tensors), grad_tensors, retain_graph, create_graph, inputs)

    def graph(self) -> Graph:
        """The graph that would run. Says what is wrong with the arguments, as far as this can be told before."""
        if compiled_autograd_is_on():
            raise RuntimeError(
                "compiled autograd replaces the engine whose order tapehead pins; switch it off for this backward"
            )
        if functorch_is_active():
            self.run()  # raises
        graph = graph_of(self.tensors)
        root_gradients(self.tensors, self.grad_tensors)
        return graph

    def needed(self, graph: Graph) -> frozenset[int] | None:
        """The tasks which `inputs=` leaves; None: all."""
        if self.inputs is None:
            return None
        inputs = [self.inputs] if isinstance(self.inputs, Tensor | GradientEdge) else self.inputs
        wanted = [each for each in inputs if not isinstance(each, Tensor) or each.requires_grad]
        if any(not isinstance(each, Tensor | GradientEdge) for each in wanted):
            return frozenset()  # torch is going to refuse it
        return needed_tasks(graph, wanted)

    def run(self) -> None:
        torch_backward(
            self.tensors,
            self.grad_tensors,
            self.retain_graph,
            self.create_graph,
            inputs=self.inputs,
        )


def run_native(call: Call, policy: Policy | Choice, trace: Level | None, queues: Queues) -> Run:
    """`call` in the policy's order, which is planned ahead where it can be.

    Nothing is hooked into the graph unless a trace is wanted, or the order can't be known without looking: under a
    dynamic policy, and with one queue per device.
    """
    graph = call.graph()
    needed = call.needed(graph)
    dynamic = is_dynamic(policy)
    planned = [] if dynamic else schedule(graph, policy, needed)
    several = queues == "per device" and len(_queue_devices(graph)) > 1
    if several and dynamic:
        raise ValueError(f"policy {policy_name(policy)} is dynamic, which needs one queue for all devices")
    watch = None
    if dynamic or several or trace is not None:
        recorder = None if trace is None else Recorder(graph, policy, trace)
        watch = Watch(graph, policy, planned, needed, recorder)
    pin = None if _is_engines_own(policy) else watch.pin if watch else Pin([graph.nodes[task] for task in planned])
    saving = first_saving(graph.nodes[task_id] for task_id in planned)
    with one_queue(graph) if queues == "one" else nullcontext(), pin or nullcontext(), watch or nullcontext():
        started_ns = time.perf_counter_ns()
        try:
            call.run()
        except Exception as error:
            if watch is not None:
                watch.explain(error)
            else:
                _explain(error, graph, saving)
            raise
        elapsed_ns = time.perf_counter_ns() - started_ns
    if pin is not None and pin.disturbed:
        warnings.warn(_DISTURBED, stacklevel=3)
    order = tuple(planned if watch is None else watch.order)
    record = None if watch is None or watch.recorder is None else watch.recorder.trace()
    return Run(
        graph, policy_name(policy), "native", order, order if dynamic else tuple(planned), elapsed_ns, trace=record
    )


_DISTURBED = (
    "meanwhile another backward renumbered leaves that both share, in an order of its own; where they waited in the "
    'queue, the order of this one may differ from the plan. trace="off" records what really runs'
)


def _is_engines_own(policy: Policy | Choice) -> bool:
    """Whether the engine follows this policy by itself. Elsewhere its order of equal numbers is not known."""
    return policy is POLICIES["heap"] and sys.platform == "linux" and not pins_open()


@contextmanager
def one_queue(graph: Graph) -> Iterator[None]:
    """With accelerators each device has a queue and a thread of its own; for one total order they must be one."""
    if _queue_devices(graph) == {"cpu"}:
        yield
    else:
        with torch.autograd.set_multithreading_enabled(False):
            yield


def _queue_devices(graph: Graph) -> set[str]:
    """The devices on which tasks run. What is on no accelerator goes into the caller's queue (Engine::ready_queue)."""
    metas = {id(meta): meta for task in graph.tasks for meta in task.inputs}  # few, shared by many
    return {"cpu" if meta.device.type in ("cpu", "meta", "lazy") else str(meta.device) for meta in metas.values()}


def _explain(error: Exception, graph: Graph, saving: tuple[Node, bool] | None) -> None:
    """Says which task raised, where that is certain although nobody watched."""
    node = running_function(error)
    if saving is not None and saving[1] and str(error).startswith(_FREED) and called_by_engine(error) is None:
        node = saving[0]  # the first task that can raise this, and it was freed before
    if node in graph.nodes:
        error.add_note(f"tapehead: raised in {graph.describe(graph.nodes.index(node))}")
    else:
        error.add_note('tapehead: with trace="off" the error says in which task it was raised')


def _all_hooks(handle: RemovableHandle) -> dict[int, Any]:
    """The hooks among which a handle's stands, in running order."""
    hooks: dict[int, Any] | None = handle.hooks_dict_ref()
    assert hooks is not None, "the node, which holds them, lives"
    return hooks


class Watch:
    """Follows one run of the engine through a hook before and one after each task, registered while it is open.

    Tasks are told from those of another thread's backward and of one inside a hook or a reentrant checkpoint, which may
    run the same leaves. Hooks of devices with a queue of their own come from several threads.

    Attributes:
        tasks: those that run at all, as `inputs=` leaves them.
        order: the ids of the tasks that have ended.
        ready: the tasks that wait in the engine's queue, with their arrivals.
        pin: gives the order to the engine. To be opened before.
        live: under a dynamic policy what numbers the tasks as they get ready.
        recorder: what takes the run down, if anything.
    """

    def __init__(
        self,
        graph: Graph,
        policy: Policy | Choice,
        planned: Sequence[int],
        needed: Collection[int] | None,
        recorder: Recorder | None,
    ) -> None:
        self.graph = graph
        self.tasks = range(len(graph)) if needed is None else sorted(needed)
        self.order: list[int] = []
        self.ready: dict[int, int] = {}
        self.recorder = recorder
        self.pin = Pin([graph.nodes[task_id] for task_id in self.tasks])
        self._pinned = False
        self._roots = {root.task for root in graph.roots}
        self._pending = Pending(graph, needed)
        self._arrived = 0
        self._graph_task: int | None = None
        self._inside: dict[int, int] = {}  # by thread: the task that runs in it
        self._lock = Lock()
        self._handles: list[tuple[int, RemovableHandle, RemovableHandle]] = []
        self._hooks: dict[int, tuple[dict[int, Any], dict[int, Any]]] = {}  # all that a node has
        self._handles_seen = 0
        self.follow(policy, planned)
        self._arrive(self._pending.start())

    def follow(self, policy: Policy | Choice, planned: Sequence[int], taken: Collection[int] = ()) -> None:
        """Goes by this policy from now on.

        Args:
            policy: the policy.
            planned: all tasks in the order in which they ran and will run; empty under a dynamic policy.
            taken: the task which the engine has taken from its queue already, and runs next.
        """
        self.policy = policy
        self._taken = taken
        self._label = label_of(policy)
        self._rank = {task_id: place for place, task_id in enumerate(planned)}
        self.live: LiveNumbers | None = None
        if isinstance(policy, Policy) and policy.dynamic:
            self.live = LiveNumbers(self._number)
            for task_id, arrival in self.ready.items():
                if task_id not in taken:
                    self.live.add(task_id, sort_key(policy, self.graph.tasks[task_id], arrival))
        elif not self._pinned:
            self.pin = Pin([self.graph.nodes[task_id] for task_id in planned])
        else:
            self.pin.reorder([self.graph.nodes[task_id] for task_id in planned[len(self.order) :]])

    def upcoming(self) -> list[int]:
        """The ready tasks in the order in which they run if no other comes."""
        if self.live is None:
            return sorted(self.ready, key=self._rank.__getitem__)
        return [*self._taken, *self.live.order()]

    def label(self, task_id: int) -> str:
        """The key of a ready task as people read it."""
        return self._label(self.graph.tasks[task_id], self.ready[task_id])

    def __enter__(self) -> Watch:
        """Registers the hooks; after the pin has been opened."""
        try:
            for task_id in self.tasks:
                node = self.graph.nodes[task_id]
                before = node.register_prehook(partial(self._before, task_id))
                after = node.register_hook(partial(self._after, task_id))
                self._handles.append((task_id, before, after))
                self._hooks[task_id] = _all_hooks(before), _all_hooks(after)
            self._handles_seen = RemovableHandle.next_id
            self._pinned = True
            if self.live is not None:
                self.live.number_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        for _, before, after in self._handles:
            before.remove()
            after.remove()
        self._handles.clear()
        self._hooks.clear()

    def stay_last(self) -> None:
        """Lets our hooks run after those which users have registered since, so that they see what these made."""
        if RemovableHandle.next_id != self._handles_seen:
            for task_id, before, after in self._handles:
                for hooks, handle in zip(self._hooks[task_id], (before, after), strict=True):
                    hooks[handle.id] = hooks.pop(handle.id)  # the engine does not see what move_to_end does
            self._handles_seen = RemovableHandle.next_id

    def explain(self, error: BaseException) -> None:
        """Notes on the error in which task it was raised."""
        error.add_note(f"tapehead: raised {self._place(error)}")

    def _place(self, error: BaseException) -> str:
        describe = self.graph.describe
        if self._inside:
            return "in " + " or ".join(describe(task_id) for task_id in self._inside.values())
        upcoming = [describe(task_id) for task_id in self.upcoming()[:1]]
        if upcoming and called_by_engine(error) is not None:
            return f"in the hooks that run before {upcoming[0]}"
        parts = [f"after the end of {describe(self.order[-1])}"] if self.order else []
        parts += [f"before the start of {task}" for task in upcoming]
        return " and ".join(parts) or "before anything ran"

    def _before(self, task_id: int, gradients: Gradients) -> Gradients | None:
        if self.owns(task_id):
            self._begin(task_id, gradients)
        return None

    def owns(self, task_id: int) -> bool:
        """Whether the engine, which calls a hook of this task, is in the run that is watched."""
        graph_task = real_graph_task_id()
        if self._graph_task is None and task_id in self._roots:
            self._graph_task = graph_task
        return graph_task == self._graph_task

    def _begin(self, task_id: int, gradients: Gradients) -> None:
        with self._lock:
            del self.ready[task_id]
            if task_id in self._taken:
                self._taken = ()
            elif self.live is not None:
                self.live.remove(task_id)
            self._inside[get_ident()] = task_id
        if self.recorder is not None:
            self.recorder.start(task_id, gradients)
            if self.graph.tasks[task_id].is_leaf:
                self._note("tensor", leaf_hooks(leaf_of(self.graph.nodes[task_id])))
            self._note("pre", self._hooks[task_id][0].values())

    def _after(self, task_id: int, outputs: Gradients, gradients: Gradients) -> None:
        if real_graph_task_id() != self._graph_task:
            return
        if self.recorder is not None:
            if self.graph.tasks[task_id].is_leaf:
                self._note("post_accumulate", post_accumulate_hooks(leaf_of(self.graph.nodes[task_id])))
            self._note("post", self._hooks[task_id][1].values())
            self.recorder.end(outputs)
        with self._lock:
            self.order.append(task_id)
            del self._inside[get_ident()]
            self._arrive(self._pending.run(task_id))

    def _note(self, kind: str, hooks: Collection[Any]) -> None:
        """Tells the recorder of the user's hooks."""
        assert self.recorder is not None
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
                key = sort_key(self.policy, self.graph.tasks[task_id], arrival)
                self.live.add(task_id, key)
            if self.recorder is not None:
                self.recorder.arrive(task_id, self.label(task_id), key)

    def _number(self, task_id: int, number: int) -> None:
        if self._pinned:
            self.pin.number(self.graph.nodes[task_id], number)

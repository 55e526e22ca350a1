"""One backward in torch's eyes, whether its tasks are run at once or step by step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, nullcontext, suppress
from functools import cached_property

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from ...inspector.graph.graph import Graph
from ...inspector.torch_private.engine import queue_engine_callback, real_graph_task_id, run_as_backward, run_engine
from ...inspector.torch_private.hooks import own, provide_input_grad_buffers, register_post_hook
from ...inspector.torch_private.nodes import input_metadata
from .streams import TaskStreams
from .undo_python_state import HookState


class GraphTask:
    """What PyTorch's engine calls a graph task: the state of one backward, to which user code may refer.

    Code that runs in a backward asks torch which backward that is (checkpoints recompute once in each, hooks on several
    tensors count in each), whether the graph is kept, and may leave callbacks for its end. So tasks are run inside a
    run of the engine. A session that is stepped needs several such runs, which give one answer.

    Args:
        graph: the graph whose nodes run.
        needed: the tasks that `inputs=` needs; None: all. Reentrant checkpoints don't work with it.
        keep_graph, create_graph: as the engine has them.
        streams: those of accelerators, on which tasks run.

    Attributes:
        number, first_number: of the backward, once it has begun: the present one, and the one before any `reopen`.
        node: the one that runs.
        accumulated_inside: whether user code ran a backward of its own meanwhile, which added to .grad.
    """

    def __init__(
        self,
        graph: Graph,
        needed: Collection[int] | None,
        keep_graph: bool,
        create_graph: bool,
        streams: TaskStreams | None = None,
    ) -> None:
        self.number: int | None = None
        self.first_number: int | None = None
        self.node: Node | None = None
        self.keep_graph = keep_graph
        self.create_graph = create_graph
        self.limited = needed is not None
        self.streams = streams
        self._graph = graph
        self._needed = needed
        self._order: Callable[[], Sequence[int]] | None = None
        self._body: Callable[[], None] | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._finished = False
        self._end: HookState | None = None  # what the callbacks changed
        self.accumulated_inside = False

    @cached_property
    def _executed(self) -> frozenset[Node]:
        nodes = self._graph.nodes
        return frozenset(nodes if self._needed is None else (nodes[task_id] for task_id in self._needed))

    def will_execute(self, node: Node) -> bool:
        return node in self._executed

    def wants_part_of(self, task_id: int) -> bool:
        """Whether only some of its outputs lead to `inputs=`: a C++ node then computes only them."""
        needed = self._needed
        return needed is not None and len({edge.next_task in needed for edge in self._graph.out_edges[task_id]}) == 2

    def wanted(self, node: Node, free: bool) -> list[GradientEdge]:
        """The edges that a run of this node alone has to want, see `run_in_engine`."""
        return [
            GradientEdge(child, number)
            for child, number in node.next_functions
            if child is not None and (free or (self.limited and self.will_execute(child)))
        ]

    def execution_order(self) -> list[Node]:
        assert self._order is not None
        return [self._graph.nodes[task_id] for task_id in self._order()]

    def queue_callback(self, callback: Callable[[], None]) -> None:
        if self._finished:
            queue_engine_callback(callback)
        else:
            self._callbacks.append(callback)

    @property
    def callbacks_left(self) -> int:
        """How many callbacks tasks have left for the end of the backward."""
        return len(self._callbacks)

    def reopen(self, callbacks: int, another: bool) -> None:
        """Tasks have been taken back: so many callbacks had been left by then. In a checkpoint's eyes what follows is
        `another` backward: it computes again what it computes once in each."""
        del self._callbacks[callbacks:]
        self._finished = False
        if another:
            self.number = None

    def body(self) -> None:
        """Is called by the engine."""
        if self.number is None:
            self.number = real_graph_task_id()
            self.first_number = self.number if self.first_number is None else self.first_number
        body, self._body = self._body, None
        assert body is not None
        try:
            body()
        except BaseException as error:  # in anomaly mode the engine would blame the leaf from which it started
            self._error = error

    def run(self, body: Callable[[], None], order: Callable[[], Sequence[int]]) -> None:
        """Calls `body` in a run of the engine, with the grad mode of the backward.

        `order` gives the ids of all tasks in the order in which they ran or are going to.
        """
        self._body, self._order = body, order
        provide_input_grad_buffers()
        try:
            # On accelerators the small runs that a task needs would be made in their threads, where we don't answer.
            only_cpu = all(device.type == "cpu" for device in self._graph.devices)
            with (
                nullcontext() if self.streams is None else self.streams.entered(),
                nullcontext() if only_cpu else torch.autograd.set_multithreading_enabled(False),
            ):
                run_as_backward(self, self.keep_graph, self.create_graph)
        finally:
            self._body = self._order = None
            if self._end is not None:
                self._end.end()
            error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # else it would hold itself through this frame

    def finish(self, again: bool) -> None:
        """Leaves the callbacks to the run which is under way: the engine calls them at its end, and theirs.

        Args:
            again: the end may be reached once more, with the same callbacks.
        """
        if not self._finished:
            self._end = HookState(self._callbacks) if again else None
            for callback in self._callbacks:
                queue_engine_callback(callback)
        if not again:
            self._callbacks.clear()
        self._finished = True

    @property
    def why_end_stays(self) -> str | None:
        """What callbacks for the end changed that can't be put back, in words; None: all can."""
        return None if self._end is None else self._end.spoiled

    def undo_end(self) -> None:
        """A task is going to be taken back: what callbacks for the end keep in Python is as before they ran."""
        if self._end is not None:
            self._end.undo()
            self._end = None

    def run_tensor_hooks(self, node: Node, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Runs the hooks of the tensors that `node` made (`Tensor.register_hook`, then `retain_grad`).

        Hooks of tensors that are gone can't be listed, but the engine runs them when a node's inputs are at once the
        roots and the wanted inputs of a backward: the node itself is then not executed. Where no gradient is there at
        all, there is nothing to start from, and no hook runs.
        """
        given = [number for number, gradient in enumerate(gradients) if gradient is not None]
        if not given:
            return list(gradients)
        edges = [GradientEdge(node, number) for number in range(len(gradients))]
        present = [gradient for gradient in gradients if gradient is not None]
        return list(run_engine([edges[number] for number in given], present, True, self.create_graph, edges))

    def run_in_engine(
        self,
        node: Node,
        gradients: Sequence[Tensor | None],
        wanted: Collection[GradientEdge],
        free: bool,
        on_start: Callable[[tuple[Tensor | None, ...]], None] | None = None,
    ) -> list[Tensor | None]:
        """Lets the engine itself execute one node with all its hooks; no other is executed.

        For what Python can't do: make zeros for missing gradients as a custom Function wishes, and free what a node
        hides. A post-hook takes the outputs; then it, or to `free` the node a pre-hook of what follows, ends the run.

        Args:
            wanted: edges to next nodes as `inputs=` of the run, where it needs any: to `free` the node, all of them,
                and none may have hooks.
            on_start: is told of what the node gets, after the hooks before it.
        """
        taken: list[Tensor | None] = []

        def take(outputs: tuple[Tensor | None, ...], inputs: object) -> None:
            taken.extend(outputs)
            if self.streams is not None:
                self.streams.after_engine(outputs)
            if not free:
                raise _Enough

        def stop(inputs: object) -> None:
            raise _Enough

        roots = [GradientEdge(node, number) for number, each in enumerate(gradients) if each is not None]
        given = [gradient for gradient in gradients if gradient is not None]
        with ExitStack() as stack:
            if not roots:  # the engine wants one to start from, which the node need not see
                roots, given = [GradientEdge(node, 0)], [_zeros(node)]
                stack.callback(own(node.register_prehook(lambda inputs: (None,) * len(gradients))).remove)
            if on_start is not None:
                stack.callback(own(node.register_prehook(on_start)).remove)
            stack.callback(register_post_hook(node, take).remove)
            if free:
                for next_node in {edge.node for edge in wanted}:
                    stack.callback(own(next_node.register_prehook(stop)).remove)
            if torch.is_anomaly_enabled():  # it would tell of how the run ends; the caller looks for NaN
                stack.enter_context(torch.autograd.set_detect_anomaly(False))
            stack.enter_context(suppress(_Enough))
            run_engine(roots, given, self.keep_graph, self.create_graph, list(wanted), accumulate=not wanted)
        return taken


class _Enough(BaseException):
    """Ends a run of the engine that has done what it was wanted for."""


def _zeros(node: Node) -> Tensor:
    shape, dtype, device, _ = input_metadata(node)[0]
    return torch.zeros((), dtype=dtype, device=device).expand(shape or ())

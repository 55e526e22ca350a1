"""One backward as PyTorch sees it, whether its tasks run at once or step by step."""

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
    """The state of one backward that user code can query, which PyTorch's engine calls a graph task.

    Code inside a backward asks torch for the backward's id (checkpoints recompute once per backward, multi-grad hooks
    count per backward) and whether the graph is kept, and may queue callbacks for its end. So tasks run inside a run of
    the engine. A stepped session needs several such runs, which must give the same answers.

    Args:
        graph: the graph whose nodes run.
        needed: the tasks that `inputs=` needs; None for all. Reentrant checkpoints do not work with it.
        keep_graph, create_graph: as in the engine.
        streams: the streams of accelerators on which tasks run.

    Attributes:
        number, first_number: the current id of the backward once it has begun, and the id before any `reopen`.
        node: the running node.
        callbacks: the callbacks that tasks have queued for the end of the backward.
        end: the Python state that the end callbacks changed; None if undo does not need it.
        accumulated_inside: whether user code ran a nested backward that added to .grad.
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
        self.callbacks: list[Callable[[], None]] = []
        self._finished = False
        self.end: HookState | None = None
        self.accumulated_inside = False

    @cached_property
    def _executed(self) -> frozenset[Node]:
        nodes = self._graph.nodes
        return frozenset(nodes if self._needed is None else (nodes[task_id] for task_id in self._needed))

    def will_execute(self, node: Node) -> bool:
        return node in self._executed

    def wants_part_of(self, task_id: int) -> bool:
        """Return whether only some of its outputs lead to `inputs=`. A C++ node then computes only those."""
        needed = self._needed
        return needed is not None and len({edge.next_task in needed for edge in self._graph.out_edges[task_id]}) == 2

    def wanted(self, node: Node, free: bool) -> list[GradientEdge]:
        """Return the edges to pass as `wanted` to `run_in_engine` for this node."""
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
            self.callbacks.append(callback)

    def reopen(self, callbacks: int, another: bool) -> None:
        """Continue after an undo.

        Args:
            callbacks: the number of callbacks queued by then; later ones are dropped.
            another: whether checkpoints treat the rest as another backward and recompute again.
        """
        del self.callbacks[callbacks:]
        self._finished = False
        if another:
            self.number = None  # checkpoint.py keys recomputed tensors by graph task id, so a new id recomputes them

    def body(self) -> None:
        """Run the body; the engine calls this."""
        if self.number is None:
            self.number = real_graph_task_id()
            self.first_number = self.number if self.first_number is None else self.first_number
        body, self._body = self._body, None
        assert body is not None
        try:
            body()
        except BaseException as error:  # raised later: in anomaly mode the engine would name the leaf it started from
            self._error = error

    def run(self, body: Callable[[], None], order: Callable[[], Sequence[int]]) -> None:
        """Call `body` inside a run of the engine, with the backward's grad mode.

        Args:
            body: the function to call.
            order: returns the ids of all tasks in the order in which they ran or will run.
        """
        self._body, self._order = body, order
        provide_input_grad_buffers()
        try:
            # On an accelerator, nested engine runs of a task would be in the device's thread, without our answers.
            only_cpu = all(device.type == "cpu" for device in self._graph.devices)
            with (
                nullcontext() if self.streams is None else self.streams.entered(),
                nullcontext() if only_cpu else torch.autograd.set_multithreading_enabled(False),
            ):
                run_as_backward(self, self.keep_graph, self.create_graph)
        finally:
            self._body = self._order = None
            if self.end is not None:
                self.end.end()
            error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # avoids a reference cycle through this frame

    def finish(self, again: bool) -> None:
        """Queue the callbacks in the current run of the engine, which calls them, and those they queue, at its end.

        Args:
            again: whether the end may be reached once more, with the same callbacks.
        """
        if not self._finished:
            self.end = HookState(self.callbacks) if again else None
            for callback in self.callbacks:
                queue_engine_callback(callback)
        if not again:
            self.callbacks.clear()
        self._finished = True

    def run_tensor_hooks(self, node: Node, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Run the hooks of the tensors that `node` created (`Tensor.register_hook`, then `retain_grad`).

        Hooks of freed tensors cannot be listed. The engine runs them if a node's inputs are both the roots and the
        `inputs=` of a backward, without executing the node (engine.cpp, evaluate_function, captures). Without any
        defined gradient there is no root to start from, and no hook runs.
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
        """Let the engine execute one node with all its hooks, and no other.

        This is for tasks that are impossible from Python: creating zeros for undefined gradients as a custom Function
        requests, and freeing hidden saved tensors. A post-hook takes the outputs. Then it, or with `free` a pre-hook of
        the next node, ends the run.

        Args:
            node: the node.
            gradients: its inputs.
            wanted: the edges to next nodes to pass as `inputs=`, if any; with `free` all of them, and none of these
                nodes may have hooks.
            free: whether the engine should free the node's saved tensors.
            on_start: called with the node's inputs, after its pre-hooks.
        """
        taken: list[Tensor | None] = []

        def take(outputs: tuple[Tensor | None, ...], inputs: object) -> None:
            taken.extend(outputs)
            if self.streams is not None:
                self.streams.after_engine(outputs)
            # engine.cpp, evaluate_function: post-hooks run inside call_function; release_variables (without keep_graph)
            # and the queueing of outputs follow it. So an error raised here ends the run before the release, and one
            # raised by the next node's pre-hook ends it after.
            if not free:
                raise _Enough

        def stop(inputs: object) -> None:
            raise _Enough

        roots = [GradientEdge(node, number) for number, each in enumerate(gradients) if each is not None]
        given = [gradient for gradient in gradients if gradient is not None]
        with ExitStack() as stack:
            if not roots:  # the engine needs a root to start from; the pre-hook hides it from the node
                shape, dtype, device, _ = input_metadata(node)[0]
                zeros = torch.zeros((), dtype=dtype, device=device).expand(shape or ())
                roots, given = [GradientEdge(node, 0)], [zeros]
                stack.callback(own(node.register_prehook(lambda inputs: (None,) * len(gradients))).remove)
            if on_start is not None:
                stack.callback(own(node.register_prehook(on_start)).remove)
            stack.callback(register_post_hook(node, take).remove)
            if free:
                for next_node in {edge.node for edge in wanted}:
                    stack.callback(own(next_node.register_prehook(stop)).remove)
            if torch.is_anomaly_enabled():  # it would report the end of this run; the caller checks for NaN
                stack.enter_context(torch.autograd.set_detect_anomaly(False))
            stack.enter_context(suppress(_Enough))
            run_engine(roots, given, self.keep_graph, self.create_graph, list(wanted), accumulate=not wanted)
        return taken


class _Enough(BaseException):
    """Ends a run of the engine that has served its purpose."""

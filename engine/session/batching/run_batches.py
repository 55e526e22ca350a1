"""Runs the products of several tasks as one: `engine="direct", batch="auto"`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter_ns
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from ....inspector.graph.freed_nodes import is_spent
from ....inspector.graph.graph import Edge, Graph, unique_name
from ....inspector.torch_private.engine import retains_any, run_engine
from ....inspector.torch_private.hooks import node_hooks
from ....inspector.torch_private.nodes import call_node
from ....inspector.torch_private.saved_variables import free_saved, saved_variables
from ....inspector.torch_private.tensors import version_of
from ....inspector.torch_private.thread_state import without_torch_function
from ....inspector.validation import a_kind
from ...execution.accumulation_rule import PYTORCHS, Accumulation
from ...execution.find_hooks import no_hooks
from ...execution.input_buffer import fits
from ...execution.node_runner import Runner
from ...execution.pending_inputs import InputBuffers
from ...execution.run_hooks import hook_name, run_tensor_hooks
from ...execution.torch_nodes import TaskRunner
from ...recording.batch_report import Batch, Fallback
from ...recording.recorder import Recorder
from ...schedule.batch_queues import HoldingChoiceQueue, HoldingQueue
from ...schedule.device_queues import AnyQueue
from ..breakpoints.stop_list import Stops
from .batched_products import FUNCTIONS, Operands, Outputs, Tally, addend_shape, alone, launches_of, stacked, summed
from .find_batches import find_batches
from .product_groups import Group, GroupRules


class GroupLoop(Protocol):
    """The part of a `DirectBackward` that running a group needs."""

    graph: Graph
    stops: Stops
    queue: AnyQueue
    buffers: InputBuffers
    order: list[int]
    recorder: Recorder | None

    def execute(self, task_id: int, hooks: bool, by_hand: bool = False) -> None: ...

    def deliver(self, edge: Edge, outputs: list[Tensor | None]) -> None: ...

    def fail(self, error: BaseException, task_id: int) -> None: ...


class _Tree:
    """A sum of products under way: the operands left by its tasks, in the order in which they ran.

    Attributes:
        group: the group.
        output: number of the output that is summed.
        paths: for each task, the tasks between it and the sum, which only change the layout.
        left: its tasks that have not run.
        kept: the operands of the others.
    """

    def __init__(self, group: Group, graph: Graph) -> None:
        self.group = group
        (self.output,) = group.outputs
        self.paths: dict[int, tuple[int, ...]] = {}
        for task_id in group.tasks:
            edge = next(edge for edge in graph.out_edges[task_id] if edge.output == self.output)
            path = []
            while (edge.next_task, edge.input) != group.into:
                path.append(edge.next_task)
                (edge,) = graph.out_edges[edge.next_task]
            self.paths[task_id] = tuple(path)
        self.left = set(group.tasks)
        self.kept: list[Operands] = []
        self._versions: list[tuple[int, int]] = []  # versions of gradient and factor

    def add(self, member: Operands) -> None:
        """Keep the operands of one of its tasks, instead of multiplying them."""
        self.left.discard(member.product.task)
        self.kept.append(replace(member, others={self.output: member.others[self.output]}))
        self._versions.append((version_of(member.gradient), version_of(member.others[self.output])))

    def total(self, graph: Graph, order: Sequence[int], batches: list[Batch]) -> Tensor:
        """Return the sum of the kept operands' products, and release the operands.

        Args:
            graph: the graph.
            order: ids of the tasks that have run.
            batches: receives the record of a sum that combines several products.

        Raises:
            RuntimeError: a factor or a gradient was modified in place since its task ran.
        """
        kept, output = self.kept, self.output
        for each, versions in zip(kept, self._versions, strict=True):
            now = version_of(each.gradient), version_of(each.others[output])
            if now != versions:
                modified = "the gradient" if now[0] != versions[0] else f'"{each.product.other(output).slot}"'
                task = graph.in_order(order).describe(each.product.task)
                raise RuntimeError(
                    f"{modified} of {task} was modified in place after the task ran and before the batched product was "
                    "computed; run this backward without batch="
                )
        tasks = tuple(each.product.task for each in kept)
        waited = kept[:-1]  # these operands were kept until the last task
        factors = {each.others[output].data_ptr(): each.others[output].nbytes for each in waited}
        held = sum(each.gradient.nbytes for each in waited) + sum(factors.values())
        del waited
        tally, begun_ns = Tally(), perf_counter_ns()
        found = summed(kept, output, tally)
        elapsed_ns = perf_counter_ns() - begun_ns
        before = launches_of(self.group.product, self.group.outputs, None) * len(tasks) + len(tasks) - 1
        kept.clear()
        if len(tasks) > 1:
            batches.append(Batch("tree", tasks, before, tally.launches, tally.copied_bytes, held, elapsed_ns))
        return found


class GroupRunner:
    """Runs the groups of one backward that can run as one.

    The tasks of a stack are held back until all of them are ready, and then run in one step. The tasks of a tree run
    one by one; each keeps its operands and adds nothing to the sum, and the last computes the product of all.

    Tensor hooks are called and retained gradients set right before the product, one task after the other. If something
    else needs the single tasks, the group is dissolved, and each task runs alone, as it would have without the group.

    Args:
        runner: runs tasks alone.
        rules: thresholds for groups.
        accumulation: how gradients are summed.
        batches, fallbacks: lists to which batches, and groups that could not run as one, are appended.
    """

    def __init__(
        self,
        runner: TaskRunner,
        rules: GroupRules | None,
        accumulation: Accumulation,
        batches: list[Batch],
        fallbacks: list[Fallback],
    ) -> None:
        self._runner = runner
        self._graph = graph = runner.graph
        self._accumulation = accumulation
        self._batches = batches
        self._fallbacks = fallbacks
        self._stacks: dict[int, Group] = {}
        self._trees: dict[int, dict[int, _Tree]] = {}  # by task and output
        self._at = 0
        found = find_batches(graph, rules)
        self._products = found.products
        for group in found.backward:
            if (why := self._obstacle(group)) is not None:
                fallbacks.append(Fallback(group.kind, group.tasks, why))
            elif group.kind == "tree":
                tree = _Tree(group, graph)
                for task_id in group.tasks:
                    self._trees.setdefault(task_id, {})[tree.output] = tree
            else:
                self._stacks.update(dict.fromkeys(group.tasks, group))
        self.tasks = frozenset([*self._stacks, *self._trees])

    def __contains__(self, task_id: int) -> bool:
        return task_id in self._stacks or task_id in self._trees

    def together(self, task_id: int) -> tuple[int, ...]:
        """Return the tasks to run at the same time as this one, including itself; empty if it runs alone."""
        group = self._stacks.get(task_id)
        return () if group is None else group.tasks

    def execute(self, loop: GroupLoop, task_id: int, hooks: bool, by_hand: bool, last: int | None) -> None:
        """Run the chosen task and the tasks batched with it.

        Args:
            loop: the backward.
            task_id: id of the task.
            hooks: whether there may be hooks.
            by_hand: whether the task was chosen by hand.
            last: the task before which the run stops.
        """
        stack = self._stacks.get(task_id)
        if stack is not None and (why := self._why_not_together(loop, stack, task_id, last)) is not None:
            self._dissolve(loop, stack, why)
            stack = None
        queue = loop.queue
        assert isinstance(queue, HoldingQueue | HoldingChoiceQueue), "groups need a queue that holds tasks back"
        others = () if stack is None else queue.in_order(stack.tasks)
        task_ids = [task_id, *(each for each in others if each != task_id)]
        found = self._of(task_ids)
        if found and (why := self._why_alone(loop, task_ids, hooks)) is not None:
            for group in found:
                self._dissolve(loop, group, why)
            found = []
        if found:
            self._run_all(loop, task_ids, by_hand)
        else:
            loop.execute(task_id, hooks, by_hand)

    def dissolve_all(self, loop: GroupLoop, why: Callable[[str], str]) -> None:
        """Dissolve all groups, so that every task runs alone. `why` returns the reason from the name of a task."""
        for group in self._of([*self._stacks, *self._trees]):
            self._dissolve(loop, group, why(self._name_of(group.tasks[0])))

    def _obstacle(self, group: Group) -> str | None:
        """Return the reason why a group cannot run as one in this backward."""
        first, runner = group.tasks[0], self._runner
        if runner.graph_task.create_graph:
            return f"create_graph=True records {self._name_of(first)} as an operation that can be differentiated again"
        if group.product.function not in FUNCTIONS:
            return f"{self._name_of(first)} is a {group.product.function}, whose backward cannot be batched"
        if self._accumulation != PYTORCHS:
            how = self._accumulation.name
            return f"gradients are not summed by PyTorch's rule ({how}), including those of {self._name_of(first)}"
        if runner.needed is not None:
            for task_id in group.tasks:
                if not all(edge.next_task in runner.needed for edge in self._graph.out_edges[task_id]):
                    return f"inputs= leaves out an output of {self._name_of(task_id)}"
        return None

    def _name_of(self, task_id: int) -> str:
        return unique_name(self._graph, task_id)

    def _of(self, task_ids: Sequence[int]) -> list[Group]:
        """Return the groups that contain these tasks."""
        found: dict[int, Group] = {}
        for task_id in task_ids:
            of_task = [tree.group for tree in self._trees.get(task_id, {}).values()]
            if task_id in self._stacks:
                of_task.append(self._stacks[task_id])
            found.update((id(group), group) for group in of_task)
        return list(found.values())

    def _why_not_together(self, loop: GroupLoop, stack: Group, task_id: int, last: int | None) -> str | None:
        """Return the reason why a stack's tasks cannot run at the same time."""
        describe = self._name_of
        missing = next((each for each in stack.tasks if each not in loop.queue), None)
        if missing is not None:
            return f"{describe(task_id)} was run before {describe(missing)} was ready"
        others = [each for each in stack.tasks if each != task_id]
        if last in others:
            return f"the run stops before {describe(others[others.index(last)])}"
        for each in others:
            for breakpoint_ in loop.stops.breakpoints:
                if breakpoint_.tasks is None or each in breakpoint_.tasks:
                    return f"breakpoint {breakpoint_.number} ({breakpoint_.text}) may stop before {describe(each)}"
        return None

    def _why_alone(self, loop: GroupLoop, task_ids: Sequence[int], hooks: bool) -> str | None:
        """Return the reason why these tasks have to run alone; run the tensor hooks if there is no other reason."""
        if torch.is_anomaly_enabled():
            return f"anomaly mode checks the outputs of {self._name_of(task_ids[0])}"
        spent = next((task_id for task_id in task_ids if is_spent(self._graph.nodes[task_id])), None)
        if spent is not None:
            return f"another session has run {self._name_of(spent)}"
        trees = [tree for task_id in task_ids for tree in self._trees.get(task_id, {}).values()]
        quiet = no_hooks(look=bool(trees))
        why = self._hooked(task_ids, trees) if not quiet else self._retained(trees)
        why = why or self._unusual(loop, task_ids)
        if why is not None or not hooks:
            return why
        if quiet:
            # Set the .grad of tensors that retain it, without hooks, in one engine run whose roots are also its inputs.
            edges = [GradientEdge(self._graph.nodes[task_id], 0) for task_id in task_ids]
            buffers = [loop.buffers.by_task[task_id] for task_id in task_ids]
            given = [gradient for buffer in buffers for gradient in buffer.gradients if gradient is not None]
            run_engine(edges, given, True, False, edges)
            return None
        for place, task_id in enumerate(task_ids):
            names: list[tuple[str, str]] = []  # each hook's kind and name
            node, gradients = self._graph.nodes[task_id], loop.buffers.by_task[task_id].gradients
            try:
                gradients[:] = run_tensor_hooks(
                    self._runner.graph_task, node, gradients, lambda *hook, names=names: names.append(hook)
                )
            except BaseException as error:
                loop.fail(error, task_id)
                raise
            if names:
                self._runner.hooked.update({**dict.fromkeys(task_ids[:place], ()), task_id: tuple(names)})
                at = self._name_of(task_id)
                return f"the tensor of {at} has the hook {names[0][1]}, which needs that task alone"
        return None

    def _hooked(self, task_ids: Sequence[int], trees: Sequence[_Tree]) -> str | None:
        """Return the hook that needs these tasks to run alone.

        For trees, any tensor hook does: nothing may modify the kept operands before the tree's last task, or look
        between its tasks and the sum.
        """
        describe = self._name_of
        for task_id in task_ids:
            hook = next((hook for hooks in node_hooks(self._graph.nodes[task_id]) for hook in hooks), None)
            if hook is not None:
                return f"{describe(task_id)} has the hook {hook_name(hook)}, which needs that task alone"
        if trees:
            at = describe(task_ids[0])
            return f"torch cannot list tensor hooks, and there may be one between {at} and the sum"
        return None

    def _retained(self, trees: Sequence[_Tree]) -> str | None:
        for tree in (tree for tree in trees if not tree.kept):
            between = {task_id: self._graph.nodes[task_id] for path in tree.paths.values() for task_id in path}
            if retains_any(list(between.values())):
                at = self._name_of(min(between))
                return f"the tensor of {at}, or another between such a product and the sum, retains its gradient"
        return None

    def _unusual(self, loop: GroupLoop, task_ids: Sequence[int]) -> str | None:
        """Return the reason why a gradient cannot be stacked with the others."""
        for task_id in task_ids:
            (gradient,) = loop.buffers.by_task[task_id].gradients
            if gradient is None:
                return f"{self._name_of(task_id)} received no gradient"
            if type(gradient) is not Tensor:
                return f"the gradient of {self._name_of(task_id)} is {a_kind(gradient)}"
            if not fits(gradient, self._graph.tasks[task_id].inputs[0]) or gradient._is_zerotensor():
                return f"the gradient of {self._name_of(task_id)} has another layout than the others"
        return None

    def _run_all(self, loop: GroupLoop, task_ids: Sequence[int], by_hand: bool) -> None:
        """Run these tasks, all of one stack, or one of trees."""
        recorder, runner = loop.recorder, self._runner
        gradients = [loop.buffers.by_task[task_id].gradients for task_id in task_ids]
        if recorder is not None:
            for task_id, its in zip(task_ids, gradients, strict=True):
                recorder.start(task_id, its, by_hand and task_id == task_ids[0])
        # All leave the queue before any of them runs, as a single task does in ReadyQueue::pop.
        for task_id in task_ids:
            loop.buffers.by_task.pop(task_id)
            loop.queue.remove(task_id)
        self._at, last = task_ids[0], task_ids[-1]
        if runner.memory is not None:  # the memory is attributed to the last task
            for task_id, its in zip(task_ids, gradients, strict=True):
                runner.memory.begin(task_id)
                runner.memory.summed(task_id)
                runner.memory.start(task_id, its)
                if task_id != last:
                    runner.memory.end(task_id, ())
        try:
            found = self._outputs(loop, task_ids, gradients)
            if recorder is not None:
                recorder.end_together(task_ids, found)
            for task_id, outputs in zip(task_ids, found, strict=True):
                self._at = task_id
                runner.fit(self._graph.tasks[task_id], outputs)
            if runner.memory is not None:
                runner.memory.end(last, found[-1])
            loop.order.extend(task_ids)
            for task_id, outputs in zip(task_ids, found, strict=True):
                self._at = task_id
                for edge in self._graph.out_edges[task_id]:
                    loop.deliver(edge, outputs)
                outputs.clear()
        except BaseException as error:
            loop.fail(error, self._at)
            raise

    def _outputs(
        self, loop: GroupLoop, task_ids: Sequence[int], gradients: Sequence[list[Tensor | None]]
    ) -> list[Outputs]:
        """Return the outputs of these tasks, then empty their buffers and free their nodes."""
        stack = self._stacks.get(task_ids[0])
        members = []
        for task_id, its in zip(task_ids, gradients, strict=True):
            (gradient,) = its
            assert gradient is not None, "_unusual has checked it"
            self._at = task_id
            node = self._runner.graph_task.node = self._graph.nodes[task_id]
            product = self._products[task_id]
            members.append(Operands.of(product, node, gradient, product.wanted))
            its.clear()  # otherwise the buffer keeps the gradient alive during the product
        with without_torch_function():  # as in a C++ node, which ignores __torch_function__ of its factors
            found: list[Outputs] = [[None] * each.width for each in members]
            if stack is not None:
                addend = addend_shape(self._graph, [each.product for each in members])
                tally, begun_ns = Tally(), perf_counter_ns()
                found = stacked(members, stack.outputs, addend, tally)
                elapsed_ns = perf_counter_ns() - begun_ns
                before = launches_of(stack.product, stack.outputs, addend) * len(members)
                tasks = tuple(each.product.task for each in members)
                batch = Batch(stack.kind, tasks, before, tally.launches, tally.copied_bytes, 0, elapsed_ns)
                self._batches.append(batch)
                for task_id in tasks:
                    del self._stacks[task_id]
            for member, outputs in zip(members, found, strict=True):
                self._at = member.product.task
                self._complete(loop, member, outputs)
        # evaluate_function (engine.cpp) calls release_variables() right after a node has run, before its outputs are
        # queued.
        if self._runner.frees:
            for task_id in task_ids:
                free_saved(saved_variables(self._graph.nodes[task_id]))
        return found

    def _complete(self, loop: GroupLoop, member: Operands, outputs: Outputs) -> None:
        """Compute the outputs that the stack did not: those of trees, and the others one by one."""
        product = member.product
        trees = self._trees.pop(product.task, {})
        for output in product.wanted:
            if outputs[output] is None and output not in trees:
                outputs[output] = alone(member, output)
        if product.addend is not None and outputs[product.addend] is None:
            beta = product.beta
            outputs[product.addend] = member.gradient if beta == 1 else member.gradient * beta.conjugate()
        for output, tree in trees.items():
            tree.add(member)
            if not tree.left:
                outputs[output] = tree.total(self._graph, loop.order, self._batches)

    def _dissolve(self, loop: GroupLoop, group: Group, why: str) -> None:
        """Dissolve a group, so that its tasks run alone; add the operands kept by a tree to its sum."""
        left, tree = group.tasks, None
        for task_id in group.tasks:
            if group.kind == "tree":
                trees = self._trees.get(task_id, {})
                tree = trees.pop(group.outputs[0], None) or tree
                if not trees:
                    self._trees.pop(task_id, None)
            else:
                self._stacks.pop(task_id, None)
        if tree is not None:
            left = tuple(task_id for task_id in group.tasks if task_id in tree.left)
            if tree.kept:
                self._add_partial(loop, tree)
        else:
            assert isinstance(loop.queue, HoldingQueue | HoldingChoiceQueue), (
                "groups need a queue that holds tasks back"
            )
            loop.queue.release(group.tasks)
        self._fallbacks.append(Fallback(group.kind, left, why))

    def _add_partial(self, loop: GroupLoop, tree: _Tree) -> None:
        """Add the products of a tree's kept operands to its sum, past the layout nodes, which received nothing from
        them."""
        assert tree.group.into is not None, "a tree has a sum"
        ran = next(task_id for task_id in tree.group.tasks if task_id not in tree.left)
        gradient: Tensor | None
        with without_torch_function():
            gradient = tree.total(self._graph, loop.order, self._batches)
        for task_id in tree.paths[ran]:
            (gradient,) = call_node(self._graph.nodes[task_id], [gradient])
        task_id, number = tree.group.into
        buffer = loop.buffers.of(task_id)
        if gradient is not None:
            buffer.add(number, gradient)


def group_runner(
    batch: Literal["auto"] | GroupRules,
    runner: Runner,
    accumulation: Accumulation,
    batches: list[Batch],
    fallbacks: list[Fallback],
) -> GroupRunner:
    """Return the runner of this backward's groups.

    Raises:
        NotImplementedError: the nodes are not torch's.
    """
    if not isinstance(runner, TaskRunner):
        raise NotImplementedError(
            "batch= joins the products of torch's nodes and does not support a tape; leave it out"
        )
    return GroupRunner(runner, None if batch == "auto" else batch, accumulation, batches, fallbacks)

"""`ts.find_batches`: finds matrix products that can run as one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import prod

from torch import nn

from ....inspector.capture.build_graph import graph_meant
from ....inspector.garbage_collector import collector_paused
from ....inspector.graph.graph import Edge, Graph, Outputs
from ....inspector.graph.matrix_products import Factor, Product, Side, products_of
from ....inspector.graph.operations_and_calls import Operation
from ....inspector.graph.paths_and_repeats import ranks_from
from ....inspector.text.progress import telling
from ....inspector.torch_private.saved_variables import saved_facts
from ...recording.batch_report import GroupKind
from .batched_products import addend_shape, launches_of
from .product_groups import Direction, Group, GroupRules, Groups, Refused, unequal_shapes, without_gain


@dataclass(frozen=True, slots=True)
class ReadyBatch:
    """Tasks of one key that were ready at the same time, and so do not depend on each other.

    Attributes:
        tasks: their ids, ascending.
        ready_since: number of the batch before which the last of them became ready; 0 at the start.
    """

    tasks: tuple[int, ...]
    ready_since: int


def levels(nexts: Sequence[Sequence[int]], waits: Sequence[int]) -> list[int]:
    """Return, for each task, the length in edges of the longest path that leads to it."""
    return ranks_from(nexts, list(waits))[0]


def batches(nexts: Sequence[Sequence[int]], waits: Sequence[int], keys: Mapping[int, int]) -> list[ReadyBatch]:
    """Simulate the graph, holding back tasks with a key until nothing else can run; then all ready tasks of one key
    form a batch. Return the batches in the order in which they ran.

    **Why no batch creates a cycle.** The simulation runs all tasks in an order in which each comes after its
    predecessors, and the members of a batch are adjacent. Replace each batch by one task: every edge still leads
    forward in the order, so the graph with all batches merged has no cycle. Members do not depend on each other,
    because none had run when all were ready. Any part of a batch may be used alone.

    If several keys are ready, the one whose tasks have the lowest average level over the entire graph runs first.
    Otherwise the first tasks to become ready would run alone, and others of their kind after them (Neubig, Goldberg and
    Dyer, On-the-fly Operation Batching in Dynamic Computation Graphs, NeurIPS 2017). A group may contain
    tasks of one level, and tasks at different places of a chain, such as the losses that a loop adds up.

    The time is O(edges + tasks log tasks).

    Args:
        nexts: the successors of each task, one per edge.
        waits: the number of incoming edges of each task.
        keys: the key of each task that may be batched with others of the same key.
    """
    missing, level = list(waits), levels(nexts, waits)
    depths, counts = Counter[int](), Counter(keys.values())  # per key, of the tasks that have not run
    for task, key in keys.items():
        depths[key] += level[task]
    waiting: dict[int, list[int]] = {}
    since: dict[int, int] = {}
    heap: list[tuple[float, int]] = []
    found: list[ReadyBatch] = []
    free = [task for task, count in enumerate(missing) if not count]
    while free or heap:
        while free:
            task = free.pop()
            if task in keys:
                key = keys[task]
                if key not in waiting:
                    waiting[key] = []
                    # None of a key's tasks runs while it is held back, so its place in the heap stays valid.
                    heappush(heap, (depths[key] / counts[key], key))
                waiting[key].append(task)
                since[key] = len(found)
                continue
            for later in nexts[task]:
                missing[later] -= 1
                if not missing[later]:
                    free.append(later)
        if heap:
            key = heappop(heap)[1]
            tasks = tuple(sorted(waiting.pop(key)))
            found.append(ReadyBatch(tasks, since.pop(key)))
            depths[key] -= sum(level[task] for task in tasks)
            counts[key] -= len(tasks)
            for task in tasks:
                for later in nexts[task]:
                    missing[later] -= 1
                    if not missing[later]:
                        free.append(later)
    return found


_Source = tuple[int, int, tuple[Hashable, ...]]
"""A task, the number of its input, and the layout nodes between the product and that input."""

_LAYOUT = frozenset({"T", "Transpose", "Permute", "View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze"})
"""Short names of nodes that only change the layout of their gradient."""

_WHY = {
    "modified": "was modified in place after the forward, so a backward will raise",
    "packed": "is packed by saved_tensors_hooks (a checkpoint), and stacking would unpack all at once",
    "gone": "was freed by a backward; call find_batches before it, or on a fresh forward",
    "not saved": "is not saved by the node",
}


def search(graph: Graph, products: Mapping[int, Product], rules: GroupRules) -> tuple[list[Group], list[Refused]]:
    """Return the groups of a graph's products, and those refused. Nearly linear in the size of the graph."""
    trees, claimed, refused = _Trees(graph, products, rules).search()
    backward, more = _Stacks(graph, products, rules, "backward", claimed).search()
    forward, last = _Stacks(graph, products, rules, "forward", {}).search()
    return [*backward, *trees, *forward], [*refused, *more, *last]


class _Sources:
    """The destinations of factors' gradients, which identify each factor in the forward."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._roots = {root.task for root in graph.roots}
        self._facts: dict[int, Hashable] = {}

    def of(self, edge: Edge) -> _Source:
        """Return the destination of an edge, past nodes that only change the layout. Takes time linear in that
        chain."""
        graph, between = self._graph, list[Hashable]()
        while True:
            task = edge.next_task
            if task not in self._facts:  # how the node changes the layout; None if it does more, or has other inputs
                alone = len(graph.in_edges[task]) == len(graph.out_edges[task]) == 1 and task not in self._roots
                layout = alone and graph.tasks[task].short_name in _LAYOUT
                saved = saved_facts(graph.nodes[task]) if layout else None
                self._facts[task] = None if saved is None else (graph.tasks[task].name, saved)
            facts = self._facts[task]
            if facts is None:
                return task, edge.input, tuple(between)
            between.append(facts)
            (edge,) = graph.out_edges[task]


class _Trees:
    """Products summed in one input buffer: the gradient of a parameter that many products used.

    **Why a tree creates no cycle.** Its one product runs after all its members and right before the task in whose
    buffer the sum is. That task waits for each of them anyway. So nothing is delayed further, except nodes in between
    that only change the layout and lead nowhere else. If groups of other outputs are also joined, an edge from a member
    to that task is an edge from the member's group; an order of those groups is also an order with the tree's product
    placed before its task.
    """

    def __init__(self, graph: Graph, products: Mapping[int, Product], rules: GroupRules) -> None:
        self._graph = graph
        self._products = products
        self._rules = rules
        self._refused: dict[str, list[int]] = defaultdict(list)

    def search(self) -> tuple[list[Group], dict[int, set[int]], list[Refused]]:
        """Return the trees, the outputs they compute by task, and the products refused."""
        sources = _Sources(self._graph)
        summed: dict[tuple[_Source, Hashable], list[tuple[int, int]]] = defaultdict(list)
        for task, product in self._products.items():
            if product.function == "convolution":
                continue
            for edge in self._graph.out_edges[task]:
                if edge.output in product.wanted:
                    factor, meta = product.factor(edge.output), (product.result.dtype, product.result.device)
                    alike = product.function, edge.output, factor.shape, meta, product.alpha
                    summed[sources.of(edge), alike].append((task, edge.output))
        ends = levels(*_as_backward(self._graph)) if any(len(members) > 1 for members in summed.values()) else []
        trees, claimed = [], defaultdict[int, set[int]](set)
        for ((task, number, _), _), members in summed.items():
            tasks = self._allowed([task for task, _ in members], members[0][1])
            if not tasks:
                continue
            tree = self._tree(tasks, members[0][1], (task, number), ends)
            trees.append(tree)
            for each in tasks if tree.gains else ():
                claimed[each].add(members[0][1])
        refused = [Refused(tuple(tasks), why) for why, tasks in self._refused.items()]
        return [tree for tree in trees if tree.gains], claimed, [*refused, *without_gain(trees)]

    def _allowed(self, tasks: list[int], output: int) -> list[int]:
        """Return the tasks that may be joined; empty if there are too few, or if joining is slower."""
        if len(tasks) < 2:
            return []
        rules, products = self._rules, [self._products[task] for task in tasks]
        usable = [product.task for product in products if product.other(output).kept == "saved"]
        if len(usable) >= rules.min_fusion_size:
            for product in products:
                if (kept := product.other(output).kept) != "saved":
                    self._refused[_slot_reason(product, output, kept)].append(product.task)
            inner = max(_inner(product, output) for product in products)
            *_, rows, columns = products[0].factor(output).shape
            if rules.fast_for_reduce(rows, inner, columns):
                return usable
            why = (
                f"sums of {rows:,}×{inner:,} @ {inner:,}×{columns:,} are not faster as one product (fast_inner "
                f"{rules.fast_inner:,}, fast_side {rules.fast_side:,})"
            )
        elif len(tasks) >= rules.min_fusion_size:
            product = next(product for product in products if product.other(output).kept != "saved")
            why = _slot_reason(product, output, product.other(output).kept)
        else:
            why = f"the sum has only {len(tasks)} products, and min_fusion_size is {rules.min_fusion_size}"
        self._refused[why].extend(tasks)
        return []

    def _tree(self, tasks: list[int], output: int, into: tuple[int, int], ends: list[int]) -> Group:
        products = [self._products[task] for task in tasks]
        others = [product.other(output) for product in products]
        side: Side = "right" if output == products[0].left.output else "left"
        shared = _is_one([other.identity for other in others])
        gradients = sum(product.result.nbytes or 0 for product in products)
        itemsize = products[0].result.dtype.itemsize
        distinct = {other.identity: other.numel * itemsize for other in others}
        each = launches_of(products[0], (output,), None)
        return Group(
            "tree",
            "backward",
            tuple(tasks),
            (output,),
            products[0],
            (side,) if shared else (),
            _span(tasks, ends),
            each * len(tasks) + len(tasks) - 1,
            each + 2,  # two concatenations; with a shared factor, one stacking and one sum instead
            gradients + (0 if shared else sum(other.numel for other in others) * itemsize),
            into,
            gradients + sum(distinct.values()),
        )


class _Stacks:
    """Products of one shape that do not depend on each other. `claimed` has the outputs that trees compute, by task."""

    def __init__(
        self,
        graph: Graph,
        products: Mapping[int, Product],
        rules: GroupRules,
        direction: Direction,
        claimed: Mapping[int, Iterable[int]],
    ) -> None:
        self._graph = graph
        self._products = products
        self._rules = rules
        self._direction = direction
        self._refused: dict[str, list[int]] = defaultdict(list)
        self._sources = _Sources(graph)
        self._outputs: dict[int, tuple[int, ...]] = {}
        for task, product in products.items():
            if direction == "forward":
                if isinstance(graph.tasks[task].operation, Operation):
                    self._outputs[task] = ()
            elif outputs := tuple(sorted(set(product.wanted).difference(claimed.get(task, ())))):
                self._outputs[task] = outputs

    def search(self) -> tuple[list[Group], list[Refused]]:
        forward = self._direction == "forward"
        if len(self._outputs) < 2:
            return [], []
        nexts, waits = _as_backward(self._graph)
        if forward:
            nexts = [[edge.task for edge in edges] for edges in self._graph.in_edges]
            waits = list(map(len, self._graph.out_edges))
        ends = levels(nexts, waits)
        found, small = [], []
        numbers: dict[Hashable, int] = {}  # keys are slow to hash, so number them
        keys = {task: numbers.setdefault(self._key(task), len(numbers)) for task in self._outputs}
        for number, batch in enumerate(batches(nexts, waits, keys)):
            if len(batch.tasks) < self._rules.min_fusion_size:
                small.append((number, batch))
            elif tasks := self._allowed(batch.tasks):
                found += [self._group(part, ends) for part in self._parts(tasks)]
        self._refuse_small(small)
        refused = [Refused(tuple(tasks), why, self._direction) for why, tasks in self._refused.items()]
        return [group for group in found if group.gains], [*refused, *without_gain(found)]

    def _key(self, task: int) -> Hashable:
        product = self._products[task]
        if self._direction == "backward":
            return product.signature, self._outputs[task]
        shapes = product.left.shape, product.right.shape
        return product.function, shapes, product.result, product.alpha, product.beta, product.settings

    def _used(self, product: Product) -> list[tuple[Side, Factor]]:
        """Return the factors by which the group multiplies."""
        sides: list[tuple[Side, Factor]] = [("left", product.left), ("right", product.right)]
        if self._direction == "forward":
            return sides
        asked = [product.other(output) for output in self._outputs[product.task]]
        return [(side, factor) for side, factor in sides if factor in asked]

    def _allowed(self, tasks: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tasks that may be joined; empty if too few are left."""
        wrong: dict[str, list[int]] = defaultdict(list)
        for task in tasks:
            if (why := self._obstacle(self._products[task])) is not None:
                wrong[why].append(task)
        for why, found in wrong.items():
            self._refused[why].extend(found)
        gone = {task for found in wrong.values() for task in found}
        usable = tuple(task for task in tasks if task not in gone)
        if len(usable) >= self._rules.min_fusion_size:
            return usable
        if usable:
            self._refused[self._too_few(len(usable), self._products[usable[0]])].extend(usable)
        return ()

    def _parts(self, tasks: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Separate the products that share a factor if they are the majority, because that factor need not be
        copied."""
        rules, shares = self._rules, list[list[int]]()
        for side, _ in self._used(self._products[tasks[0]]):
            alike: dict[Hashable, list[int]] = defaultdict(list)
            for task in tasks:
                alike[self._identity(self._products[task], side)].append(task)
            alike.pop(None, None)
            shares += alike.values()
        most = max(shares, key=len, default=[])
        if not max(rules.how_many_is_many, rules.min_fusion_size, len(tasks) // 2 + 1) <= len(most) < len(tasks):
            return [tasks]
        rest = tuple(task for task in tasks if task not in set(most))
        if len(rest) >= rules.min_fusion_size:
            return [tuple(most), rest]
        if len(rest) > 1:
            self._refused[self._too_few(len(rest), self._products[rest[0]])].extend(rest)
        return [tuple(most)]

    def _obstacle(self, product: Product) -> str | None:
        if self._direction == "forward":
            operation = self._graph.tasks[product.task].operation
            if isinstance(operation, Operation) and operation.writes_in_place:
                return f"{operation.name} modifies its input in place"
        for _, factor in self._used(product):
            kept = factor.kept
            if kept == "modified" or (kept != "saved" and self._direction == "backward"):
                return f'"{factor.slot}" of {product.function} {_WHY[kept]}'
        largest = max(prod(product.result.shape or ()), *(factor.numel for _, factor in self._used(product)))
        if largest > self._rules.largest_side_numel:
            return (
                f"{product} has {largest:,} elements in one matrix, more than largest_side_numel "
                f"({self._rules.largest_side_numel:,}): large products gain nothing when stacked"
            )
        return None

    def _too_few(self, count: int, product: Product) -> str:
        return f"only {count} are {product}, and min_fusion_size is {self._rules.min_fusion_size}"

    def _refuse_small(self, small: list[tuple[int, ReadyBatch]]) -> None:
        """Record products that are near each other but too few, of equal or of different shapes.

        Those of different shapes were near each other if the last of them was ready when the first ran.
        """
        open_: dict[Hashable, tuple[int, list[ReadyBatch]]] = {}
        closed: list[list[ReadyBatch]] = []
        for number, batch in small:
            task = batch.tasks[0]
            product = self._products[task]
            sides = product.left.wanted, product.right.wanted, product.addend
            meta = product.result.dtype, product.result.device, product.alpha, product.beta, product.settings
            # products of one family differ only in their shapes
            family = product.function, self._outputs[task], meta, sides if self._direction == "backward" else ()
            start, together = open_.get(family, (number, []))
            if batch.ready_since > start:
                closed.append(together)
                start, together = number, []
            together.append(batch)
            open_[family] = start, together
        for together in [*closed, *(together for _, together in open_.values())]:
            tasks = sorted(task for batch in together for task in batch.tasks)
            if len(together) > 1 and len(tasks) >= self._rules.min_fusion_size:
                self._refused[unequal_shapes([self._products[task] for task in tasks])].extend(tasks)
                continue
            for batch in together:
                if len(batch.tasks) > 1:
                    why = self._too_few(len(batch.tasks), self._products[batch.tasks[0]])
                    self._refused[why].extend(batch.tasks)

    def _group(self, tasks: tuple[int, ...], ends: list[int]) -> Group:
        products = [self._products[task] for task in tasks]
        first, convolution = products[0], products[0].function == "convolution"
        outputs = self._outputs[tasks[0]]
        used = self._used(first)
        stacked, shared = 0, list[Side]()
        if self._direction == "backward":
            stacked += first.result.nbytes or 0
        itemsize = first.result.dtype.itemsize
        for side, factor in used:
            identities = [self._identity(product, side) for product in products]
            if self._is_shared(first, identities):
                shared.append(side)
            else:
                stacked += factor.numel * itemsize
        kind: GroupKind = "grouped_conv" if convolution else "bmm"
        if self._direction == "forward":
            before, after = 1, 1 + len(used) - len(shared)
            addends: list[Hashable] = [
                None if each.addend is None else self._sources.of(self._edge(each, each.addend)) for each in products
            ]
            if first.addend is not None and not self._is_shared(first, addends):
                after += 1
                edge = self._edge(first, first.addend)
                stacked += self._graph.tasks[edge.next_task].inputs[edge.input].nbytes or 0
        else:
            before = launches_of(first, outputs, addend_shape(self._graph, products))
            after = before + 1 + len(used) - len(shared)
        return Group(
            kind,
            self._direction,
            tasks,
            outputs,
            first,
            tuple(shared),
            _span(tasks, ends),
            before * len(tasks),
            after,
            stacked * len(tasks),
        )

    def _is_shared(self, product: Product, identities: list[Hashable]) -> bool:
        """Return whether factors of such products are one tensor and need no stacking.

        In the forward TorchScript requires many of them. In the backward `batch=` copies all batches of matrices, and
        operands of convolutions.
        """
        if product.function == "convolution" or not _is_one(identities):
            return False
        if self._direction == "forward":
            return len(identities) >= self._rules.how_many_is_many
        return len(product.result.shape or ()) < 3

    def _identity(self, product: Product, side: Side) -> Hashable:
        """Return a value that is equal for factors that are one tensor; None if unknown."""
        factor = product.left if side == "left" else product.right
        if factor.identity is None and factor.wanted and self._direction == "forward":
            return self._sources.of(self._edge(product, factor.output))
        return factor.identity

    def _edge(self, product: Product, output: int) -> Edge:
        return next(edge for edge in self._graph.out_edges[product.task] if edge.output == output)


def _as_backward(graph: Graph) -> tuple[list[list[int]], list[int]]:
    """Return the successors of each task in the backward, and its number of incoming edges."""
    nexts = [[edge.next_task for edge in edges] for edges in graph.out_edges]
    return nexts, list(map(len, graph.in_edges))


def _is_one(identities: list[Hashable]) -> bool:
    """Return whether the factors are one tensor."""
    return identities[0] is not None and len(set(identities)) == 1


def _inner(product: Product, output: int) -> int:
    """Return the number of rows over which one member of a tree sums (columns, for a left factor's gradient)."""
    shape = product.result.shape or (1, 1)
    return shape[-1] if output == product.left.output else prod(shape[:-1] if len(shape) != 3 else shape[1:2])


def _span(tasks: Iterable[int], ends: list[int]) -> tuple[int, int]:
    found = [ends[task] for task in tasks]
    return min(found), max(found)


def _slot_reason(product: Product, output: int, kept: str) -> str:
    return f'"{product.other(output).slot}" of {product.function} {_WHY[kept]}'


def find_batches(of: Outputs | Graph, rules: GroupRules | None = None, *, model: nn.Module | None = None) -> Groups:
    """Find the matrix products that could run as one, in a backward and in its forward.

    Nothing runs, no hooks either, and no tensor is kept.

        >>> import torch, tapescope as ts
        >>> x = torch.ones(8, 4)
        >>> weights = [torch.ones(4, 4, requires_grad=True) for _ in range(5)]
        >>> hidden = [(x @ weight).relu() @ weight for weight in weights]
        >>> [group.label for group in ts.find_batches(torch.stack(hidden).sum())]
        ['5 × mm → bmm', '5 × mm → bmm']

    Members of a group have the same shape, dtype and device, and need the same gradients. None depends on another, and
    with all groups joined at once the graph still has no cycle (see `batches` in the source). Products whose results
    are summed into one parameter's gradient form a "tree", which is one product of their concatenated operands.
    Products are not joined if the copies of their operands need as many launches as joining saves; `refused` has them.

    Groups of the forward consist of the operations that a capture recorded (`ts.capture`).

    Known limitations: only products that a gradient passes through are found. A dependency between forward operations
    is known only if autograd sees it, not through indices, Python numbers, or detached tensors.

    Args:
        of: as for `ts.graph`, or a graph.
        rules: thresholds; TorchScript's by default.
        model: the module from which modules and parameters are named, needed if the captured forward called only parts
            of it; pass several as one `nn.ModuleDict({"G": generator, "D": critic})`. None names them from each
            outermost module called.

    Raises:
        ValueError: the graph is from a file, without its nodes.
        TypeError: `rules` is not a GroupRules.
    """

    rules = GroupRules() if rules is None else rules
    if not isinstance(rules, GroupRules):
        raise TypeError(
            f"rules must be a ts.types.GroupRules, such as ts.types.GroupRules(min_fusion_size=2), got {rules!r}"
        )
    graph = graph_meant(of, model)
    if graph.is_tape:
        raise ValueError("find_batches does not support tapes of HIPS autograd, because their nodes hide their factors")
    if not graph.nodes:
        raise ValueError(f"{graph.why_no_nodes}, so its factors are unknown; pass the loss")
    with telling(None, "looking for groups") as tell, collector_paused():
        tell(f"products of matrices among {len(graph):,} tasks")
        products = products_of(graph)
        found, refused = search(graph, products, rules)
    return Groups(replace(graph, nodes=()), rules, tuple(found), tuple(refused), products)

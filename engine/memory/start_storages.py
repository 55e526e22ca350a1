"""Find the storages that a forward allocated and that are alive when its backward starts, from the graph alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from operator import itemgetter

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import Parameter

from ...inspector.graph.forward_allocations import ForwardAllocations, allocations_were_seen
from ...inspector.graph.graph import Graph
from ...inspector.graph.node_metadata import operation_of, tensors_of
from ...inspector.graph.operations_and_calls import Operation
from ...inspector.graph.saved_tensors import SavedTensor
from ...inspector.torch_private.checkpoints import cached_results, random_states, region_inputs, region_of
from ...inspector.torch_private.nodes import leaf_if_any, leaf_of
from ...inspector.torch_private.reference_counts import kept_by_others, owned_alone, storage_owned_alone
from ...inspector.torch_private.saved_variables import attributes_of, hides_saved, is_packed, saved_slots
from ...inspector.torch_private.sequence_numbers import UNNUMBERED, number_of
from ...inspector.torch_private.tensors import address_below, base_of, local_of, storage_of
from ...inspector.torch_private.thread_state import unobserved
from ..execution.find_hooks import TensorHooks, node_of
from .categories import BATCH, PARAMETERS
from .census import StorageCensus
from .estimates import BESIDE, CASTS, EARLIER, HELD_LEAVES, NO_STORAGE, NO_STORAGE_ON_CTX
from .task_memory import StartStorage
from .task_outputs import assumed_layout, assumed_result_bytes
from .timeline import LEAF, RANDOM_STATE, REGION, Maker


class ForwardStorages:
    """The storages that a forward left on one device, as described in `dry_run`; iteration yields each once.

    Args:
        graph: the graph; nothing else may hold a tensor of its `saved` meanwhile.
        device: the device of the storages.
        allocations: the tensors that the forward made without a node.
        hooks: the hooks of the graph's tensors.
        limit: callback for each unknown, with its task.
        autocast: the result of `autocast_casts` where the backward is called.

    Attributes:
        addresses: of saved storages, by their numbers in `Graph.saved`.
    """

    def __init__(
        self,
        graph: Graph,
        device: torch.device,
        allocations: ForwardAllocations,
        hooks: TensorHooks,
        limit: Callable[[str, int], None],
        autocast: Mapping[str, torch.dtype],
    ) -> None:
        self._autocast = autocast
        self._graph = graph
        self._device = device
        self._allocations = allocations
        self._hooks = hooks
        self._limit = limit
        self._casts = _casts_of_leaves(graph)
        self._older_casts, self._are_certainly_older = _older(graph, self._casts.values(), bool(autocast))
        self._of_parameters: set[int] = set()  # the numbers of saved storages
        self._constants: dict[int, int] = {}  # by address: bytes of saved tensors that count as inputs
        self._frozen: dict[int, int] = {}  # by address: bytes of parameters without gradient
        self._shown: set[int | None] = set()  # the tasks whose results were yielded
        self._of_casts: dict[int, int] = {}  # by number of a saved storage: the task of such a cast
        self.addresses, self._bytes_at = self._addresses_of_saved()
        self._tasks_of_regions: dict[Hashable, list[int]] = {}
        for task, node in enumerate(graph.nodes):
            if (region := region_of(node)) is not None:
                self._tasks_of_regions.setdefault(region, []).append(task)
        self._regions = self._kept_by_regions()

    def __iter__(self) -> Iterator[StartStorage]:
        yield from (storage for storage, _ in self.found())
        yield from self.unsaved_casts()

    @property
    def constant_bytes(self) -> int:
        """The bytes for `Timeline.constant_bytes`. Valid after `found`."""
        return 0 if allocations_were_seen(self._graph) else sum(self._constants.values())

    def add_older(self, census: StorageCensus) -> None:
        """Add saved tensors that are certainly from before the forward. Call this after `found`."""
        constants = self._constants if allocations_were_seen(self._graph) else {}
        for kind, older in ((PARAMETERS, self._frozen), (BATCH, constants)):
            for address, nbytes in older.items():
                census.storages.setdefault((self._device, address), (kind, nbytes))

    def unsaved_casts(self) -> list[StartStorage]:
        """Return the casts of weights that an open torch.autocast has cached and no node saved, such as a bias's. They
        have no tensor in Python."""
        graph, are_held = self._graph, {}
        for saved in graph.saved:
            if saved.storage is not None and (cast := self._of_casts.get(saved.storage)) is not None:
                are_held[cast] = saved.held
        if not all(are_held.values()):  # the cache was cleared since
            return []
        found = []
        for cast in self._casts.values():
            meta = graph.tasks[cast].inputs[0]
            is_cached = self._counts(meta.device) and meta.dtype is self._autocast.get(meta.device.type)
            if is_cached and cast not in are_held and cast not in self._shown and not self._is_older(cast):
                found.append(StartStorage(assumed_layout(meta).nbytes, (), True, self._maker(cast, set())))
        return found

    def found(self) -> Iterator[tuple[StartStorage, Tensor | SavedTensor | None]]:
        """Yield each storage with a tensor or a saved tensor on it; None for a root of which only the edge is known.

        Saved tensors are not unpacked here: that would take as long as everything else.
        """
        graph = self._graph
        allocations, of_casts = self._allocations, self._of_casts
        of_leaves: dict[int, int] = {}  # by address: the task of a leaf; one that the forward created, if any
        for task_id, leaf in graph.leaves.items():
            below, is_made = storage_of(leaf), task_id in allocations.leaves
            if below is not None and (is_made or below.address not in of_leaves):
                of_leaves[below.address] = task_id
        storages: dict[int, list[SavedTensor]] = {}
        slots_of_leaves: dict[int, list[tuple[int, str]]] = {}
        for saved in graph.saved:
            if saved.storage is None:
                self._limit(NO_STORAGE, saved.task)
            elif (leaf_task := of_leaves.get(self.addresses[saved.storage])) is not None:
                slots_of_leaves.setdefault(leaf_task, []).append((saved.task, saved.slot))
            elif self._bytes_at[saved.storage] in allocations.of_model or self._is_older(of_casts.get(saved.storage)):
                continue
            elif self._counts(saved.device) and saved.storage_bytes:
                storages.setdefault(saved.storage, []).append(saved)
        shown = self._shown
        for number, found in storages.items():
            held = any(saved.held for saved in found)
            makers = {saved.made_by for saved in found if saved.made_by is not None}
            if held and not makers and self._bytes_at[number] not in allocations.addresses:
                older = self._frozen if number in self._of_parameters else self._constants
                older[self.addresses[number]] = found[0].storage_bytes or 0
                continue
            for root in graph.roots:
                if root.task in makers and held:
                    shown.add(root.task)
            of_region = self._regions.get(self.addresses[number], ())
            kept = StartStorage(
                found[0].storage_bytes or 0,
                (*((saved.task, saved.slot) for saved in found), *of_region),
                held and not of_region,
                self._maker(min(makers) if makers else None, {saved.task for saved in found}),
            )
            yield kept, found[0]
        for task_id in of_leaves.values():
            if self._counts(graph.tasks[task_id].inputs[0].device):
                if task_id in allocations.leaves:
                    yield self._of_leaf(task_id, slots_of_leaves.get(task_id, [])), leaf_of(graph.nodes[task_id])
                elif task_id in allocations.unsure:
                    self._limit(HELD_LEAVES, task_id)
        known = {*of_leaves, *self.addresses.values()}
        for made_by, storage, tensor in [*self._in_regions(known), *self._on_ctx(known), *self._in_variables(known)]:
            shown.add(made_by)
            if storage is not None:
                yield storage, tensor
        yield from self._beside_graph(known)
        yield from self._outside_graph(known)
        for root in dict.fromkeys(graph.roots):
            meta = graph.tasks[root.task].inputs[root.input]
            if root.task not in shown and not graph.tasks[root.task].is_leaf and self._counts(meta.device):
                made = self._maker(root.task, set())
                yield StartStorage(assumed_result_bytes(graph, root), (), True, made), None

    def _of_leaf(self, task_id: int, savers: list[tuple[int, str]]) -> StartStorage:
        """Return the storage of a leaf that the forward created. Its AccumulateGrad holds it as long as the graph
        lives."""
        storage = storage_of(leaf_of(self._graph.nodes[task_id]))
        assert storage is not None
        alone = task_id in self._allocations.alone
        keepers = (*savers, (task_id, LEAF)) if alone else tuple(savers)
        return StartStorage(storage.nbytes, keepers, not alone, self._maker(None, {task for task, _ in savers}))

    def _maker(self, made_by: int | None, savers: set[int]) -> Maker:
        """Return the maker of a saved storage: the task whose node made it, or the only operation that saves it."""
        graph = self._graph
        if made_by is None and len({id(graph.tasks[task_id].operation) for task_id in savers}) == 1:
            made_by = min(savers)
        if made_by is None:
            return Maker(None, None, None)
        return Maker(None, graph.tasks[made_by].operation, graph.module(made_by))

    def _addresses_of_saved(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return the addresses of saved storages, by number in `Graph.saved`, and the addresses of their data."""
        numbers = iter(self._graph.saved)  # in the order of the nodes and their slots, as below
        found, begins = {}, {}
        for node in self._graph.nodes:
            for slot in saved_slots(node):
                storage, saved = storage_of(slot.tensor), next(numbers)
                if storage is not None and saved.storage is not None:
                    found[saved.storage] = storage.address
                    begins[saved.storage] = address_below(local_of(slot.tensor)) or 0
                    base = base_of(slot.tensor)
                    whole = slot.tensor if base is None else base  # linear saves its weight transposed, as a view
                    if isinstance(whole, Parameter):
                        self._of_parameters.add(saved.storage)
                    elif self._casts and (maker := node_of(whole)) in self._casts:
                        self._of_casts[saved.storage] = self._casts[maker]
        return found, begins

    def _is_older(self, task_id: int | None) -> bool:
        """Return whether the task belongs to a cast from an earlier forward. If that is not known, add a limit."""
        if task_id is None or task_id not in self._older_casts:
            return False
        if not self._are_certainly_older:
            self._limit(CASTS, task_id)
        return self._are_certainly_older

    def _kept_by_regions(self) -> dict[int, list[tuple[int, str]]]:
        """Return, by the address of a storage, the nodes of the checkpointed regions that keep it as an input.

        They release it once all of them have run. Nothing else is assumed to hold it, so that the prediction is a lower
        bound.
        """
        found: dict[int, list[tuple[int, str]]] = {}
        for region, tasks in self._tasks_of_regions.items():
            for tensor in region_inputs(region):
                if (storage := storage_of(tensor)) is not None:
                    found.setdefault(storage.address, []).extend((task, REGION) for task in tasks)
        return found

    def _in_regions(self, known: set[int]) -> Iterator[tuple[int | None, StartStorage, Tensor]]:
        """Yield tensors that the forward made and checkpointed regions keep: their own, and inputs without a node in
        the graph that a capture saw being made or that nothing else holds."""
        for region, tasks in self._tasks_of_regions.items():
            inputs = [each for each in region_inputs(region) if each.grad_fn is None and not each.requires_grad]
            held = kept_by_others(inputs)
            for number in range(len(inputs)):  # a keyword argument is also in the region's own dictionary
                if held[number]:
                    held[number] = not (owned_alone(inputs, number, 1) and storage_owned_alone(inputs[number]))
            kept = [(tensor, RANDOM_STATE) for tensor in random_states(region)]
            kept += [(tensor, REGION) for tensor in cached_results(region)]
            kept += [
                (tensor, REGION)
                for tensor, is_held in zip(inputs, held, strict=True)
                if not is_held or address_below(tensor) in self._allocations.addresses
            ]
            for tensor, slot in kept:
                storage = storage_of(tensor)
                if storage is None or storage.address in known or not self._counts(tensor.device):
                    continue
                if not storage.nbytes or address_below(tensor) in self._allocations.of_model:
                    continue
                known.add(storage.address)
                keepers = tuple((task, slot) for task in tasks)
                yield None, StartStorage(storage.nbytes, keepers, False, self._maker(None, set())), tensor

    def _on_ctx(self, known: set[int]) -> Iterator[tuple[int | None, StartStorage, Tensor]]:
        """Yield the tensors that custom Functions put on their ctx, each with its maker. They are freed with the graph.

        Args:
            known: the addresses of storages to leave out.
        """
        graph = self._graph
        ids = {node: task_id for task_id, node in enumerate(graph.nodes)}
        for task, node in zip(graph.tasks, graph.nodes, strict=True):
            tensors = [tensor for value in attributes_of(node).values() for tensor in tensors_of(value)]
            for number in range(len(tensors)):
                storage = storage_of(tensors[number])
                if storage is None:
                    self._limit(NO_STORAGE_ON_CTX, task.id)
                    continue
                if storage.address in known or not storage.nbytes or not self._counts(tensors[number].device):
                    continue
                maker = tensors[number].grad_fn
                made_by = None if maker is None else ids.get(maker)
                if made_by is None and not self._was_made(tensors, number):
                    self._constants[storage.address] = storage.nbytes
                    continue  # from before the forward, as far as is known
                known.add(storage.address)
                made = self._maker(made_by, {task.id})
                yield made_by, StartStorage(storage.nbytes, (), True, made), tensors[number]

    def _was_made(self, on_ctx: list[Tensor], number: int) -> bool:
        """Return whether the forward made a tensor on a ctx: a capture saw it, or nothing else holds it."""
        if address_below(on_ctx[number]) in self._allocations.addresses:
            return True
        return owned_alone(on_ctx, number, 1) and storage_owned_alone(on_ctx[number])

    def _in_variables(self, known: set[int]) -> Iterator[tuple[int, StartStorage | None, Tensor]]:
        """Yield the forward's results that user code holds although no node saved them: the task that created each, its
        storage, and a tensor. The storage is None if an earlier result shares it, such as a subclass's view of a
        plain result.
        """
        found: set[int] = set()
        for task_id in self._hooks.tasks:
            for tensor in self._hooks.alive(task_id):
                storage = storage_of(tensor)
                if storage is not None and storage.address in found:
                    yield task_id, None, tensor
                if storage is None or storage.address in known or not self._counts(tensor.device):
                    continue
                if self._is_older(task_id):
                    continue
                known.add(storage.address)
                found.add(storage.address)
                if storage.nbytes:
                    of_region = self._regions.get(storage.address, ())
                    made = self._maker(task_id, set())
                    yield task_id, StartStorage(storage.nbytes, tuple(of_region), not of_region, made), tensor

    def _beside_graph(self, known: set[int]) -> list[tuple[StartStorage, Tensor]]:
        """Return results of this forward that the graph does not lead to, such as an auxiliary output, and the tensors
        that their nodes saved or that custom Functions put on their ctx.

        Args:
            known: the addresses of storages to leave out.
        """
        if not (beside := self._nodes_beside()):
            return []
        inner = {*self._graph.nodes, *beside}
        allocated = self._allocations.addresses
        below = {child for node in beside for child, _ in node.next_functions if child is not None} - inner
        for leaf in [leaf_if_any(each) for each in below if number_of(each) == UNNUMBERED]:
            if leaf is not None and address_below(leaf) not in allocated and (older := storage_of(leaf)):
                known.add(older.address)
        slots = [slot for node in beside for slot in saved_slots(node)]
        tensors = [slot.tensor for slot in slots]
        made = [slot.maker in inner for slot in slots]
        slots.clear()
        held = kept_by_others(tensors)
        kept = [
            tensor
            for tensor, is_made, is_held in zip(tensors, made, held, strict=True)
            if is_made or not is_held or address_below(tensor) in allocated
        ]
        on_ctx = [each for node in beside for value in attributes_of(node).values() for each in tensors_of(value)]
        on_ctx = [each for each in on_ctx if storage_of(each) is not None]
        was_made = [self._was_made(on_ctx, number) for number in range(len(on_ctx))]
        kept += [tensor for tensor, is_made in zip(on_ctx, was_made, strict=True) if is_made or tensor.grad_fn in inner]
        kept += [tensor for tensor in self._hooks.others() if node_of(tensor) in beside]
        if any(hides_saved(node) or is_packed(node) for node in beside):
            self._limit(BESIDE, self._graph.roots[0].task)
        return [found for tensor in kept for found in self._held(tensor, known)]

    def _held(self, tensor: Tensor, known: set[int]) -> Iterator[tuple[StartStorage, Tensor]]:
        """Yield the tensor's storage, if it counts and is not known, as one that the backward does not free."""
        storage = storage_of(tensor)
        if storage is None or storage.address in known or not storage.nbytes or not self._counts(tensor.device):
            return
        if address_below(tensor) not in self._allocations.of_model:
            known.add(storage.address)
            yield StartStorage(storage.nbytes, (), True, self._maker(None, set())), tensor

    def _nodes_beside(self) -> set[Node]:
        """Return the nodes outside the graph that the same forward made, of those that living tensors lead to.

        Such a node leads to an inner node of the graph, or the graph's capture saw it, or it was made between the
        graph's nodes. Other threads have their own sequence numbers: a tensor is from one if a node below it has the
        number of a node of the graph.
        """
        inner = {
            node: task for task, node in zip(self._graph.tasks, self._graph.nodes, strict=True) if not task.is_leaf
        }
        numbers = {task.sequence_nr for task in inner.values()}
        seen = {task.operation.facts for task in inner.values() if isinstance(task.operation, Operation)}
        first, last = min((facts.first for facts in seen), default=min(numbers, default=0)), max(numbers, default=0)
        found: set[Node] = set()
        others: set[Node] = set()
        for tensor in self._hooks.others():
            root = node_of(tensor)
            if root is None or root in found or root in others or number_of(root) < first:
                continue
            oldest_first = _oldest_first(root, first, lambda node: node in inner or node in found)
            is_foreign = any(number in numbers for number, _ in oldest_first)
            for number, node in oldest_first:
                operation = operation_of(node)
                is_made = (
                    (number < last and not is_foreign)
                    or (operation is not None and operation.facts in seen)
                    or any(child in inner or child in found for child, _ in node.next_functions)
                )
                (found if is_made else others).add(node)
        return found

    def _outside_graph(self, known: set[int]) -> Iterator[tuple[StartStorage, Tensor]]:
        """Yield the storages that captures saw the forward allocate, that are alive, and that this graph does not keep.

        Args:
            known: the addresses of storages to leave out.
        """
        for born in self._allocations.alive:
            storage = None if born.address in known else born.storage()
            if storage is not None and storage.nbytes() and self._counts(storage.device):
                known.add(born.address)
                with unobserved():
                    tensor = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
                yield StartStorage(storage.nbytes(), (), True, self._maker(None, set())), tensor
        for born in self._allocations.earlier:
            storage = None if born.address in known else born.storage()
            if storage is not None and storage.nbytes() and self._counts(storage.device):
                self._limit(EARLIER, self._graph.roots[0].task)

    def _counts(self, device: torch.device) -> bool:
        return device == self._device


def _oldest_first(root: Node, first: int, is_known: Callable[[Node], bool]) -> list[tuple[int, Node]]:
    """Return the node and those below it, with their numbers, but none that is known, is below such a node, has a
    number below `first`, or has none."""
    found, waiting = {root: number_of(root)}, [root]
    while waiting:
        for child, _ in waiting.pop().next_functions:
            if child is not None and child not in found and not is_known(child):
                number = number_of(child)
                if first <= number < UNNUMBERED:
                    found[child] = number
                    waiting.append(child)
    return sorted(((number, node) for node, number in found.items()), key=itemgetter(0))


def _casts_of_leaves(graph: Graph) -> dict[Node | None, int]:
    """Return the tasks of casts of leaves, such as autocast makes of weights, by their nodes."""
    leaves = {task.id for task in graph.tasks if task.is_leaf}
    return {
        graph.nodes[task.id]: task.id
        for task in graph.tasks
        if task.name == "ToCopyBackward0" and all(edge.next_task in leaves for edge in graph.out_edges[task.id])
    }


def _older(graph: Graph, casts: Collection[int], is_cached: bool) -> tuple[set[int], bool]:
    """Return the casts that an earlier forward made or may have made, and whether it did for certain.

    An open torch.autocast caches casts of weights, so a later forward uses the tensors and nodes of an earlier one.
    Under a capture these are the ones made before it; without one, while autocast is open, those made before all other
    nodes.
    """
    others = [task for task in graph.tasks if task.id not in casts and not task.is_leaf]
    seen = {task.operation.facts for task in others if isinstance(task.operation, Operation)}
    if not others or not (seen or is_cached):
        return set(), True
    first = min((facts.first for facts in seen), default=min(task.sequence_nr for task in others))
    return {each for each in casts if graph.tasks[each].sequence_nr < first}, bool(seen)

"""`ts.graph`: build a `Graph` from the nodes below a loss. Nothing is executed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from ..garbage_collector import collector_paused
from ..graph.graph import Edge, Graph, ModuleCall, Outputs, ParameterNames, Root, Task, TensorMeta
from ..graph.kinds import Kind, kind_of
from ..graph.live_nodes import LiveNodes
from ..graph.node_metadata import creation_times, operations_of
from ..graph.operations_and_calls import CallRecord, Facts, Operation
from ..hips.tape import HipsTape, refuse_parts
from ..torch_private.distributed import flat_names, has_flat_parameters, sharded_parameters
from ..torch_private.nodes import InputMetadata, input_metadata_of_each, leaf_of, notes_on
from ..torch_private.sequence_numbers import number_of, numbers_of
from ..torch_private.thread_state import functorch_is_active, without_torch_function
from ..validation import a_kind, expect, expect_model, expect_outputs
from .graph_cache import EdgeDraft, Found, TaskDraft, as_records, cache_key

if TYPE_CHECKING:  # a graph is read without the names of torch on which a capture depends
    from .unfinished_forward import UnfinishedForward

_WRAPPED = "_fsdp_wrapped_module"  # inserted by FullyShardedDataParallel into the paths of wrapped modules
_FLAT = "_flat_param"

Namer = Callable[[Tensor], str | None]


def through_sharding(named: Namer) -> Namer:
    """Return a namer that also knows the gathered and the flat parameters of FSDP.

    A gathered parameter gets the name of its shard, which belongs to the model. If the shard has no name, it gets its
    path below the outermost module under `fully_shard`. A flat parameter is named after the first parameter that it
    holds: `blocks.0.weight and 3 more`.
    """
    sharded = {id(each.gathered): each for each in sharded_parameters() if each.gathered is not None}
    if not sharded and not has_flat_parameters():
        return named

    def found(leaf: Tensor) -> str | None:
        name = named(leaf)
        if names := flat_names(leaf):
            around = [part for part in (name or "").split(".") if part and part not in (_WRAPPED, _FLAT)]
            first = ".".join([*around, *(part for part in names[0].split(".") if part != _WRAPPED)])
            return first if len(names) == 1 else f"{first} and {len(names) - 1} more"
        if name is None and (parameter := sharded.get(id(leaf))) is not None:
            return named(parameter.shard) or parameter.name
        return name

    return found


def why_no_graph(tensor: Tensor) -> str:
    """Return why a tensor has no graph, as a clause that follows a colon, without a full stop."""
    if tensor.is_inference():
        return "it was computed under torch.inference_mode(), which records nothing"
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return (
            f"its dtype is {str(tensor.dtype).removeprefix('torch.')}, and integers and booleans have no gradient "
            "(argmax, round to an integer type, a comparison)"
        )
    if functorch_is_active():
        return (
            "it was computed inside a transform of torch.func (vmap, grad, ...), which does not record its graph; read "
            "the graph outside of the transform"
        )
    if not torch.is_grad_enabled():
        return "gradients are switched off here, by torch.no_grad() or torch.set_grad_enabled(False)"
    return (
        "it was computed under torch.no_grad(), cut off by .detach(), .data or .item(), or computed from tensors that "
        "do not require grad, for example because all parameters are frozen"
    )


DEEP = 10_000
"""Graphs of at least this many nodes are freed node by node; see `free_one_by_one`."""
_KEPT = "tapescope: nodes below"  # a key in a root's metadata


def graph(outputs: Outputs | HipsTape, model: ParameterNames | None = None) -> Graph:
    """Read the autograd graph that a backward from `outputs` would run. Nothing is executed.

    Args:
        outputs: a tensor (the loss), a `GradientEdge`, or a sequence of them; or a tape (`ts.hips.tape`).
        model: a module, or a mapping of names to tensors; names the leaves. If the forward was captured
            (`ts.capture`), the capture supplies the names, and also module paths, source lines and operations. A
            module also names its submodules that the forward called directly, if they have parameters.

    Raises:
        RuntimeError: an output has no graph: it doesn't require grad, or was computed under `torch.no_grad()`.
        TypeError: an output is neither a tensor nor a `GradientEdge`.

    The graph does not keep the loss alive. After the loss is freed, the graph still has its tasks and edges, but no
    nodes and no saved tensors. A graph read from a temporary, as in `ts.graph(make_loss())`, or from a `GradientEdge`
    keeps its nodes and their saved tensors alive until a backward frees them.
    """
    found = read_graph(outputs, model)
    if isinstance(found.nodes, LiveNodes):
        found.nodes.hold_for_temporaries()
    return found


def read_graph(outputs: Outputs | HipsTape, names: ParameterNames | None = None) -> Graph:
    """`graph` for callers that hold the outputs themselves."""
    if names is not None:
        expect(names, torch.nn.Module | Mapping, "model", "a module, or a mapping of names to tensors")
        if isinstance(names, Mapping):
            for name, tensor in names.items():
                expect(tensor, Tensor, f"model[{name!r}]", "a tensor")
    if isinstance(outputs, HipsTape):
        return outputs.graph
    given = _as_list(outputs)
    with collector_paused():
        graph = _read(root_edges(given), names)
        if isinstance(graph.nodes, LiveNodes):
            graph.nodes.watch(given)
        return graph


def _read(roots: list[tuple[Node, int]], names: ParameterNames | None) -> Graph:
    """Read the graph. The many objects that only this function needs are freed while the collector is paused."""
    found = _walk([node for node, _ in roots])
    key = cache_key(found, roots) if names is None else None
    graph = None if key is None else key.cached_graph()
    if graph is None:
        graph = _build(found, roots, names, None if key is None else key.metas)
        if key is not None:
            key.keep(graph)
    if len(graph) >= DEEP:
        for root in dict.fromkeys(node for node, _ in roots):
            below = [node for node in _walk([root]) if node is not root]
            free_one_by_one(root, sorted(below, key=number_of, reverse=True))
    return graph


def graph_meant(of: Outputs | HipsTape | Graph, model: torch.nn.Module | None) -> Graph:
    """Return a graph unchanged, or read the graph of a loss, with a model's names.

    Raises:
        TypeError, RuntimeError: as in `graph`; or `model` is not a module.
        ValueError: `of` is a graph, which already has names, and `model` was passed.
    """
    expect_model(model)
    if not isinstance(of, Graph):
        return read_graph(of, model)
    if model is not None:
        raise ValueError(
            "model= is only for a loss, and this is a graph; name it when reading it: ts.graph(loss, model=model)"
        )
    return of


def graph_of_unfinished(forward: UnfinishedForward) -> Graph:
    """Build the graph that a forward had built when it raised; its roots are the nodes to which no edge leads.

    Raises:
        ValueError: the forward had built nothing.
    """
    if not forward.nodes:
        raise ValueError(f"the forward raised {forward.raised.partition(':')[0]} before it had built any graph")
    nodes = list(dict.fromkeys(forward.nodes))
    found = _walk(nodes)
    reached = {child for nexts in found.values() for child, _ in nexts}
    return _build(found, [(node, 0) for node in nodes if node not in reached], None, unfinished=forward)


def root_edges(outputs: Outputs) -> list[tuple[Node, int]]:
    """Return the (node, input number) pairs at which a backward from `outputs` starts."""
    roots = []
    given = _as_list(outputs)
    with without_torch_function():
        for position, output in enumerate(given):
            if isinstance(output, Tensor):
                if not output.requires_grad:
                    raise RuntimeError(
                        f"element {position} of tensors does not require grad and does not have a grad_fn (shape "
                        f"{tuple(output.shape)}, {output.dtype}), so there is no graph below it: {why_no_graph(output)}"
                    )
                node = output.grad_fn
                if node is not None:
                    roots.append((node, output.output_nr))
                    continue
                output = get_gradient_edge(output)
            elif not isinstance(output, GradientEdge):
                raise TypeError(
                    f"element {position} of tensors is {a_kind(output)}; expected a torch.Tensor or a GradientEdge"
                )
            roots.append((output.node, output.output_nr))
    if not roots:
        raise ValueError("the sequence of outputs is empty; expected at least one tensor to start from")
    return roots


def _as_list(outputs: Outputs) -> list[Tensor | GradientEdge]:
    refuse_parts(outputs)
    if isinstance(outputs, Tensor | GradientEdge):
        return [outputs]
    expect_outputs(outputs)
    return list(outputs)


def outlive_backward(starts: Sequence[Node]) -> bool:
    """Return whether a custom Function below `starts` has attributes on its `ctx`, which a backward does not free."""
    with collector_paused():
        return any(isinstance(node, BackwardCFunction) and vars(node) for node in _walk(starts))


def _walk(starts: Iterable[Node]) -> Found:
    """Return all nodes below `starts` with their next functions, in an order that depends on the graph alone."""
    found: Found = {}
    stack = list(reversed(list(starts)))
    while stack:
        node = stack.pop()
        if node in found:
            continue
        nexts = found[node] = node.next_functions
        for child, _ in reversed(nexts):
            if child is not None and child not in found:
                stack.append(child)
    return found


def _number(found: Found, kinds: Mapping[Node, Kind], numbers: Mapping[Node, int]) -> dict[Node, int]:
    """Return each node's task id, in ascending order."""
    created = [node for node in found if kinds[node] is not Kind.ACCUMULATE_GRAD]
    created.sort(key=numbers.__getitem__)
    ids = {node: task_id for task_id, node in enumerate(created)}
    for node in created:
        for child, _ in found[node]:
            if child is not None and child not in ids:
                ids[child] = len(ids)
    for node in found:  # a root that is a leaf has no user
        ids.setdefault(node, len(ids))
    return ids


def _nameless(leaf: Tensor) -> None:
    """Return None: without names or captures, leaves have no names."""


def _leaf_namer(names: ParameterNames | None, operations: Mapping[Node, Operation]) -> Callable[[Tensor], str | None]:
    """Return a function that maps a leaf to its name: from `names`, else from the captures that saw the graph."""
    if names is not None:
        pairs = names.named_parameters() if isinstance(names, torch.nn.Module) else dict(names).items()
        given = {id(tensor): name for name, tensor in pairs}
        return lambda leaf: given.get(id(leaf))
    if not operations:
        return _nameless
    seen = list(dict.fromkeys(operation.facts for operation in operations.values()))
    return lambda leaf: next((name for facts in seen if (name := facts.leaf_name(leaf))), None)


def _metas(node: Node, takes: Iterable[InputMetadata], known: dict[object, TensorMeta]) -> tuple[TensorMeta, ...]:
    """Return the metadata of a node's inputs. Equal ones share one object, as a large graph has few distinct ones."""
    found = []
    for facts in takes:
        try:
            meta = known.get(facts)
        except TypeError:  # torch.SymInt has no hash
            raise NotImplementedError(
                f"{node.name()} takes a gradient of the symbolic shape {facts[0]}, and a graph needs sizes that are "
                "numbers. Use a FakeTensorMode without a ShapeEnv, or from_tensor(..., static_shapes=True)"
            ) from None
        if meta is None:
            meta = known[facts] = TensorMeta(*facts)
        found.append(meta)
    return tuple(found)


def _build(
    found: Found,
    roots: list[tuple[Node, int]],
    names: ParameterNames | None,
    takes: Sequence[tuple[InputMetadata, ...]] | None = None,
    unfinished: UnfinishedForward | None = None,
) -> Graph:
    """Build the graph. `takes` is the input metadata of the nodes in `found`, if it has been read already."""
    names_of = {node: node.name() for node in found}
    numbers = numbers_of(found)
    kind_by_name: dict[tuple[type, str], Kind] = {}
    kinds = {}
    for node, name in names_of.items():
        key = type(node), name
        if key not in kind_by_name:
            kind_by_name[key] = kind_of(node)
        kinds[node] = kind_by_name[key]
    ids = _number(found, kinds, numbers)
    operations = operations_of(found, ids) if Facts.alive() else {}
    created_ns = creation_times(operations, numbers)
    calls = _Calls(names if isinstance(names, torch.nn.Module) and operations else None)
    leaf_name = through_sharding(_leaf_namer(names, operations) if unfinished is None else unfinished.leaf_name)
    named = None if leaf_name is _nameless else Kind.ACCUMULATE_GRAD
    metas: dict[object, TensorMeta] = {}
    taken = dict(zip(found, input_metadata_of_each(found) if takes is None else takes, strict=True))
    tasks = []
    edges = []
    for node, task_id in ids.items():
        kind, operation = kinds[node], operations.get(node)
        parameter = leaf_name(leaf_of(node)) if kind is named else None
        call = None if operation is None else calls.id_of(operation.call)
        inputs = _metas(node, taken[node], metas)
        tasks.append(
            TaskDraft(
                *(task_id, names_of[node], kind, numbers[node], inputs, parameter, call, operation),
                created_ns.get(node),
            )
        )
        for output, (child, number) in enumerate(found[node]):
            if child is not None:
                edges.append(EdgeDraft(task_id, output, ids[child], number))
    failed, untracked = (None, ()) if unfinished is None else unfinished.placed(ids, calls.id_of(unfinished.call))
    return Graph(
        tasks=as_records(tasks, Task),
        edges=as_records(edges, Edge),
        roots=tuple(Root(ids[node], number) for node, number in roots),
        calls=tuple(calls.found),
        nodes=LiveNodes(ids),
        raised=None if unfinished is None else unfinished.raised,
        failed=failed,
        untracked=untracked,
    )


def free_one_by_one(root: Node, below: Sequence[Node]) -> None:
    """Make a root hold the nodes below it, so that they are freed one by one when the root is.

    torch frees nodes that have a Python object recursively (THPCppFunction_dealloc). A chain of about 50,000 nodes
    overflows the stack. A node frees its edges before its metadata, and a tuple frees its items from the last to the
    first, so the nodes are freed in the order of `below`.

    Args:
        root: the node that holds the others, in its metadata.
        below: the nodes below it, each before the nodes to which it leads.
    """
    notes_on(root)[_KEPT] = tuple(reversed(below))


class _Calls:
    """Numbers the module calls of a graph's tasks, parents first.

    Args:
        model: the module that gives the outermost called modules their names.
    """

    def __init__(self, model: torch.nn.Module | None) -> None:
        self._names: dict[int, list[str]] = {}
        self._classes: dict[str, str] = {}
        if model is not None:
            for name, parameter in model.named_parameters(remove_duplicate=False):
                self._names.setdefault(id(parameter), []).append(name)
            modules = model.named_modules(remove_duplicate=False)
            self._classes = {path: type(module).__name__ for path, module in modules}
        self._places: dict[tuple[Facts, int], str | None] = {}
        self.found: list[ModuleCall] = []
        self._ids: dict[CallRecord, int] = {}

    def id_of(self, record: CallRecord | None) -> int | None:
        if record is None:
            return None
        known = self._ids.get(record)
        if known is not None:
            return known
        parent = self.id_of(record.parent)  # recursion as deep as modules are nested
        path = record.full_path
        if self._names:
            key = record.facts, record.root
            if key not in self._places:
                self._places[key] = record.facts.place_below(record.root, self._names, self._classes)
            if (place := self._places[key]) is not None:
                path = ".".join(filter(None, (place, record.path)))
        call = ModuleCall(len(self.found), path, record.module_class.__name__, parent, record.index)
        self.found.append(call)
        self._ids[record] = call.id
        return call.id

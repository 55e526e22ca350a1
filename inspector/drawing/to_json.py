"""Export of graphs as JSON for other tools: `graph.to_json()`."""

from __future__ import annotations

import json
from typing import Any

from ..graph.graph import Graph, Task
from ..graph.saved_tensors import SavedTensor

FORMAT = "tapescope.graph"
VERSION = 1


def graph_to_json(graph: Graph) -> str:
    """Return the graph as one JSON object.

    - `format`, `version`: "tapescope.graph" and 1. Readers should refuse higher versions.
    - `tasks`: in order of their ids. `id`; `name`; `kind` (see `Kind`); `rank`: the place in order of creation,
      equal to the id; `sequence_nr`: a string, since an AccumulateGrad has 2**64 - 1, which JavaScript's numbers cannot
      represent; `created_ns`: as in `Task`, or null; missing in older files; `inputs`: `shape` (null for a nested
      tensor), `dtype`, `device` and `nbytes` of each input gradient; `parameter`: the name of an AccumulateGrad's leaf,
      or null; `call`: the id of the innermost module call, or null; `operation`: the name of the forward operation, or
      null.
    - `edges`: `[task, output, next task, input]` each, sorted.
    - `roots`: `[task, input]` each.
    - `calls`: the module calls, parents first. `id`, `path`, `class`, `parent` (an id, or null), `index` (counts the
      calls of one module, from 0).
    - `saved`: the saved tensors, by task. `task`, `slot`, `storage` (equal numbers share bytes), `storage_bytes`,
      `shape`, `dtype`, `device`, `version`, `parameter` (a name, or null).
    """
    content = {
        "format": FORMAT,
        "version": VERSION,
        "tasks": [_task(task) for task in graph.tasks],
        "edges": [[edge.task, edge.output, edge.next_task, edge.input] for edge in graph.edges],
        "roots": [[root.task, root.input] for root in graph.roots],
        "calls": [
            {"id": call.id, "path": call.path, "class": call.class_name, "parent": call.parent, "index": call.index}
            for call in graph.calls
        ],
        "saved": [_saved(saved) for saved in graph.known_saved],
    }
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _task(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "name": task.name,
        "kind": task.kind.value,
        "rank": task.id,
        "sequence_nr": str(task.sequence_nr),
        "created_ns": task.created_ns,
        "inputs": [
            {
                "shape": None if meta.shape is None else list(meta.shape),
                "dtype": str(meta.dtype),
                "device": str(meta.device),
                "nbytes": meta.nbytes,
            }
            for meta in task.inputs
        ],
        "parameter": task.parameter,
        "call": task.call,
        "operation": None if task.operation is None else task.operation.name,
    }


def _saved(saved: SavedTensor) -> dict[str, Any]:
    return {
        "task": saved.task,
        "slot": saved.slot,
        "storage": saved.storage,
        "storage_bytes": saved.storage_bytes,
        "shape": None if saved.shape is None else list(saved.shape),
        "dtype": str(saved.dtype),
        "device": str(saved.device),
        "version": saved.version,
        "parameter": saved.parameter,
    }

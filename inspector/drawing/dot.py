"""Export of graphs to Graphviz: `graph.to_graphviz()`."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ..graph.graph import Graph, Task
from ..graph.kinds import Kind, short_name
from ..text.durations import created_text
from .pictured import pictured
from .svg_style import LIGHT

if TYPE_CHECKING:
    import graphviz

_LOOK = {
    Kind.CPP: {"shape": "box", "style": "rounded"},
    Kind.FUNCTION: {
        "shape": "box",
        "style": "rounded,filled",
        "fillcolor": LIGHT["violet-soft"],
        "color": LIGHT["violet"],
    },
    Kind.ACCUMULATE_GRAD: {"shape": "oval", "style": "filled", "fillcolor": LIGHT["sunk"]},
    Kind.COPY_SLICES: {"shape": "note"},
    Kind.COMPILED: {"shape": "box3d"},
    Kind.CHECKPOINT: {"shape": "box", "style": "rounded,dashed"},
    Kind.MODULE_HOOK: {"shape": "box", "style": "rounded,dotted"},
    Kind.ERROR: {"shape": "octagon", "color": LIGHT["red"]},
    Kind.PRIMITIVE: {"shape": "box", "style": "rounded"},
    Kind.FAILED: {"shape": "octagon", "color": LIGHT["red"], "fontcolor": LIGHT["red"]},
    Kind.UNTRACKED: {"shape": "oval", "style": "dashed", "fontcolor": LIGHT["ink3"]},
}


def graph_to_graphviz(graph: Graph) -> graphviz.Digraph:
    """Return the graph with a cluster for each module call. Node "t12" is task 12, "m3" the cluster of call 3.

    Graphviz is fast up to about a thousand tasks, and needs minutes for an unrolled LSTM. `save_svg` has no such limit.

    Raises:
        ModuleNotFoundError: The Python package `graphviz` is missing. The program `dot` is only needed for rendering.
    """
    try:
        import graphviz
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "to_graphviz() needs the Python package `graphviz`: pip install graphviz. "
            "graph.save_svg(path) draws without it"
        ) from error
    dot = graphviz.Digraph(
        "backward",
        graph_attr={"rankdir": "TB", "fontname": "Helvetica", "fontsize": "11", "nodesep": "0.2", "ranksep": "0.3"},
        node_attr={
            "fontname": "Helvetica",
            "fontsize": "11",
            "height": "0.3",
            "margin": "0.12,0.04",
            "color": LIGHT["line2"],
        },
        edge_attr={"color": LIGHT["wire"], "arrowsize": "0.6"},
    )
    graph = pictured(graph)
    tasks: dict[int | None, list[Task]] = defaultdict(list)
    for task in graph.tasks:
        tasks[task.call].append(task)
    within: dict[int | None, list[int]] = defaultdict(list)
    for call in graph.calls:
        within[call.parent].append(call.id)
    dot.body.extend(_node(task) for task in tasks[None])
    # The opening and closing lines are written out: graphviz.Digraph.subgraph copies its text at every level of
    # nesting.
    stack: list[int | str] = [*reversed(within[None])]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            dot.body.append(item)
            continue
        call = graph.calls[item]
        label = _quoted(f"{call.path} {call.class_name}".strip())
        dot.body.append(
            f'\tsubgraph "cluster_m{item}" {{\n\t\tlabel={label} labeljust=l style=rounded color="{LIGHT["line"]}"\n'
        )
        dot.body.extend(_node(task) for task in tasks[item])
        stack += ["\t}\n", *reversed(within[item])]
    dot.body.extend(f"\tt{edge.task} -> t{edge.next_task}\n" for edge in graph.edges)
    return dot


def _node(task: Task) -> str:
    label = task.parameter if task.parameter else short_name(task.name)
    created = None if task.created_ns is None else created_text(task.created_ns)
    tooltip = ", ".join(filter(None, (task.name, created, *map(str, task.inputs[:8]))))
    attributes = {"label": label, "tooltip": tooltip, **_LOOK[task.kind]}
    listed = " ".join(f"{name}={_quoted(value)}" for name, value in attributes.items())
    return f"\tt{task.id} [{listed}]\n"


def _quoted(text: str) -> str:
    """Return `text` as a DOT string. Backslashes are escaped, since DOT reads them as commands in labels."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'

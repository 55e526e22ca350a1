"""Groups of products as data of the deck's page: outlines around tasks, and their descriptions."""

from __future__ import annotations

from collections.abc import Sequence

from ...engine.recording.batch_report import Batches
from ...engine.session.batching.find_batches import find_batches
from ...engine.session.batching.product_groups import DIRECTIONS, modules_of
from ...inspector.graph.graph import Graph
from .page_data import Json

_MOST = 200  # outlines; more cannot be read


def group_content(graph: Graph) -> Json:
    """Return the groups that `ts.find_batches` finds and refuses with TorchScript's thresholds; for a tape, the reason.

    Each entry of `found` and `refused` is one outline; `said` has a summary for each direction.

    Raises:
        ValueError: if the graph has no nodes.
    """
    if graph.is_tape:
        return no_groups(
            "Groups are not searched in a tape of HIPS autograd, because its nodes do not expose their factors."
        )
    found = find_batches(graph)
    return {
        "found": [
            {
                "direction": group.direction,
                "title": group.label,
                "product": str(group.product),
                "where": found.where(group),
                "launches": [group.launches_before, group.launches_after],
                "copied": group.stacked_bytes,
                "tasks": list(group.tasks),
            }
            for direction in DIRECTIONS
            for group in found.of_direction(direction)[:_MOST]
        ],
        "refused": [
            {
                "direction": refused.direction,
                "title": found.refused_title(refused),
                "why": refused.why,
                "tasks": list(refused.tasks),
            }
            for direction in DIRECTIONS
            for refused in [each for each in found.refused if each.direction == direction][:_MOST]
        ],
        "said": {direction: found.summary(direction) for direction in DIRECTIONS},
    }


def no_groups(why: str) -> Json:
    """Return the content for a graph with unknown groups, with the reason."""
    return {"found": [], "refused": [], "said": {"backward": why}}


def with_batches(content: Json | None, batches: Batches, graph: Graph) -> Json:
    """Return the content with the groups that have run as one so far, and those that could not, with reasons."""
    kept = content or {"found": [], "refused": [], "said": {}}
    ran = [
        {
            "direction": "ran",
            "title": f"{len(batch.tasks):,} × {_function(graph, batch.tasks)} {_AS_ONE[batch.kind]}",
            "product": "",
            "where": modules_of(graph, batch.tasks),
            "launches": [batch.launches_before, batch.launches],
            "copied": batch.copied_bytes,
            "tasks": list(batch.tasks),
        }
        for batch in batches.batches[:_MOST]
    ]
    by_itself = [
        {
            "direction": "ran",
            "title": f"{len(each.tasks):,} × {_function(graph, each.tasks)} in {modules_of(graph, each.tasks)}",
            "why": each.why,
            "tasks": list(each.tasks),
        }
        for each in batches.fallbacks[:_MOST]
    ]
    return {
        "found": [*_planned(kept["found"]), *ran],
        "refused": [*_planned(kept["refused"]), *by_itself],
        "said": kept["said"] | {"ran": batches.sentences[0] if len(batches) else "No products ran as one batch."},
    }


_AS_ONE = {"bmm": "ran as one bmm", "tree": "summed, as one product", "grouped_conv": "ran as one, with groups"}


def _planned(outlines: Sequence[Json]) -> list[Json]:
    return [each for each in outlines if each["direction"] != "ran"]


def _function(graph: Graph, tasks: Sequence[int]) -> str:
    return graph.tasks[tasks[0]].short_name.lower()

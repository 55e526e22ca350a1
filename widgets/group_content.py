"""Groups of products as the deck's page draws them: outlines around tasks, and what is said of each."""

from __future__ import annotations

from ..engine.groups import DIRECTIONS, Groups, groups
from ..inspector.graph import Graph
from .document import Json

_MOST = 200  # outlines: more are no help to anybody


def group_content(graph: Graph) -> Json:
    """What `th.groups` finds in a graph, by TorchScript's thresholds, and what it refuses.

    Raises:
        ValueError: the graph has no nodes.
    """
    return groups_content(groups(graph))


def groups_content(found: Groups) -> Json:
    """Groups that were found already.

    Each of `found` and `refused` is one outline; `said` is by direction what it comes to.
    """
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

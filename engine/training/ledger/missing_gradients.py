"""The reasons why parameters get no gradient, as far as the loss's graph and the source tell them without a rerun."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from types import FrameType

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from ....inspector.graph.graph import module_name
from ....inspector.graph.phrases import joined
from ....inspector.graph.source_lines import is_users
from ....inspector.torch_private.compiled import is_compiled
from ....inspector.torch_private.nodes import leaf_of
from ...session.error_notes.cuts_in_source import cut_behind
from ..pending_graphs import roots_of

_MOST_MODULES = 8  # whose source is searched
_MOST_FRAMES = 4


def leaves_reached(outputs: Iterable[Tensor | GradientEdge]) -> set[int]:
    """Return the ids of the leaves in the graph of these outputs."""
    waiting = roots_of(outputs)
    seen = set(waiting)
    found = set[int]()
    while waiting:
        node = waiting.pop()
        if not node.next_functions and hasattr(node, "variable"):
            found.add(id(leaf_of(node)))
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                waiting.append(below)
    return found


def reasons_of_missing(
    modules: Sequence[tuple[str, nn.Module]],
    missing: Sequence[tuple[str, Tensor]],
    called: Collection[int],
    reached: Collection[int] | None,
) -> str:
    """Return sentences on parameters without a gradient; "" if nothing is known. A cut in the source is called likely.

    Args:
        modules: the loop's modules by path.
        missing: the parameters by name.
        called: ids of the modules that have returned.
        reached: ids of the leaves of the loss's graph; None if it is unknown.
    """
    if any(is_compiled(each) for _, each in modules):
        return ""  # calls inside of compiled regions are not seen
    by_path = dict(modules)
    paths = list(dict.fromkeys(name.rpartition(".")[0] for name, each in missing if id(each) not in (reached or ())))
    kinds = {path: type(by_path[path]).__name__ for path in paths if path in by_path}
    titles = {path: f"{module_name(path)} ({kind})" if path else kind for path, kind in kinds.items()}
    idle = [path for path in titles if id(by_path[path]) not in called]
    told = []
    if idle:
        were = "was" if len(idle) == 1 else "were"
        told.append(f"{joined([titles[each] for each in idle])} {were} not called in these steps. ")
    frames = list(_users_frames())
    cuts: dict[str, list[str]] = {}
    for path in [each for each in titles if each not in idle][:_MOST_MODULES]:
        root = next((each for each in ("", path.partition(".")[0]) if each in by_path), None)
        if root is not None:
            inner = path.removeprefix(root).removeprefix(".")
            if (cut := cut_behind(by_path[root], inner, frames)) is not None:
                cuts.setdefault(cut, []).append(titles[path])
    for cut, behind in cuts.items():
        do = "does" if len(behind) == 1 else "do"
        told.append(f"{joined(behind)} probably {do} not reach the loss, because {cut}. ")
    if reached is not None and (inside := [name for name, each in missing if id(each) in reached]):
        told.append(f"The loss's graph contains {joined(inside)}, but the backward gave no gradient there. ")
    return "".join(told)


def _users_frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    count = 0
    while frame is not None and count < _MOST_FRAMES:
        if is_users(frame.f_code.co_filename):
            count += 1
            yield frame
        frame = frame.f_back

"""`graph.summary()`: a table of the modules that a forward called."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from ..text.sizes_and_counts import shape_text, size_text
from ..text.text_columns import lines_of

_MOST_SHAPES = 3


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """A module in `ModuleSummary`, with all modules below it.

    Attributes:
        path, class_name: its name below the model, "" for the model itself, and its class.
        calls: how often the forward called it.
        shapes: the shapes of the results of its last call that require grad and are used.
        parameters: the number of elements of the parameters that its calls used, trainable and frozen. Parameters from
            which no path of the graph leads to a result, such as those before a `.detach()`, are not included.
        frozen: the number among them that do not require grad, as far as the graph has them (`Graph.untracked`).
        saved_bytes: the bytes of the storages that its operations saved for backward, without parameters; None if
            unknown. Storages that several modules save count in each.
    """

    path: str
    class_name: str
    calls: int
    shapes: tuple[tuple[int, ...] | None, ...]
    parameters: int
    frozen: int
    saved_bytes: int | None


@dataclass(frozen=True, slots=True)
class ModuleSummary:
    """A table of the modules of a forward: `print(graph.summary())`.

    Attributes:
        rows: the modules in the order of their first call, each after the modules around it.
        raised: the error that ended the forward, with its place; None without one.
        failed: the call that raised it, with its shapes and its module.
    """

    rows: tuple[ModuleRow, ...]
    raised: str | None = None
    failed: str | None = None

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def __str__(self) -> str:
        cells = [["module", "class", "output", "parameters", "saved"]]
        for row in self.rows:
            times = f" ×{row.calls}" if row.calls > 1 else ""
            shapes = ", ".join(map(shape_text, row.shapes[:_MOST_SHAPES])) + (
                ", …" if row.shapes[_MOST_SHAPES:] else ""
            )
            count = f"{row.parameters:,}" + (f" ({row.frozen:,} frozen)" if row.frozen else "")
            saved = "unknown" if row.saved_bytes is None else size_text(row.saved_bytes)
            cells.append([(row.path or "(model)") + times, row.class_name, shapes or "–", count, saved])
        lines = lines_of(cells, {"parameters", "saved"})
        if not self.rows:
            lines = [
                "No module's call was recorded. Compute the loss in `with ts.capture():`, or pass the model and its "
                "inputs: ts.graph(model, x).summary()"
            ]
        if self.raised is not None:
            lines += ["", f"The forward raised {self.raised}"]
            lines += [] if self.failed is None else [f"The call that failed is {self.failed}."]
        return "\n".join(lines)

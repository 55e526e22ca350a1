"""Adds a note with the cause and the remedy to PyTorch's own errors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress

from torch import nn
from torch.autograd.graph import Node

from ....inspector.graph.graph import Graph
from ....inspector.torch_private.saved_variables import MODIFIED
from ....inspector.torch_private.thread_state import unobserved
from ...execution.saved_tensor_errors import modified_tensors
from ...memory.out_of_memory import explain_out_of_memory

_PAGE = "what_went_wrong.md"
_NOTE = "tapescope: "


def explain_error(
    error: BaseException,
    graph: Graph | None = None,
    ran: Collection[int] | None = None,
    since: int | None = None,
    maker: Callable[[Node], object] | None = None,
    modules: Iterable[nn.Module] = (),
) -> None:
    """Add a note with the cause, its place and the remedy to one of PyTorch's errors about gradients or memory.

    The error's type and text do not change. An error that has a note already, or is not in the table `ERROR_NOTES`,
    stays as it is. Nothing of the user's code is run.

    Args:
        error: the error.
        graph: the graph of the backward that failed; None: it is read from the traceback.
        ran, since, maker: see `freed_graph`.
        modules: outermost modules that may contain the cause.
    """
    explain_out_of_memory(error, graph)
    if not isinstance(error, Exception) or any(_PAGE in note for note in getattr(error, "__notes__", ())):
        return
    # An error in the explanation must not replace the user's.
    with suppress(Exception), unobserved():
        from .pytorch_errors import ERROR_NOTES  # only now: few sessions need the table and its modules
        from .raised_error import RaisedError

        text = str(error)
        row = next((each for each in ERROR_NOTES if each.matches(text)), None)
        if row is None:
            return
        raised = RaisedError(error, modules, graph, ran, since, maker)
        note = row.note(raised)
        if note is not None:
            error.add_note(f"{_NOTE}{note} ({_PAGE}#{row.anchor})")
        if raised.graph is not None and MODIFIED in text:
            for each in modified_tensors(raised.graph, maker):
                error.add_note(f"{_NOTE}{each}")


@contextmanager
def errors_explained() -> Iterator[None]:
    """Context manager that explains an error raised inside it."""
    try:
        yield
    except Exception as error:
        explain_error(error)
        raise

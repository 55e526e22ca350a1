"""The base of the frameworks' callbacks: watches a loop from the framework's first event to its last."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import finalize

from torch import nn

from ..engine.training.training import training
from ..engine.training.training_result import Training


class LoopCallback:
    """Watches the training of a framework with `ts.training`.

    Findings are reported as warnings, and norms and findings go to the framework's loggers. The training is bit for bit
    the same, and nothing is added to its checkpoints. If it raises, the exception gets the notes of `ts.training`, also
    those on memory.

    Args:
        page: a file for the page with losses, norms and findings, which is written when the training ends; None: no
            page.
        options: arguments of `ts.training`, except `model`, `optimizer` and `writer`.

    Attributes:
        training: the watched loop, or the last one; None before the first.

    Raises:
        TypeError, ValueError: an argument has a wrong type or value.
    """

    def __init__(self, page: str | Path | None = None, **options: Any) -> None:
        super().__init__()
        training(None, None, writer=None, **options)  # raises for wrong options now, not when the training begins
        self.training: Training | None = None
        self._page = page
        self._options = options
        self._is_watching = False
        self._forgotten: finalize[..., Any] | None = None

    def begin(self, model: nn.Module | None, writer: object) -> None:
        """Begin watching. `writer` is a logger of `ts.training`, or None."""
        self.end()  # a training that raised may have left its hooks
        self.training = training(model, writer=writer, **self._options).start()
        self._is_watching = True
        self._forgotten = finalize(self, self.training.stop)  # not every framework reports an exception

    def end(self, error: BaseException | None = None) -> None:
        """End watching, and write the page. `error` is the exception that ended the training."""
        if self.training is None or not self._is_watching:
            return
        self._is_watching = False
        if self._forgotten is not None:
            self._forgotten.detach()
        self.training.__exit__(
            None if error is None else type(error), error, None if error is None else error.__traceback__
        )
        if self._page is not None:
            try:
                self.training.save_html(self._page)
            except OSError as failed:  # the training itself has succeeded
                self.training.note(f"the page was not written: {failed}")


def others_beside(callback: object, *kinds: type) -> list[Any]:
    """Return the framework's other callbacks of some kinds.

    A framework does not pass its list to a callback, so the lists that hold the callback are searched for. None stands
    for a callback that was freed.
    """
    if callback is None:
        return []
    lists = [each for each in gc.get_referrers(callback) if type(each) is list]
    return list(
        {id(one): one for each in lists for one in each if isinstance(one, kinds) and one is not callback}.values()
    )


def lazy_class(
    module: dict[str, Any], name: str, methods: type[LoopCallback], base: Callable[[], type]
) -> Callable[[str], Any]:
    """Return a module's `__getattr__`, which makes its class on first use: importing the base imports the framework."""

    def get(wanted: str) -> Any:
        if wanted != name:
            raise AttributeError(f"module {module['__name__']!r} has no attribute {wanted!r}")
        made = type(name, (methods, base()), {"__doc__": methods.__doc__, "__module__": module["__name__"]})
        return module.setdefault(name, made)  # pickle looks it up there

    return get

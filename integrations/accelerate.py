"""`TapescopeTracker` for Hugging Face Accelerate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import ref

from ..engine.training.training_result import Training
from .loop_callback import LoopCallback, lazy_class, others_beside


class TrackerEvents(LoopCallback):
    """Tracker that watches a loop with `ts.training`: `Accelerator(log_with=[TapescopeTracker(), "tensorboard"])`.

    Watching begins with `accelerator.init_trackers`, in its thread, and ends with `accelerator.end_training`. Norms and
    findings go to the other trackers. It has to be the first tracker, so that it ends before the others do.

    Known limitations: Accelerate starts trackers on the main process only, so other ranks are not watched.

    Args:
        page, options: see `LoopCallback`.
        first_step: the number of the first step in the other trackers, after a resume.
    """

    name = "tapescope"
    requires_logging_directory = False
    main_process_only = True

    def __init__(self, page: str | Path | None = None, *, first_step: int = 0, **options: Any) -> None:
        super().__init__(page, **options)
        self._first = first_step

    @property
    def tracker(self) -> Training | None:
        return self.training

    def start(self) -> None:
        self.begin(None, _Trackers(self, self._first))

    def finish(self) -> None:
        self.end()


class _Trackers:
    """Writes to the other trackers of an Accelerator."""

    def __init__(self, tracker: TrackerEvents, first: int) -> None:
        self._tracker = ref(tracker)  # it has to be freed with its Accelerator, also without end_training
        self._first = first

    def log_metrics(self, values: Mapping[str, Any], step: int) -> None:
        from accelerate.tracking import GeneralTracker

        for each in others_beside(self._tracker(), GeneralTracker):
            each.log(dict(values), step=self._first + step)

    def add_text(self, tag: str, text: str, step: int) -> None:
        self.log_metrics({tag: text}, step)


def _base() -> type:
    from accelerate.tracking import GeneralTracker

    found: type = GeneralTracker
    return found


__getattr__ = lazy_class(globals(), "TapescopeTracker", TrackerEvents, _base)

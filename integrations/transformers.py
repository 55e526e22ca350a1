"""`TapescopeCallback` for the Trainer of Hugging Face transformers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any
from weakref import ref

from torch import nn

from .loop_callback import LoopCallback, lazy_class, others_beside


class TrainerEvents(LoopCallback):
    """Callback that watches a Trainer with `ts.training`: `Trainer(..., callbacks=[TapescopeCallback()])`.

    Norms and findings go to the callbacks of `report_to`. See `LoopCallback` for the arguments.
    """

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: nn.Module | None = None, **kwargs: object
    ) -> None:
        reporting = _Reporting(self, args, state, control)
        self.begin(model, reporting if reporting.callbacks() else None)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: object) -> None:
        # The callbacks of `report_to` come first, and close their files in on_train_end.
        if control.should_training_stop or state.global_step >= state.max_steps:
            self.end()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: object) -> None:
        if control.should_training_stop:  # an evaluation after the last step decided it
            self.end()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: object) -> None:
        self.end()


class _Reporting:
    """Passes numbers to the Trainer's callbacks of `report_to`, as logs of their step."""

    def __init__(self, callback: TrainerEvents, args: Any, state: Any, control: Any) -> None:
        self._callback = ref(callback)  # it has to be freed with its Trainer, also if its training raised
        self._args, self._state, self._control = args, state, control
        self._first = state.global_step + 1  # the Trainer logs a step's numbers when it has counted the step

    def callbacks(self) -> list[Any]:
        from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

        return others_beside(self._callback(), *INTEGRATION_TO_CALLBACK.values())

    def log_metrics(self, values: Mapping[str, Any], step: int) -> None:
        state = copy.copy(self._state)
        state.global_step = self._first + step
        for each in self.callbacks():
            each.on_log(self._args, state, copy.copy(self._control), logs=dict(values))

    def add_text(self, tag: str, text: str, step: int) -> None:
        self.log_metrics({tag: text}, step)


def _base() -> type:
    from transformers import TrainerCallback

    return TrainerCallback


__getattr__ = lazy_class(globals(), "TapescopeCallback", TrainerEvents, _base)

"""`TapescopeCallback` for the Trainer of Lightning."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any
from weakref import ref

from torch import nn
from torch.optim import Optimizer

from .loop_callback import LoopCallback, lazy_class

_MOST_STEPS = 100  # whose number in the loggers is remembered; norms are written a few steps late


class LightningEvents(LoopCallback):
    """Callback that watches a Trainer with `ts.training`: `Trainer(callbacks=[TapescopeCallback()])`.

    Norms and findings go to the Trainer's loggers. See `LoopCallback` for the arguments.
    """

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        self._loggers = _Loggers(trainer)
        self.begin(pl_module, self._loggers if trainer.loggers else None)

    def on_before_optimizer_step(self, trainer: Any, pl_module: nn.Module, optimizer: Optimizer) -> None:
        if self.training is not None:
            self._loggers.meets(self.training.steps)

    def on_train_end(self, trainer: Any, pl_module: nn.Module) -> None:
        self.end()

    def on_exception(self, trainer: Any, pl_module: nn.Module, exception: BaseException) -> None:
        self.end(exception)


class _Loggers:
    """Writes to a Trainer's loggers, under the step that the Trainer itself logs."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = ref(trainer)
        self._steps: dict[int, int] = {}
        self._first = self._logged_step()

    def _logged_step(self) -> int:
        trainer = self._trainer()
        # Its loggers count batches that stepped. `global_step` counts the steps of each optimizer.
        return 0 if trainer is None else int(trainer.fit_loop.epoch_loop._batches_that_stepped)

    def meets(self, step: int) -> None:
        """Note the Trainer's number of the current step."""
        self._steps[step] = self._logged_step()
        if len(self._steps) > _MOST_STEPS:
            del self._steps[next(iter(self._steps))]

    def log_metrics(self, values: Mapping[str, Any], step: int) -> None:
        for each in self._all():
            each.log_metrics(dict(values), step=self._steps.get(step, self._first + step))

    def add_text(self, tag: str, text: str, step: int) -> None:
        for each in self._all():
            add_text = getattr(each.experiment, "add_text", None)  # TensorBoard's
            if callable(add_text):
                add_text(tag, text, self._steps.get(step, self._first + step))

    def _all(self) -> list[Any]:
        trainer = self._trainer()
        return [] if trainer is None else list(trainer.loggers)


def _base() -> type:
    # Two packages have a class of this name; the script has imported the one whose Trainer it uses.
    names = ("lightning.pytorch", "pytorch_lightning")
    name = next((each for each in names if each in sys.modules), names[1])
    found: type = import_module(name).Callback
    return found


__getattr__ = lazy_class(globals(), "TapescopeCallback", LightningEvents, _base)

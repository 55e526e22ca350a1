"""Checks of optimizers: skipped steps, stale autocast casts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...inspector.graph.phrases import joined
from ...inspector.text.sizes_and_counts import counted
from ...inspector.torch_private.nodes import leaf_if_any
from ...inspector.torch_private.optimizer_steps import is_fused, parameters_of
from ...inspector.torch_private.sequence_numbers import number_of, sequence_nr, youngest_first
from .findings import Finding
from .follow_loop import BackwardGiven
from .loop_observers import LoopPart
from .pending_graphs import roots_of
from .training_result import Training

_LOOKS = 3  # backwards that are checked at first
_AGAIN = 20  # steps between later checks
_CAST = "ToCopyBackward0"


class SkippedSteps(LoopPart):
    """Counts the steps that a gradient scaler skips."""

    def __init__(self) -> None:
        self._skipped: Counter[str] = Counter()
        self._number = 0

    def begins(self, training: Training) -> None:
        self._training = training

    def step_begins(self, number: int) -> None:
        self._number = number

    def optimizer_skipped(self, optimizer: Optimizer) -> None:
        name = type(optimizer).__name__
        self._skipped[name] += 1
        sentence = (
            f"The gradient scaler skipped {counted(self._skipped[name], 'step')} of {name} because gradients were not "
            "finite. It finds its scale in this way at first; if it continues, ts.find_nan finds their origin."
        )
        self._training.update(Finding("skipped", self._number, sentence, tensor=name))


class StaleCasts(LoopPart):
    """Checks in some backwards whether a node reads a cast that is older than the last optimizer step.

    Autocast casts a parameter once, and frees the cast when its outermost block ends.
    """

    def __init__(self) -> None:
        self._number = 0
        self._stepped: tuple[str, int, set[int]] | None = None  # optimizer, next sequence number, parameters
        self._looks = _LOOKS
        self._found = False

    def begins(self, training: Training) -> None:
        self._training = training

    def step_begins(self, number: int) -> None:
        self._number = number

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        if self._number % _AGAIN == 0 and not self._found:
            self._looks = max(self._looks, 1)
        if self._looks and self._training.autocast:
            self._stepped = type(optimizer).__name__, sequence_nr(), set(map(id, parameters_of(optimizer)))

    def backward_begins(self, given: BackwardGiven) -> None:
        if not self._looks or self._stepped is None or not self._training.autocast:
            return
        self._looks -= 1
        who, since, held = self._stepped
        found: set[int] = set()
        for number, node in youngest_first(roots_of(given[0])):
            if number < since:
                break
            for cast, _ in node.next_functions:
                if cast is not None and number_of(cast) < since and cast.name() == _CAST:
                    below = cast.next_functions[0][0]
                    leaf = None if below is None else leaf_if_any(below)
                    found |= {id(leaf)} & held
        if found:
            self._looks, self._found = 0, True
            self._report(who, [name for name, each in self._training.watched.parameters() if id(each) in found])

    def _report(self, who: str, names: list[str]) -> None:
        which = joined(names) if names else "parameters"
        self._training.add(
            Finding(
                "stale cast",
                self._number,
                f"The forward uses casts of {which} that autocast made before {who} stepped, so the updates do not "
                "reach the loss: one torch.autocast block is open around several steps, and keeps its cache of cast "
                "weights until it ends. What to do: open torch.autocast inside the loop, anew in each step, around the "
                "forward and the loss; or pass cache_enabled=False.",
                tensor=names[0] if names else None,
            )
        )


class LeftOutUpdates:
    """Sets the flag `found_inf` of fused optimizers. If it is 1, their kernels leave parameters and state unchanged,
    and the CPU need not wait for the device. The flag is removed after the step, or before the next one if the step
    raised. A gradient scaler's flag is left in place.
    """

    def __init__(self) -> None:
        self._flagged: Optimizer | None = None  # the optimizer with our flag

    def begins(self, optimizer: Optimizer, others: Iterable[Tensor]) -> bool | None:
        """Make the device skip this step's update if an element of its gradients or of `others` is not finite.

        Returns:
            True if the device will. False if a gradient scaler has set its own flag; None if the optimizer is not
                fused.
        """
        self.ends()
        # torch.amp.GradScaler makes fused optimizers skip an update in this way (torch/amp/grad_scaler.py): it sets a
        # tensor `found_inf` on an optimizer whose class has `_step_supports_amp_scaling`.
        if getattr(optimizer, "found_inf", None) is not None:
            return False
        if not is_fused(optimizer) or not getattr(optimizer, "_step_supports_amp_scaling", False):
            return None
        gradients = [each.grad for each in parameters_of(optimizer) if each.grad is not None]
        flag = _flag_of({id(each): each for each in (*gradients, *others)}.values())
        if flag is not None:
            self._flagged = optimizer
            optimizer.found_inf = flag  # type: ignore[attr-defined]
        return True

    def ends(self) -> None:
        optimizer, self._flagged = self._flagged, None
        if optimizer is not None and hasattr(optimizer, "found_inf"):
            del optimizer.found_inf


def _flag_of(tensors: Iterable[Tensor]) -> Tensor | None:
    """Return 1 if an element is not finite, else 0, on the device of the first tensor."""
    plain = [each.detach() for each in tensors if each.layout is torch.strided and each.numel()]
    if not plain:
        return None
    home = plain[0].device
    bad = [each.isfinite().all().logical_not_().to(home, torch.float32, non_blocking=True) for each in plain]
    return torch.stack(bad).amax()

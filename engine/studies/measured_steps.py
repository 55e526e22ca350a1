"""Steps of a model under one way to save memory: their time, their peak, and whether their gradients are the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch
from torch import Tensor, nn

from ..api.make_loss import MakeLoss, own_gradients, same_random_numbers
from ..api.restore_state import AsFound
from ..memory.function_levels import allocated_levels
from ..recompute.apply_plan import apply_plan
from ..recompute.planned_recompute import PlannedRecompute


class MeasuredWay:
    """One way to save memory: the context around a step, and the recompute plan of its forward."""

    def __init__(
        self, name: str, around: Callable[[], AbstractContextManager[object]], plan: PlannedRecompute | None = None
    ) -> None:
        self.name = name
        self.around = around
        self.plan = plan
        self.peak_bytes = self.backward_peak_bytes = 0
        self.same_gradients = self.same_state = True
        self.times_ns: list[int] = []
        self.first_ns = 0  # of a step before the rounds, for a study that is interrupted

    def forward(self) -> AbstractContextManager[object]:
        """Return the context manager for the forward; a plan that drops nothing needs none."""
        if self.plan is None or self.plan.left_alone is not None:
            return nullcontext()
        return apply_plan(self.plan)


class StepBench:
    """Runs steps of one model, each from the same parameters, buffers, random numbers and .grad."""

    def __init__(
        self,
        model: nn.Module,
        make_loss: MakeLoss,
        device: torch.device,
        leaves: Sequence[Tensor] = (),
        world: AsFound | None = None,
    ) -> None:
        self.model = model
        self.make_loss = make_loss
        self._device = device
        self._world = world
        self._parameters = [*model.parameters(), *leaves]
        self._buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
        self._expected: tuple[list[Tensor | None], list[Tensor]] | None = None

    @contextmanager
    def as_before(self) -> Iterator[None]:
        if self._world is not None:
            with self._world.run(self._parameters, zeroed=True):
                yield
            return
        with own_gradients(self._parameters), same_random_numbers():
            for parameter in self._parameters:
                parameter.grad = None
            try:
                yield
            finally:
                with torch.no_grad():
                    for buffer, before in self._buffers:
                        buffer.copy_(before)

    def measure(self, way: MeasuredWay) -> None:
        """Measure the memory of a way after two steps: one to compile or to verify a plan, one to compare gradients."""
        with self.as_before():
            self._step(way)
        with self.as_before():
            began = time.perf_counter_ns()
            self._step(way)
            self._wait()
            way.first_ns = time.perf_counter_ns() - began
            gradients = [parameter.grad for parameter in self._parameters]
            state = [buffer.clone() for buffer, _ in self._buffers]
        if self._expected is None:
            with self.as_before():
                self._step(way)
                self._expected = [parameter.grad for parameter in self._parameters], [*map(_copy, self._buffers)]
        way.same_gradients = same_tensors(gradients, self._expected[0])
        way.same_state = same_tensors(state, self._expected[1])
        del gradients, state
        with self.as_before():
            way.peak_bytes, way.backward_peak_bytes = self._peaks(way)

    def time(self, way: MeasuredWay) -> int:
        """Time a step, in nanoseconds."""
        with self.as_before():
            self._wait()
            began = time.perf_counter_ns()
            self._step(way)
            self._wait()
            return time.perf_counter_ns() - began

    def _step(self, way: MeasuredWay, done: Callable[[], object] = lambda: None) -> None:
        """Run a forward and its backward, and call `done` at the end of each."""
        with way.around():
            with way.forward():
                loss = self.make_loss()
            done()
            loss.backward()  # type: ignore[no-untyped-call]
            done()

    def _peaks(self, way: MeasuredWay) -> tuple[int, int]:
        """Measure the peak of a step and of its backward, in bytes."""
        if self._device.type != "cuda":
            _, levels = allocated_levels(lambda step: self._step(way, step), self._device)
            return max(levels.forward_peak_bytes, levels.peak_bytes), levels.peak_bytes
        before = _requested("current")
        torch.cuda.reset_peak_memory_stats()
        peaks: list[int] = []

        def done() -> None:
            peaks.append(_requested("peak"))
            torch.cuda.reset_peak_memory_stats()

        self._step(way, done)
        return max(peaks) - before, peaks[1] - before

    def _wait(self) -> None:
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)


def _copy(buffer: tuple[Tensor, Tensor]) -> Tensor:
    return buffer[0].clone()


def _requested(which: Literal["current", "peak"]) -> int:
    """Return the bytes requested from CUDA's allocator; its blocks may be larger."""
    nbytes: int = torch.cuda.memory_stats()[f"requested_bytes.all.{which}"]
    return nbytes


def same_tensors(
    tensors: Sequence[Tensor | None],
    others: Sequence[Tensor | None],
    equal: Callable[[Tensor, Tensor], bool] = torch.equal,
) -> bool:
    """Return whether the same tensors are missing in both, and all others are equal."""
    return all(
        one is other is None or (one is not None and other is not None and equal(one, other))
        for one, other in zip(tensors, others, strict=True)
    )

"""What a workload is, ready-made or from a user's own program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...errors import verbs_end_where_called
from .workload_models_autograd import ByHand, Program, Step

Size = Literal["small", "full"]

OF_HIPS = ("rnn", "fan_out", "elementwise", "needless")
"""The programs of HIPS/autograd #219, which have a gradient by hand and a program for NumPy; no others do."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A model, what to feed it, and what makes a scalar of its output: `criterion(model(*inputs), *targets)`.

    `on_cpu` are modules of the model that stay on the CPU when it goes to an accelerator.
    """

    model: nn.Module
    inputs: tuple[Tensor, ...]
    criterion: Callable[..., Tensor]
    targets: tuple[Tensor, ...] = ()
    on_cpu: tuple[nn.Module, ...] = ()


@verbs_end_where_called
@dataclass(frozen=True, slots=True)
class Workload:
    """A ready model.

    Attributes:
        name: what users call it, "resnet50".
        title: what it is, in words.
        source: where the model is from: paper or repository.
        make: makes the model and its data, called with the arguments of a size.
        small, full: those arguments for either size.
        gradient: the gradient written by hand; None where there is none.
        program: the same program for NumPy's arrays and HIPS autograd; None where there is none.
        blocks: the classes of the modules that its user would put under torch.utils.checkpoint; none where nothing
            repeats as a module.
    """

    name: str
    title: str
    source: str
    make: Callable[..., Parts] = field(repr=False)
    small: Mapping[str, int]
    full: Mapping[str, int]
    gradient: Callable[..., ByHand] | None = field(default=None, repr=False)
    program: Callable[..., Program] | None = field(default=None, repr=False)
    blocks: tuple[type[nn.Module], ...] = ()

    def build(
        self,
        size: Size = "small",
        seed: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        **knobs: int,
    ) -> tuple[nn.Module, Callable[[], Tensor]]:
        """Makes the model and its data.

        Args:
            size: "small" or "full".
            seed: of parameters and data; the random numbers are drawn on the CPU, so they are the same on any device.
                torch's own generators are left as they were.
            device: where the model lives. On "meta", and under FakeTensorMode, nothing is allocated. Of two_devices
                one half stays on the CPU.
            dtype: of parameters and of data that are no whole numbers, which are made in torch's default one and cast.
                None: as made.
            knobs: replace single arguments of the size, such as `batch=8, pixels=64` of resnet50.

        Returns:
            The model, and a function that runs one fresh forward on the same data and returns the scalar loss.

        Raises:
            ValueError: an unknown size or knob.
        """
        parts = self._parts(size, seed, torch.device(device), dtype, knobs)

        def make_loss() -> Tensor:
            return parts.criterion(parts.model(*parts.inputs), *parts.targets)

        return parts.model, make_loss

    def by_hand(
        self,
        size: Size = "small",
        seed: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        *,
        fused: bool = False,
        **knobs: int,
    ) -> tuple[nn.Module, Callable[..., ByHand]]:
        """The same model on the same data, and its gradient written by hand: torch's operations, no autograd.

        Args:
            size, seed, device, dtype, knobs: as in `build`.
            fused: add each product to the sum of gradients in the call that computes it (`addmm_`). No backward that
                passes gradients from node to node can: there each is a tensor of its own first.

        Returns:
            The model, and a function of no arguments, or of one: `step`, which it calls when the forward is done and
            after each step of the backward. It gives the loss and the gradients by parameter; no .grad is touched.

        Raises:
            ValueError: there is no such gradient for this workload; an unknown size or knob.
        """
        gradient = self._found("gradient", "gradient written by hand")
        parts = self._parts(size, seed, torch.device(device), dtype, knobs)

        @torch.no_grad()
        def compute(step: Step = lambda: None) -> ByHand:
            found: ByHand = gradient(parts.model, *parts.inputs, *parts.targets, fused=fused, step=step)
            return found

        return parts.model, compute

    def in_numpy(self, size: Size = "small", seed: int = 0, dtype: torch.dtype | None = None, **knobs: int) -> Program:
        """The same program on the same numbers for `autograd.numpy`: `ts.hips.tape(fun, *args)`.

        Args:
            size, seed, dtype, knobs: as in `build`.

        Returns:
            A function and its arguments, of which the first is what the gradient is wanted of: the parameters, a tuple
            where there are several.

        Raises:
            ValueError: there is no such program for this workload; an unknown size or knob.
            ModuleNotFoundError: the package autograd is not installed.
        """
        program = self._found("program", "program for NumPy")
        parts = self._parts(size, seed, torch.device("cpu"), dtype, knobs)
        found: Program = program(parts.model, *parts.inputs, *parts.targets)
        return found

    def _found(self, attribute: Literal["gradient", "program"], what: str) -> Callable[..., Any]:
        found: Callable[..., Any] | None = getattr(self, attribute)
        if found is None:
            raise ValueError(f"workload {self.name} has no {what}; those which have: {', '.join(OF_HIPS)}")
        return found

    def _parts(
        self, size: str, seed: int, device: torch.device, dtype: torch.dtype | None, knobs: Mapping[str, int]
    ) -> Parts:
        parts = self._make(self._arguments(size, knobs), seed, torch.device("meta" if device.type == "meta" else "cpu"))
        if device.type == "cpu" and dtype is None:
            return parts  # modules under FakeTensorMode can not be moved, not even there
        model = parts.model.to(device, dtype)
        for module in parts.on_cpu:
            if device.type != "meta":
                module.cpu()

        def there(tensor: Tensor) -> Tensor:
            return tensor.to(device, dtype if tensor.is_floating_point() else None)

        return Parts(model, tuple(map(there, parts.inputs)), parts.criterion, tuple(map(there, parts.targets)))

    def _arguments(self, size: str, knobs: Mapping[str, int]) -> dict[str, int]:
        if size not in ("small", "full"):
            raise ValueError(f"unknown size {size!r} of workload {self.name}; known: small, full")
        for knob in knobs:
            if knob not in self.full:
                raise ValueError(f"workload {self.name} has no knob {knob!r}; known: {', '.join(self.full)}")
        return {**(self.small if size == "small" else self.full), **knobs}

    def _make(self, arguments: Mapping[str, int], seed: int, device: torch.device) -> Parts:
        # torch.manual_seed would also seed the generators of all GPUs, which the fork does not restore.
        with torch.random.fork_rng(devices=[]), device:
            torch.default_generator.manual_seed(seed)
            return self.make(**arguments)


@dataclass(frozen=True, slots=True)
class OwnProgram(Workload):
    """A user's function that makes the loss. It has one size, its own, and its tensors are where it makes them."""

    make_loss: Callable[[], Tensor] = field(kw_only=True, repr=False)

    def build(
        self,
        size: Size = "small",
        seed: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        **knobs: int,
    ) -> tuple[nn.Module, Callable[[], Tensor]]:
        """An empty module, and the function as it is: size, seed, device and dtype are its own doing.

        Raises:
            ValueError: a knob; it has none.
        """
        self.refuse_knobs(knobs)
        return nn.Module(), self.make_loss

    def refuse_knobs(self, knobs: Mapping[str, int]) -> None:
        """Raises ValueError if there are any: it has none."""
        for knob in knobs:
            raise ValueError(f"{self.name} is a function of yours: it has no knob {knob!r}")


def own_program(make_loss: Callable[[], Tensor], name: str, title: str | None = None) -> OwnProgram:
    """A user's function as a workload.

    Args:
        make_loss: runs the forward and returns the loss.
        name: what tables call it.
        title: what it is, in words.
    """

    def checked() -> Tensor:
        loss = make_loss()
        if isinstance(loss, Tensor) and not loss.requires_grad:
            raise ValueError(
                f"{name} makes a loss without a graph: was it computed under torch.no_grad(), detached, or does no "
                "input of it require grad?"
            )
        return loss

    return OwnProgram(name, title or "your own function", "", _has_no_parts, {}, {}, make_loss=checked)


def _has_no_parts() -> Parts:
    raise ValueError("a function of yours is no model with its data: it can only be called")

"""Workloads: built-in models and users' own programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...errors import verbs_end_where_called
from ...inspector.validation import expect
from ..api.make_loss import expect_make_loss
from .workload_models_autograd import ByHand, Program, Step

Size = Literal["small", "full"]

OF_HIPS = ("rnn", "fan_out", "elementwise", "needless")
"""The programs of HIPS/autograd #219. Only these have a hand-written gradient and a program for NumPy."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A model, its inputs and targets, and the criterion: the loss is `criterion(model(*inputs), *targets)`.

    The modules in `on_cpu` stay on the CPU when the model moves to an accelerator.
    """

    model: nn.Module
    inputs: tuple[Tensor, ...]
    criterion: Callable[..., Tensor]
    targets: tuple[Tensor, ...] = ()
    on_cpu: tuple[nn.Module, ...] = ()


@verbs_end_where_called
@dataclass(frozen=True, slots=True)
class Workload:
    """A built-in model.

    Attributes:
        name: its name, such as "resnet50".
        title: a short description.
        source: the paper or repository that the model is from.
        make: a function that creates the model and its data from the arguments of a size.
        small, full: the arguments for the two sizes.
        gradient: the hand-written gradient; None if there is none.
        program: the same program for NumPy arrays and HIPS autograd; None if there is none.
        blocks: the classes of modules that users would put under torch.utils.checkpoint; empty if no module repeats.
        device_of: the modules that a simulation of several devices moves to another one, for `ts.makespan` on a machine
            with one device; empty if the workload is meant for a single device.
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
    device_of: Mapping[str, str] = field(default_factory=dict)

    def build(
        self,
        size: Size = "small",
        seed: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        **knobs: int,
    ) -> tuple[nn.Module, Callable[[], Tensor]]:
        """Create the model and its data.

        Args:
            size: "small" or "full".
            seed: the seed of parameters and data. Random numbers are drawn on the CPU, so they are the same on any
                device. torch's global generators are not changed.
            device: the device of the model. Nothing is allocated on "meta" and under FakeTensorMode. One half of
                two_devices stays on the CPU.
            dtype: the dtype of parameters and floating-point data, which are created in torch's default dtype and cast.
                None: no cast.
            knobs: replacements for single arguments of the size, such as `batch=8, pixels=64` for resnet50.

        Returns:
            The model, and a function that runs a new forward on the same data and returns the scalar loss.

        Raises:
            ValueError: if the size or a knob is unknown.
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
        """Create the same model and data with its hand-written gradient, which uses torch's operations, not autograd.

        Args:
            size, seed, device, dtype, knobs: as in `build`.
            fused: add each product to the sum of gradients in the call that computes it (`addmm_`). A backward that
                passes gradients between nodes cannot do this, because each gradient is a separate tensor first.

        Returns:
            The model, and a function with one optional argument, `step`, which it calls after the forward and after
            each step of the backward. It returns the loss and the gradients by parameter. No .grad changes.

        Raises:
            ValueError: if this workload has no hand-written gradient, or the size or a knob is unknown.
        """
        gradient = self._found("gradient", "gradient written by hand")
        parts = self._parts(size, seed, torch.device(device), dtype, knobs)

        @torch.no_grad()
        def compute(step: Step = lambda: None) -> ByHand:
            found: ByHand = gradient(parts.model, *parts.inputs, *parts.targets, fused=fused, step=step)
            return found

        return parts.model, compute

    def in_numpy(self, size: Size = "small", seed: int = 0, dtype: torch.dtype | None = None, **knobs: int) -> Program:
        """Return the same program with the same data for `autograd.numpy`, to use as `ts.hips.tape(fun, *args)`.

        Args:
            size, seed, dtype, knobs: as in `build`.

        Returns:
            A function and its arguments. The gradient is computed for the first argument, the parameters (a tuple if
            there are several).

        Raises:
            ValueError: if this workload has no such program, or the size or a knob is unknown.
            ModuleNotFoundError: if the package autograd is not installed.
        """
        program = self._found("program", "program for NumPy")
        parts = self._parts(size, seed, torch.device("cpu"), dtype, knobs)
        found: Program = program(parts.model, *parts.inputs, *parts.targets)
        return found

    def _found(self, attribute: Literal["gradient", "program"], what: str) -> Callable[..., Any]:
        found: Callable[..., Any] | None = getattr(self, attribute)
        if found is None:
            raise ValueError(f"workload {self.name} has no {what}; expected one of {', '.join(OF_HIPS)}")
        return found

    def _parts(
        self, size: str, seed: int, device: torch.device, dtype: torch.dtype | None, knobs: Mapping[str, int]
    ) -> Parts:
        arguments = self._arguments(size, knobs)
        # torch.manual_seed would also seed the generators of all GPUs, which the fork does not restore.
        with torch.random.fork_rng(devices=[]), torch.device("meta" if device.type == "meta" else "cpu"):
            torch.default_generator.manual_seed(seed)
            parts = self.make(**arguments)
        if device.type == "cpu" and dtype is None:
            return parts  # modules under FakeTensorMode cannot be moved, even to the meta device
        model = parts.model.to(device, dtype)
        for module in parts.on_cpu:
            if device.type != "meta":
                module.cpu()

        def there(tensor: Tensor) -> Tensor:
            return tensor.to(device, dtype if tensor.is_floating_point() else None)

        return Parts(model, tuple(map(there, parts.inputs)), parts.criterion, tuple(map(there, parts.targets)))

    def _arguments(self, size: str, knobs: Mapping[str, int]) -> dict[str, int]:
        if size not in ("small", "full"):
            raise ValueError(f"unknown size {size!r} of workload {self.name}; expected small or full")
        for knob in knobs:
            if knob not in self.full:
                known = ", ".join(self.full)
                raise ValueError(f"workload {self.name} takes no argument {knob!r}; expected one of {known}")
        return {**(self.small if size == "small" else self.full), **knobs}


@dataclass(frozen=True, slots=True)
class OwnProgram(Workload):
    """A user's function that returns a loss. It has no sizes, and chooses its devices itself."""

    make_loss: Callable[[], Tensor] = field(kw_only=True, repr=False)

    def build(
        self,
        size: Size = "small",
        seed: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        **knobs: int,
    ) -> tuple[nn.Module, Callable[[], Tensor]]:
        """Return an empty module and the function, which ignores size, seed, device and dtype.

        Raises:
            ValueError: if a knob is passed.
        """
        self.refuse_knobs(knobs)
        return nn.Module(), self.make_loss

    def refuse_knobs(self, knobs: Mapping[str, int]) -> None:
        """Raise ValueError if any knob is passed."""
        for knob in knobs:
            raise ValueError(f"{self.name} is your own function, which takes no argument {knob!r}")


def own_program(make_loss: Callable[[], Tensor], name: str, title: str | None = None) -> Workload:
    """Return a user's function as a workload.

    Args:
        make_loss: a function that runs the forward and returns the loss.
        name: its name in tables.
        title: a short description.

    Returns:
        The workload, for `ts.studies.accumulation`, `orders` and `recompute`.

    Raises:
        TypeError: if an argument has the wrong type.
    """
    expect_make_loss(make_loss, "ts.studies.own_program")
    expect(name, str, "name", "the name in tables")
    expect(title, str | None, "title", "a short description")

    def checked() -> Tensor:
        loss = make_loss()
        if isinstance(loss, Tensor) and not loss.requires_grad:
            raise ValueError(
                f"{name} returns a loss without a graph. Check that it is not computed under torch.no_grad() or "
                "detached, and that an input requires grad."
            )
        return loss

    return OwnProgram(name, title or "your own function", "", _has_no_parts, {}, {}, make_loss=checked)


def _has_no_parts() -> Parts:
    raise ValueError("your own function can only be called; it has no separate model and data")

"""Restores a model to its state in a recorded step, after finding the differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ....inspector.graph.phrases import joined
from ....inspector.torch_private.thread_state import unobserved
from ...api.environment import FLAGS, flags_now, machine_now
from .batch import TensorFacts
from .batch_source import inputs_of
from .models import named, unwrapped
from .read_step import RecordedStep

_KINDS = "an nn.Module, or a list, tuple or nn.ModuleList of them"


def modules_of(made: object) -> list[nn.Module]:
    """Return the modules in the result of `make_model()`.

    Raises:
        TypeError: if it is not a module or a list of modules.
    """
    if isinstance(made, nn.Module):
        return [unwrapped(made)]
    several = list(made.values()) if isinstance(made, dict) else list(made) if isinstance(made, list | tuple) else []
    if several and all(isinstance(each, nn.Module) for each in several):
        return [unwrapped(each) for each in several]
    raise TypeError(f"make_model() returned {type(made).__name__}; expected {_KINDS}")


def as_recorded(modules: Sequence[nn.Module], step: RecordedStep) -> list[nn.Module]:
    """Return the models as the recording counts them; a `nn.ModuleList` may stand for its modules."""
    if len(modules) == 1 and len(step.models) > 1 and isinstance(modules[0], nn.ModuleList | nn.Sequential):
        return list(modules[0])
    return list(modules)


def refuse_other(modules: Sequence[nn.Module], step: RecordedStep) -> None:
    """Raise if the recorded values do not fit the model.

    Raises:
        ValueError: if names or shapes differ; the message lists them.
    """
    recorded = {"parameter": step.named("parameter/"), "buffer": step.named("0/buffer/")}
    for what, theirs in recorded.items():
        own = {name: _facts(each) for name, each in named(modules, f"{what}s")}
        missing, more = [name for name in theirs if name not in own], [name for name in own if name not in theirs]
        if what == "parameter" and (missing or more):
            parts = [f"make_model() has no {joined(missing)}"] if missing else []
            parts += [f"the recorded step has no {joined(more)}"] if more else []
            raise ValueError(
                f"{step.folder} was recorded with another model than make_model() returns ({', '.join(step.models)}): "
                f"{'; '.join(parts)}"
            )
        for name in theirs:
            if name in own and own[name].shape != theirs[name].shape:
                raise ValueError(
                    f"{step.folder} was recorded with another model than make_model() returns: the {what} {name} was "
                    f"{theirs[name]}, and is {own[name]}"
                )


def _facts(tensor: Tensor) -> TensorFacts:
    return TensorFacts(tensor.dtype, tuple(tensor.shape), (), str(tensor.device))


def differences(modules: Sequence[nn.Module], step: RecordedStep) -> Iterator[str]:
    """Yield the differences from the state in which the step was recorded, each as a sentence."""
    now = machine_now()
    for name, value in step.machine.items():
        if now.get(name, "") != value:
            yield f"{name}: {value} then, {now.get(name, 'unknown')} now; the last bits may differ"
    here = flags_now()
    for name, value in step.flags.items():
        if name in here and here[name] != value:
            can = "the replay uses the recorded value" if FLAGS[name][2](value) else "it cannot be set"
            yield f"{name}: {value} then, {here[name]} now; {can}"
    own = dict(named(modules, "parameters"))
    recorded = step.named("parameter/")
    others = [name for name, each in recorded.items() if own[name].dtype != each.dtype]
    if others:
        first = others[0]
        yield f"{joined(others)} had other dtypes ({recorded[first]}, and make_model() returns {_facts(own[first])})"
    frozen = [name for name, wanted in step.requires_grad.items() if name in own and own[name].requires_grad != wanted]
    if frozen:
        yield f"requires_grad of {joined(frozen)} differs; the recorded values are used"
    buffers = {name for name, _ in named(modules, "buffers")}
    there = set(step.named("0/buffer/"))
    if step.micro_batches and buffers != there:
        yield f"buffers differ: only one of the two models has {joined(sorted(buffers ^ there))}"
    away = sorted({each.device for each in step.tensors.values() if not _is_here(each.device)})
    if away:
        yield f"it ran on {joined(away)}, which this machine lacks; the replay uses the CPU, whose kernels differ"
    yield from _of_batches(step)


def _of_batches(step: RecordedStep) -> Iterator[str]:
    for number, each in enumerate(step.micro_batches):
        of = "" if len(step.micro_batches) == 1 else f" {number}"
        if each.written:
            places = joined([f"batch{place}" for place in each.written])
            yield f"the loop modified {places} of batch{of} in place before it was recorded, so the replay will differ"
        if each.left_out:
            yield f"parts of batch{of} were not recorded and are None: {joined(list(each.left_out))}"
        if (called := inputs_of(each.origin)) is not None:
            yield f"batch{of} consists of the arguments of {called}, because it did not come from a DataLoader"
    if step.before:
        yield f"{step.before:,} earlier micro-batches were not recorded, so the gradients differ from the recorded ones"


def _is_here(name: str) -> bool:
    device = torch.device(name)
    if device.type == "cpu":
        return True
    here = torch.accelerator.current_accelerator()
    return here is not None and here.type == device.type and (device.index or 0) < torch.accelerator.device_count()


def home_of(facts: TensorFacts) -> torch.device:
    """Return a tensor's recorded device if this machine has it, or the CPU."""
    return torch.device(facts.device if _is_here(facts.device) else "cpu")


def put_in(modules: Sequence[nn.Module], step: RecordedStep, tensors: Mapping[str, Tensor]) -> None:
    """Set the recorded parameters and modes in the models; `put_buffers` sets the buffers."""
    _move(modules, step)
    with unobserved():
        for name, each in named(modules, "parameters"):
            _put(each, tensors[f"parameter/{name}"], step.tensors[f"parameter/{name}"])
            each.requires_grad_(step.requires_grad.get(name, each.requires_grad))
    for name, module in named(modules, "modules"):
        if name in step.training:
            module.training = step.training[name]


def _move(modules: Sequence[nn.Module], step: RecordedStep) -> None:
    """Move modules to their recorded devices, outer modules first."""
    recorded = step.named("parameter/") | step.named("0/buffer/")
    for path, module in named(modules, "modules"):
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, each in own:
            facts = recorded.get(f"{path}.{name}" if path else name)
            if facts is not None and each.is_meta:  # a meta tensor has no values to move and gets the recorded ones
                module.to_empty(device=home_of(facts))
                break
            if facts is not None and each.device != home_of(facts):
                module.to(home_of(facts))
                break


def put_buffers(modules: Sequence[nn.Module], step: RecordedStep, tensors: Mapping[str, Tensor], number: int) -> None:
    """Set the recorded buffers of a micro-batch in the models."""
    with unobserved():
        for name, each in named(modules, "buffers"):
            if (known := f"{number}/buffer/{name}") in tensors:
                _put(each, tensors[known], step.tensors[known])


def _put(tensor: Any, value: Tensor, facts: TensorFacts) -> None:
    home = home_of(facts)
    if tensor.dtype == value.dtype and tensor.stride() == value.stride() and tensor.device == home:
        tensor.copy_(value)
    else:
        tensor.data = value.to(home, copy=True)

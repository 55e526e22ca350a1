"""Converts a recorded unit to the content of a step's folder."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ....inspector.graph.phrases import joined
from ....inspector.text.sizes_and_counts import counted, size_text
from ...api.environment import flags_now, machine_now
from .batch import why_not_kept
from .batch_source import inputs_alone
from .models import Models, named
from .read_step import STATE, Written
from .step_recorder import MicroBatch, Unit


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason for writing a step.

    Attributes:
        kind: "non-finite", "exception", or the kind of a finding.
        sentence: the reason as a sentence.
        error: the exception that was raised, if any.
        gradients: when the current gradients were complete: "after the backward" or "before the optimizer's step";
            None: they are incomplete, or gone.
    """

    kind: str
    sentence: str
    error: BaseException | None = None
    gradients: str | None = None


def unit_as_written(step: int, unit: Unit, models: Models, reason: Reason) -> Written:
    """Return the content of the folder for a unit.

    Raises:
        NotImplementedError: a parameter or buffer cannot be written as bytes.
    """
    if left_out := models.left_out():
        raise NotImplementedError(f"parts of the model cannot be written as bytes: {joined(left_out)}")
    models.walk()
    now: Mapping[str, Tensor] = dict(models.parameters)
    tensors: dict[str, Tensor] = {}
    for name, each in now.items():
        tensors[f"parameter/{name}"] = each if unit.parameters is None else unit.parameters.get(name, each)
    for name, each in unit.gradients_before.items():
        tensors[f"gradient before/{name}"] = each
    without = []
    for name, each in now.items():
        if reason.gradients is not None and each.grad is not None:
            if why := why_not_kept(each.grad):
                without.append(f"{name} ({why})")
            else:
                tensors[f"gradient/{name}"] = each.grad
    micro_batches = []
    for number, micro_batch in enumerate(unit.micro_batches):
        content, own = _micro_batch(micro_batch)
        micro_batches.append(content)
        tensors |= {f"{number}/{name}": each for name, each in own.items()}
    facts: dict[str, Any] = {
        "step": step,
        "why": {"kind": reason.kind, "sentence": reason.sentence, **_error(reason.error)},
        "machine": machine_now(),
        "flags": flags_now(),
        "models": [type(each).__name__ for each in models.modules],
        "training": {name: each.training for name, each in named(models.modules, "modules")},
        "requires_grad": {name: each.requires_grad for name, each in now.items()},
        "gradients": reason.gradients,
        "gradients_left_out": without,
        "micro_batches": micro_batches,
        "micro_batches_before": unit.dropped,
    }
    return Written(tensors, facts, "\n".join(_readme(step, unit, models, reason, tensors, facts)) + "\n")


def _micro_batch(kept: MicroBatch) -> tuple[dict[str, Any], dict[str, Tensor]]:
    batch = kept.fetched.as_json()
    tensors = {f"batch/{number}": kept.fetched.content(each) for number, each in enumerate(batch.tensors)}
    tensors |= {f"buffer/{name}": each for name, each in kept.buffers.by_name.items()}
    tensors |= {f"random/{device}": each for device, each in kept.random.torch.items()}
    tensors["random at the model"] = kept.at_model
    if kept.loss is not None:
        tensors["loss"] = kept.loss
    if kept.scale is not None:
        tensors["scale"] = kept.scale
    content = {
        "from": kept.fetched.origin,
        "batch": batch.json,
        "left_out": batch.left_out,
        "written_in_place": kept.fetched.written,
        "autocast": kept.autocast,
        "backward": kept.done,
        **kept.random.as_json(),
    }
    return content, tensors


def _error(error: BaseException | None) -> dict[str, Any]:
    if error is None:
        return {}
    try:
        message = str(error)
    except Exception:
        message = "?"
    return {"error": type(error).__name__, "message": message, "traceback": "".join(traceback.format_exception(error))}


def _readme(
    step: int, unit: Unit, models: Models, reason: Reason, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> Iterator[str]:
    origins = dict.fromkeys(each.fetched.origin for each in unit.micro_batches)
    yield f"# Step {step} of a training loop\n"
    yield f"{reason.sentence}\n"
    yield "It runs again, forward and backward, with two functions of your script:\n"
    yield "    tapescope replay FOLDER train.py:make_model train.py:loss_of\n"
    yield "FOLDER is this folder. `make_model()` returns the model, with any values; `loss_of(model, batch)` returns"
    yield "the tensor on which the loop calls `.backward()`. In Python: `ts.replay(folder, make_model, loss_of)`.\n"
    yield "## Contents\n"
    yield "**These are your data: check them before you pass the folder on.**\n"
    yield f"`{STATE}`, which `torch.load(..., weights_only=True)` opens as a dict, {size_text(_bytes(tensors))}:\n"
    parameters = [each for name, each in tensors.items() if name.startswith("parameter/")]
    kinds = ", ".join(facts["models"])
    yield f"- `parameter/...`: the weights of {kinds}, {counted(len(parameters), 'tensor')}, before this step"
    yield f"- `0/batch/...`: training data, {counted(len(unit.micro_batches), 'batch')} from {joined([*origins])}"
    yield "- `0/buffer/...`: buffers before the forward"
    yield "- `0/random/...`: states of torch's random generators; Python's and NumPy's are in `facts.json`"
    yield "- `0/loss`, `gradient/...`: the loss and the gradients, if they were computed\n"
    yield "`facts.json`: numbers and strings of the batch, names and shapes, the machine and torch's version, flags,"
    yield "and the traceback of an exception, with paths of your files.\n"
    yield "Not recorded: code, the optimizer's state, and other state of the loop.\n"
    if alone := inputs_alone(origins):
        yield f"{alone}\n"
    for said in [place for each in facts["micro_batches"] for place in each["left_out"]]:
        yield f"Not recorded of the batch: {said}.\n"


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors.values())

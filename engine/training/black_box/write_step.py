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
        raise NotImplementedError(f"of the model {joined(left_out)} can't be written as bytes")
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
        told, own = _micro_batch(micro_batch)
        micro_batches.append(told)
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
    batch = kept.fetched.told()
    tensors = {f"batch/{number}": kept.fetched.content(each) for number, each in enumerate(batch.tensors)}
    tensors |= {f"buffer/{name}": each for name, each in kept.buffers.by_name.items()}
    tensors |= {f"random/{device}": each for device, each in kept.random.torch.items()}
    tensors["random at the model"] = kept.at_model
    if kept.loss is not None:
        tensors["loss"] = kept.loss
    if kept.scale is not None:
        tensors["scale"] = kept.scale
    told = {
        "from": kept.fetched.origin,
        "batch": batch.json,
        "left_out": batch.left_out,
        "written_in_place": kept.fetched.written,
        "autocast": kept.autocast,
        "backward": kept.done,
        **kept.random.as_json(),
    }
    return told, tensors


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
    yield "FOLDER is this one. `make_model()` makes the model, with any values; `loss_of(model, batch)` gives what the"
    yield "loop calls `.backward()` of. In Python: `ts.replay(folder, make_model, loss_of)`.\n"
    yield "## What is in it\n"
    yield "**These are data of yours: look at them before you give the folder to somebody else.**\n"
    yield f"`{STATE}`, which `torch.load(..., weights_only=True)` opens as a dict, {size_text(_bytes(tensors))}:\n"
    parameters = [each for name, each in tensors.items() if name.startswith("parameter/")]
    kinds = ", ".join(facts["models"])
    yield f"- `parameter/...`: the weights of {kinds}, {counted(len(parameters), 'tensor')}, as this step found them"
    yield f"- `0/batch/...`: the training data of {counted(len(unit.micro_batches), 'batch')}, of {joined([*origins])}"
    yield "- `0/buffer/...`: buffers, as they were before the forward"
    yield "- `0/random/...`: where random numbers stood; Python's and NumPy's are in `facts.json`"
    yield "- `0/loss`, `gradient/...`: what came of it, as far as there was any\n"
    yield "`facts.json`: numbers and texts of the batch, names and shapes, versions of torch and of this machine,"
    yield "flags, and the traceback, if there is one, with paths of your files.\n"
    yield "Not in it: code, the optimizer's state, and what the loop keeps elsewhere.\n"
    if alone := inputs_alone(origins):
        yield f"{alone}\n"
    for said in [place for each in facts["micro_batches"] for place in each["left_out"]]:
        yield f"Not in it either, of the batch: {said}.\n"


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors.values())

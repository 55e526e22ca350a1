"""Each argument of the public API is accepted, or refused in a sentence; no error is raised from inside."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
import torch
from torch import Tensor, nn

import tapescope as ts
from tapescope.tests.says import raises, says
from tapescope.widgets.deck.deck import Deck

from .engine.comparing import is_ours
from .public_names import PUBLIC_NAMES, public

MODEL = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))


def make_loss() -> Tensor:
    loss: Tensor = MODEL(torch.ones(2, 3)).sum()
    return loss


def train() -> None:
    make_loss().backward()
    torch.optim.SGD(MODEL.parameters(), 0.0).step()


def run() -> ts.Run:
    return ts.backward(make_loss(), trace="cheap", memory=True)


VALID: dict[str, Callable[[], dict[str, Any]]] = {
    "types.GroupRules": dict,
    "types.NativeSession": lambda: {"tensors": make_loss()},
    "types.Stepper": lambda: {"tensors": make_loss()},
    "types.BackwardCall": lambda: {"tensors": make_loss()},
    "studies.accumulation": lambda: {"name": "needless", "repetitions": 1, "additions": 3},
    "studies.batching": lambda: {"members": [2], "compiled": False, "repetitions": 1},
    "studies.orders": lambda: {"workloads": [ts.studies.own_program(make_loss, "own")], "repetitions": 1},
    "studies.own_program": lambda: {"make_loss": make_loss, "name": "own"},
    "studies.recompute": lambda: {
        "name": ts.studies.own_program(make_loss, "own"),
        "repetitions": 1,
        "seconds": 0.1,
        "compiled": False,
    },
    "advise": lambda: {"make_loss": make_loss, "model": MODEL, "rounds": 1},
    "studies.allocated_levels": lambda: {"compute": lambda step: step()},
    "trace_ready": lambda: {"folder": "traces"},
    "assert_peak": lambda: {"make_loss": lambda: nn.Linear(3, 1)(torch.ones(3)).sum(), "limit": "1MB"},
    "backward": lambda: {"tensors": make_loss()},
    "capture": dict,
    "orders.check_order": lambda: {"of": make_loss(), "constraints": []},
    "compare": lambda: {"make_loss": make_loss, "policies": "heap", "repetitions": 1},
    "orders.constrained": lambda: {"policy": "heap", "constraints": []},
    "debug": lambda: {"tensors": make_loss()},
    "deck": lambda: {"tensors": make_loss()},
    "diff": lambda: {"run_a": run(), "run_b": run()},
    "orders.dry_run": lambda: {"graph": ts.graph(make_loss())},
    "find_nan": lambda: {"make_loss": make_loss},
    "find_unused": lambda: {"make_loss": make_loss, "model": MODEL},
    "fits": lambda: {
        "make_model": lambda: nn.Linear(3, 1),
        "make_batch": lambda size=1: torch.ones(size, 3),
        "make_optimizer": lambda parameters: torch.optim.SGD(parameters, 0.1),
        "memory": "1MB",
        "loss_of": lambda model, batch: model(batch).sum(),
    },
    "graph": lambda: {"outputs": make_loss()},
    "find_batches": lambda: {"of": make_loss()},
    "set_policy": lambda: {"policy": "heap"},
    "load": lambda: {"path": "nowhere.json"},
    "makespan": lambda: {"of": make_loss()},
    "recompute": lambda: {"budget": 0.9},
    "find_order_dependence": lambda: {"make_loss": make_loss, "policies": "bfs", "model": MODEL},
    "peak_report": lambda: {"timeline": run().timeline},
    "percent_text": lambda: {"share": 0.5},
    "plan_order": lambda: {"of": make_loss()},
    "plan_recompute": lambda: {"make_loss": make_loss, "seconds": 0.1},
    "policy": lambda: {"policy": "heap"},
    "profile": lambda: {"make_loss": make_loss},
    "profile_step": lambda: {"function": train},
    "orders.queue_lengths": lambda: {"graph": ts.graph(make_loss()), "order": []},
    "record_forward": lambda: {"make_loss": make_loss, "repetitions": 1},
    "record_steps": dict,
    "share_text": lambda: {"part": 1, "whole": 2},
    "simulate": lambda: {"graph": ts.graph(make_loss())},
    "size_text": lambda: {"nbytes": 1},
    "statistics": lambda: {"gradient": torch.ones(3), "level": "cheap"},
    "replay": lambda: {"folder": "none", "make_model": lambda: MODEL, "loss_of": lambda model, batch: make_loss()},
    "training": dict,
    "orders.unpack_order": lambda: {"loss_or_graph": make_loss()},
    "wait_for_ranks": lambda: {"seconds": 10.0},
    "with_picture": lambda: {"figure": go.Figure()},
    "workload": lambda: {"name": "gpt2"},
}
"""Arguments with which each can be called."""

BAD: dict[str, object] = {
    "object": object(),
    "module": nn.ReLU(),
    "text": "x",
    "-1": -1,
    "nan": math.nan,
    "[]": [],
    "[object]": [object()],
    "None": None,
    "tensor": torch.ones(2),
    "dict": {"a": 1},
    "of none": lambda: 1,
    "of two": lambda first, second: 7,
}

NONE = (
    "studies.accumulation.progress studies.accumulation.so_far studies.batching.progress studies.orders.progress "
    "studies.own_program.title studies.recompute.progress studies.recompute.so_far "
    "advise.model advise.rounds advise.progress assert_peak.optimizer backward.grad_tensors "
    "backward.retain_graph backward.inputs backward.engine backward.trace backward.batch capture.model "
    "capture.observer compare.recompute compare.progress compare.model compare.step find_order_dependence.model "
    "find_order_dependence.progress find_nan.model plan_recompute.model profile.model record_forward.model "
    "recompute.model plan_order.model find_batches.model makespan.model profile_step.model record_steps.model "
    "fits.loss_of fits.batch_size fits.device fits.reserve recompute.plan recompute.budget recompute.overhead "
    "recompute.seconds deck.grad_tensors deck.retain_graph deck.inputs deck.trace deck.batch deck.queues "
    "deck.recompute debug.grad_tensors debug.retain_graph debug.inputs debug.trace debug.batch debug.queues "
    "debug.recompute diff.tolerance graph.model find_batches.rules set_policy.policy set_policy.trace "
    "set_policy.on_run makespan.durations makespan.device_of makespan.policies peak_report.others peak_report.before "
    "peak_report.trace plan_order.footprints plan_order.progress plan_recompute.budget plan_recompute.overhead "
    "plan_recompute.progress policy.trace policy.on_run profile.retain_graph profile.trace profile.device "
    "profile.batch simulate.device simulate.footprints simulate.retain_graph statistics.gradient training.model "
    "training.optimizer training.black_box training.writer types.BackwardCall.grad_tensors "
    "types.BackwardCall.retain_graph types.BackwardCall.inputs types.Stepper.measuring types.Stepper.batch "
    "types.Stepper.queues types.NativeSession.trace types.Stepper.trace"
)
MEANT = {
    *((where, "None") for where in NONE.split()),
    ("studies.own_program.make_loss", "of none"),  # it is called when the study runs
    ("studies.own_program.name", "text"),
    ("studies.own_program.title", "text"),
    ("advise.model", "module"),  # names that may be unknown
    ("capture.model", "module"),
    ("training.model", "module"),
    ("training.black_box", "text"),
    *(
        (f"{verb}.model", "module")
        for verb in (
            "compare",
            "find_nan",
            "recompute",
            "find_order_dependence",
            "plan_recompute",
            "profile",
            "record_forward",
        )
        + ("plan_order", "find_batches", "makespan", "profile_step", "record_steps")
    ),
    ("graph.model", "module"),
    ("find_unused.model", "module"),  # it has no parameters
    ("statistics.gradient", "tensor"),
    ("peak_report.others", "dict"),
    ("orders.constrained.constraints", "[]"),
    ("orders.check_order.constraints", "[]"),
    ("orders.constrained.policy", "of two"),  # what it returns is looked at when it is asked
    ("set_policy.policy", "of two"),
    ("simulate.order", "[]"),  # a backward in which nothing runs
    ("orders.queue_lengths.order", "[]"),
    ("orders.dry_run.device", "None"),
    ("trace_ready.folder", "text"),
    *(
        (where, number)
        for where in ("size_text.nbytes", "share_text.part", "share_text.whole", "percent_text.share")
        for number in ("-1", "nan")
    ),
}
"""Of the bad arguments those that are good ones there."""

SAID_ELSEWHERE = re.compile(
    "gradients can be either Tensors or None|Mismatch in shape: grad_output|can't retain_grad|"
    "all inputs have to be Tensors or GradientEdges|`inputs` argument to|Invalid device string|device index must|"
    "torch.device|No such file or directory",
    re.IGNORECASE,
)
"""Sentences of PyTorch's and Python's own which say as much."""

FROM_INSIDE = re.compile(
    "has no attribute|object is not|object cannot|missing \\d+ required|takes \\d+ positional|unhashable|not supported|"
    "Boolean value of|interpreted as|must be Tensor, not"
)
NAMED = {
    "object": ("object",),
    "module": ("ReLU",),
    "text": ("'x'", "str"),
    "-1": ("int", "-1"),
    "nan": ("float", "nan"),
    "[]": ("list", "tensor", "policy", "0 gradients", "0 tasks"),
    "[object]": ("object", "list", "1 tasks"),
    "None": ("None",),
    "tensor": ("Tensor", "(2,)", "2 tasks"),
    "dict": ("dict", "'a'", '"a"', "str", "1 tasks"),
    "of none": ("function", "<lambda>"),
    "of two": ("function", "<lambda>"),
}
"""What a message names, unless the parameter: the bad argument, its type, or how many of what there are."""

ANOTHER_FIRST = {"replay.make_model", "replay.loss_of"}
"""Parameters before which another argument is looked at: the folder, which is not there."""


def called_by_users() -> Mapping[str, Callable[..., Any]]:
    """Return the callables of users by name. Classes that are only returned are left out."""
    classes = ("BackwardCall", "GroupRules", "NativeSession", "Stepper")
    called = {*(f"types.{name}" for name in classes), "capture", "recompute", "record_steps"}
    every = {name: public(name) for name in PUBLIC_NAMES}
    return {name: each for name, each in every.items() if inspect.isfunction(each) or name in called}


def use(name: str, arguments: dict[str, Any]) -> None:
    """Calls it, and has it do what it is for."""
    found = public(name)(**arguments)
    try:
        if isinstance(found, ts.types.BackwardCall):
            found = ts.types.Stepper(found)
        if isinstance(found, ts.types.Stepper | ts.types.NativeSession | Deck):
            found.run()
        elif isinstance(found, ts.recompute):
            found(make_loss)
        elif isinstance(found, AbstractContextManager):
            with found:
                make_loss().backward()
    finally:
        if isinstance(found, Deck):
            found.close()
        if name == "set_policy":
            ts.set_policy(None)


def test_every_function_is_looked_at() -> None:
    assert set(VALID) == set(called_by_users()) - {"hips.levels", "hips.tape"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", VALID)
def test_an_argument_is_meant_or_refused_in_a_sentence_about_it(
    name: str, bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for parameter in inspect.signature(public(name)).parameters:
        arguments = VALID[name]() | {parameter: BAD[bad]}
        if (f"{name}.{parameter}", bad) in MEANT:
            use(name, arguments)
            continue
        with pytest.raises((TypeError, ValueError, RuntimeError, OSError)) as refused:
            use(name, arguments)
        said = str(refused.value)
        assert not FROM_INSIDE.search(said), (parameter, said)
        facts = (*NAMED[bad], *(("black_box",) if f"{name}.{parameter}" in ANOTHER_FIRST else ()))
        assert parameter in said or _says_any(said, facts) or SAID_ELSEWHERE.search(said), (parameter, said)
        inside = is_ours(refused.traceback[-1].path)
        assert inside or SAID_ELSEWHERE.search(said), (parameter, said, refused.traceback[-1])


def _says_any(said: str, facts: Iterable[str]) -> bool:
    for fact in facts:
        with suppress(AssertionError):
            says(said, fact)
            return True
    return False


@pytest.mark.parametrize("bad", [bad for bad in BAD if bad not in ("of none", "of two")])
def test_a_function_that_is_none_and_a_number_that_is_none_make_no_tape(bad: str) -> None:
    pytest.importorskip("autograd")
    with raises(TypeError, "ts.hips.tape"):
        ts.hips.tape(BAD[bad], 1.0)  # type: ignore[arg-type]
    with raises((TypeError, IndexError), "argnum"):
        ts.hips.tape(lambda x: x * x, argnum=BAD[bad])  # type: ignore[arg-type]


class Loss(nn.Module):
    def forward(self) -> Tensor:
        return make_loss()


def test_a_module_that_takes_nothing_and_gives_a_loss_is_one_as_any_function() -> None:
    assert ts.find_unused(Loss(), MODEL).count == 4
    assert not ts.find_nan(Loss())


class Choose(nn.Module):
    def forward(self, ready: list[ts.Task], state: object) -> ts.Task:
        return ready[0]


def test_a_module_of_the_users_may_choose() -> None:
    assert ts.backward(make_loss(), policy=Choose()).order == ts.backward(make_loss(), policy=lambda r, s: r[0]).order


def test_flags_may_be_numbers_as_pytorchs_may() -> None:
    for engine in ("native", "direct"):
        loss = make_loss()
        ts.backward(loss, retain_graph=1, create_graph=0, engine=engine)  # type: ignore[arg-type]
        ts.backward(loss, engine=engine)  # type: ignore[arg-type]
        ts.backward(make_loss(), create_graph=1, engine=engine)  # type: ignore[arg-type]
    MODEL.zero_grad()


def test_dir_shows_what_a_user_may_use() -> None:
    run = ts.backward(make_loss())
    named = {name for name in dir(run) if not name.startswith("_")}
    assert {"graph", "order", "planned", "trace", "peak", "save", "deck"} <= named
    assert all(name in vars(run) or hasattr(type(run), name) or name in ("graph", "order", "planned") for name in named)
    assert not named & {"late", "with_memory", "elsewhere"}
    with ts.training(MODEL) as training:
        pass
    named = {name for name in dir(training) if not name.startswith("_")}
    assert named == {
        *(
            "baselines",
            "black_box",
            "every",
            "findings",
            "memory",
            "modules",
            "norms",
            "notes",
            "page",
            "save_html",
            "start",
        ),
        *("step", "step_time", "steps", "stop", "table", "to_pandas", "write_to"),
    }
    MODEL.zero_grad()

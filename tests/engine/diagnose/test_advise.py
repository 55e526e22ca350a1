from __future__ import annotations

import os
import random
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import tapescope as ts
from tapescope.engine.api.time_backwards import Spread
from tapescope.engine.diagnose import advise as advice_module
from tapescope.engine.diagnose.change_trial import Cost, Trial, try_change
from tapescope.engine.diagnose.find_ensembles import Ensemble
from tapescope.engine.diagnose.generated_code import Change
from tapescope.engine.studies.workloads import workload
from tapescope.inspector.text.sizes_and_counts import size_text
from tapescope.tests.says import Snapshots, raises, says, says_none_of

from ..ensemble_programs import WIDTH, Members, batch, perceptron

MS = 1e6  # nanoseconds


def loss_of(model: nn.Module, x: Any = None) -> Callable[[], Tensor]:
    given = batch() if x is None else x
    return lambda: model(given).square().mean()


def taking(cost: Cost, ms: float) -> Cost:
    forward, back, both = (Spread(0.9 * each * MS, each * MS, 1.1 * each * MS) for each in (ms / 2, ms / 2, ms))
    return replace(cost, forward_ns=forward, backward_ns=back, elapsed_ns=both)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, dict[str, float]], None]:
    """Return a function that sets the times of the members called one by one, and as one in each way."""

    def set_times(before: float, after: dict[str, float]) -> None:
        def trial_of(ensemble: Ensemble, change: Change, rounds: int | None) -> Trial:
            trial = try_change(ensemble, change, rounds)
            assert trial.before is not None
            assert trial.after is not None
            return replace(trial, before=taking(trial.before, before), after=taking(trial.after, after[change.way]))

        monkeypatch.setattr(advice_module, "try_change", trial_of)

    return set_times


class Scriptable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(perceptron() for _ in range(10))

    def forward(self, x: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        for member in self.members:
            outputs.append(member(x))
        return torch.stack(outputs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("model_is_passed", [False, True])
@pytest.mark.parametrize("way", ["trace", "script"])
def test_a_module_of_torchscript_is_named_with_what_to_call_instead(
    way: str, model_is_passed: bool, snapshot: Snapshots
) -> None:
    model = Scriptable()
    compiled = torch.jit.trace(model, batch()) if way == "trace" else torch.jit.script(model)
    (item,) = ts.advise(loss_of(compiled), model if model_is_passed else None)
    assert item.verdict == "refused" and "Scriptable" in item.title
    says(item.facts[0], "TorchScript", "torch.jit.trace", "torch.jit.script", "make_loss")
    if way == "trace":  # after two runs a scripted graph is one task, of which nothing can be seen
        says(item.facts[0], "20 of 20 products")
        if not model_is_passed:
            snapshot("advise", item)
    else:
        says(ts.find_batches(loss_of(compiled)()), "TorchScript", "torch.jit.script")
    assert ts.advise(loss_of(model)).items[0].title.startswith("10 × members.*"), "from before, the members are found"


def test_the_ensemble_of_the_thread_both_ways_with_what_they_gain(timed: Any, snapshot: Snapshots) -> None:
    timed(12, {"vmap": 8, "bmm": 3})
    model, make_loss = workload("ensemble").build()
    make_loss().backward()  # the .grad that this leaves makes no difference
    found = ts.advise(make_loss, model, rounds=1)
    for item, function, times in zip(found, ("torch.baddbmm", "torch.vmap"), ("4 ×", "1.5 ×"), strict=True):
        assert item.verdict == "gain"
        says(item.title, "16 × members.*", function)
        says(item.said, times)
    snapshot("advise", "\n".join(f"{item.title}: {item.said}" for item in found))
    assert found.best is found[0] and len(found) == 2
    says(" ".join(found[0].facts), "12.0 ms", "10.8", "13.2", "3.00 ms", "2.70", "3.30", 129, "784.1 KiB")
    (grouped,) = [fact for fact in found[0].facts if "ts.find_batches" in fact]
    says(grouped, 4)
    snapshot("advise", grouped)
    trial = found[0].trial
    assert trial is not None and trial.check.ok and trial.before is not None and trial.after is not None
    assert found[0].code == trial.change.code
    assert found.peak_bytes == trial.before.peak_bytes + 4  # of the whole program: the loss
    assert trial.after.peak_bytes > 0


@pytest.mark.parametrize(("ms", "said"), [(0.1, None), (300.0, "PyTorch #59905")])
def test_no_gain_says_so_and_why_where_the_products_are_large(
    timed: Any, ms: float, said: str | None, snapshot: Snapshots
) -> None:
    timed(ms, {"vmap": 1.1 * ms, "bmm": 1.02 * ms})
    found = ts.advise(loss_of(Members(perceptron)), rounds=1)
    assert [item.verdict for item in found] == ["no gain"] * 2 and found.best is None
    says(found[0].said, "0.98 ×")
    says(found[1].said, "0.91 ×")
    assert ("PyTorch #59905" in " ".join(found[0].facts)) == (said is not None)
    if said is None:
        snapshot("advise", found[0].said)
    # A gain is followed by what the whole would take: such a fact has two times, and no others.
    assert not any(re.fullmatch(r"\D*[\d.]+ ms\D*[\d.]+ ms\D*", fact) for item in found for fact in item.facts)


def test_large_products_run_checked_and_measured(timed: Any) -> None:
    timed(40, {"vmap": 41, "bmm": 42})
    model = Members(lambda: nn.Linear(128, 128), 2)
    found = ts.advise(loss_of(model, torch.randn(256, 128)), rounds=1)
    assert {item.verdict for item in found} == {"no gain"}
    assert all(item.trial is not None and item.trial.check.ok for item in found)


def test_times_that_spread_are_said_to(monkeypatch: pytest.MonkeyPatch, snapshot: Snapshots) -> None:
    def trial_of(*given: Any) -> Trial:
        trial = try_change(*given)
        assert trial.before is not None
        assert trial.after is not None
        before = replace(trial.before, elapsed_ns=Spread(1 * MS, 2 * MS, 9 * MS))
        return replace(trial, before=before, after=taking(trial.after, 1.25))

    monkeypatch.setattr(advice_module, "try_change", trial_of)
    found = ts.advise(loss_of(Members(perceptron)), rounds=1)
    assert found[0].verdict == "no gain"
    says(found[0].said, "1.6 ×")
    snapshot("advise", f"{found[0].said}\n{found[0].facts[1]}")


class Square(torch.autograd.Function):
    """One that functorch does not take."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class Squared(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = Square.apply(super().forward(input))
        return out


class Looking(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        out = super().forward(input)
        return out if out.sum() > 0 else -out


class Times(nn.Linear):
    factor = 1.0

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * self.factor


def test_what_vmap_refuses_is_told_in_its_words() -> None:
    for kind, said in ((Squared, "it must override the setup_context staticmethod"), (Looking, "control flow")):
        (item,) = ts.advise(loss_of(Members(lambda kind=kind: kind(WIDTH, WIDTH))), rounds=1)
        assert item.verdict == "refused" and item.code is None
        assert len(item.facts) == 1 and said in item.facts[0]
        says(item.facts[0], "RuntimeError")


def test_attributes_of_which_the_change_does_not_know_are_named(snapshot: Snapshots) -> None:
    model = Members(lambda: Times(WIDTH, WIDTH))
    for number, member in enumerate(model.members):
        member.factor = float(number)
    (item,) = ts.advise(loss_of(model), rounds=1)
    assert item.verdict == "refused" and item.code is None
    says(item.facts[0], "0.035 %", "factor")
    for member in model.members:
        member.factor, member.label = 2.0, object.__repr__(member)
    (item,) = ts.advise(loss_of(model), rounds=1)
    assert item.verdict != "refused"
    (said,) = [fact for fact in item.facts if "label" in fact]
    snapshot("advise", said)


class Dropping(Members):
    pass


def test_refused_comes_last_memory_in_between_and_gains_first(timed: Any) -> None:
    timed(12, {"vmap": 8, "bmm": 3})
    plain, dropping = Members(perceptron), Dropping(lambda: perceptron(nn.Dropout(0.5)))
    table = torch.randn(4000, 6, requires_grad=True)

    def make_loss() -> Tensor:
        return plain(batch()).sum() + dropping(batch()).sum() + table[3].sum()

    found = ts.advise(make_loss, nn.ModuleDict({"plain": plain, "dropping": dropping}), rounds=1)
    assert [item.verdict for item in found] == ["gain", "gain", "memory", "refused"]
    memory, refused = found[2], found[3]
    assert memory.hint is not None and memory.hint.nbytes == 4000 * 6 * 4 and memory.said == "93.8 KiB"
    says(memory.facts[0], "100 %")
    assert refused.title == "4 × dropping.members.*"
    says(refused.facts[0], "Dropout")
    says(found.cells[3][1], "93.8 KiB")
    says(found.cells[4][1], refused.said)
    assert found.cells[4][2:] == ["", "", ""]
    frame = pd.DataFrame(found.records())
    assert list(frame["verdict"]) == ["gain", "gain", "memory", "refused"]
    assert list(frame["speedup"][:2]) == [4.0, 1.5] and frame["bytes"][2] == 96_000


def test_a_model_or_none_gives_the_root(timed: Any) -> None:
    timed(12, {"vmap": 8, "bmm": 3})
    inner = Members(perceptron)
    outer = nn.Sequential(inner, nn.Flatten())
    code = {}
    for name, given in (("none", None), ("outer", outer), ("inner", inner)):
        code[name] = ts.advise(loss_of(outer), given, rounds=1)[1].code or ""
    says(code["none"].partition("import")[0], "model", "Sequential")
    assert "members = list(model[0].members)" in code["none"]
    assert code["outer"] == code["none"]
    says(code["inner"].partition("import")[0], "model", "Members")
    assert "members = list(model.members)" in code["inner"]


def test_nothing_to_advise(snapshot: Snapshots) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    found = ts.advise(loss_of(model), model, rounds=1)
    assert len(found) == 0 and found.best is None and found.records() == []
    costs, nothing = found.sentences
    says(found, costs, nothing)
    says(costs, size_text(found.forward_peak_bytes), size_text(found.peak_bytes), found.machine)
    snapshot("advise", f"{nothing}\n{found!r}")


class Stateful(Members):
    """Writes its own buffers, and draws from all generators, outside of its members."""

    def __init__(self) -> None:
        super().__init__(perceptron)
        self.register_buffer("calls", torch.zeros(()))
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor | Sequence[Tensor]) -> Tensor:
        self.get_buffer("calls").add_(1)
        noise = torch.rand(()) + random.random() + np.random.rand()
        return super().forward(self.norm(x)) * noise.detach()


def state_of(model: nn.Module) -> Iterator[Any]:
    yield [(name, id(each), each.clone().tolist()) for name, each in model.state_dict(keep_vars=True).items()]
    yield [None if each.grad is None else (id(each.grad), each.grad.tolist()) for each in model.parameters()]
    yield [(module.training, len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()]
    yield [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]
    yield len(nn.modules.module._global_forward_hooks), len(nn.modules.module._global_forward_pre_hooks)
    yield torch.is_grad_enabled()


class Interrupting(Stateful):
    """Raises, or is interrupted, in its n-th forward."""

    def __init__(self, at: int, raises: Callable[[], object]) -> None:
        super().__init__()
        self.at, self.raises, self.called = at, raises, Mock()  # a count in an attribute would be put back

    def forward(self, x: Tensor | Sequence[Tensor]) -> Tensor:
        self.called()
        if self.called.call_count == self.at:
            self.raises()
        return super().forward(x)


def _fail() -> None:
    raise KeyError("of the user")


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("at", [0, 1, 2, 4, 6])
@pytest.mark.parametrize(("raises", "error"), [(_fail, KeyError), (_interrupt, KeyboardInterrupt)])
def test_all_is_put_back_whatever_comes_between(at: int, raises: Any, error: type[BaseException]) -> None:
    model = Interrupting(at, raises)
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, number) if number % 3 else None
    before = list(state_of(model))
    if at:
        with pytest.raises(error):
            ts.advise(loss_of(model), model, rounds=1)
    else:
        assert ts.advise(loss_of(model), model, rounds=1)[0].trial is not None
    assert list(state_of(model)) == before


@pytest.mark.filterwarnings("ignore:`torch.jit.script`", "ignore:Using `torch.compile")
def test_scripted_and_compiled_modules_are_left_as_they_are() -> None:
    scripted = [torch.jit.script(nn.BatchNorm1d(WIDTH)) for _ in range(2)]
    compiled = torch.compile(nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)), backend="eager")
    modules = [*scripted, compiled]
    before = [{name: each.clone() for name, each in module.state_dict().items()} for module in modules]
    ts.advise(lambda: torch.stack([module(batch()) for module in modules]).square().mean(), rounds=1)
    for module, states in zip(modules, before, strict=True):
        assert all(torch.equal(each, states[name]) for name, each in module.state_dict().items())
    assert compiled(batch()).shape == (3, WIDTH)


def test_what_is_done_is_told(snapshot: Snapshots) -> None:
    said: list[str] = []
    ts.advise(loss_of(Members(perceptron)), rounds=1, progress=said.append)
    assert said[-1] == "4 × members.*"
    snapshot("advise", "\n".join(said))


@pytest.mark.parametrize(
    ("given", "error", "facts"),
    [
        ((torch.ones(()),), TypeError, ("make_loss", "Tensor")),
        ((lambda: 3,), TypeError, ("make_loss()", "int")),
        ((lambda: torch.ones(2, requires_grad=True) * 2,), ValueError, ("make_loss()", 2)),
        ((lambda: torch.ones(()), "model"), TypeError, ("model", "str")),
    ],
)
def test_bad_input_gets_a_sentence(
    given: Any, error: type[Exception], facts: tuple[object, ...], snapshot: Snapshots
) -> None:
    with raises(error, *facts) as raised:
        ts.advise(*given)
    if len(given) > 1:
        snapshot("advise", raised.value)


def test_rounds_below_one_are_refused_before_anything_runs(snapshot: Snapshots) -> None:
    with raises(ValueError, "rounds", 1, 0) as raised:
        ts.advise(_fail, rounds=0)  # type: ignore[arg-type]
    snapshot("advise", raised.value)


def test_as_text_and_for_a_terminal_it_says_the_same(timed: Any) -> None:
    timed(12, {"vmap": 8, "bmm": 3})
    found = ts.advise(loss_of(Members(perceptron)), rounds=1)
    says(repr(found), "Advice", *(fact for item in found for fact in (item.title, item.said)))
    console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(found)
    shown = console.export_text()
    for text in (str(found), shown):
        says(text, found[0].said, "12.0 ms → 3.00 ms")
        assert "torch.baddbmm(parameters" in text and "stack_module_state" not in text  # the best alone
    narrow = Console(width=40, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    narrow.print(found, crop=False)
    lines = {line.rstrip() for line in narrow.export_text().splitlines()}
    assert lines.issuperset((found[0].code or "?").splitlines()), "the code is whole, however narrow"
    assert str(found[1]).endswith(found[1].code or "?")


def test_modules_that_are_made_anew_in_each_forward_are_refused_with_that_reason() -> None:
    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            parts = [nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)) for _ in range(4)]
            self.blocks = nn.ModuleList(parts)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = x + block(x)
            return x

    found = ts.advise(lambda: Chain()(torch.ones(2, 8)).square().mean())
    says_none_of(found, "NoneType")
    for item in found:
        if item.verdict == "refused":
            says(" ".join(item.facts), "make_loss")

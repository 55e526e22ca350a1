"""A mistake of the user's ends in the user's own line, and in a sentence."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from traitlets import TraitError

import tapescope as ts
from tapescope.tests.says import Snapshots, says

from .warm_python import WarmPython

MODEL = nn.Linear(3, 3)


@pytest.fixture(autouse=True)
def _as_users_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAPESCOPE_TRACEBACKS", raising=False)


def make_loss() -> Tensor:
    return MODEL(torch.ones(2, 3)).sum()


def after_its_backward() -> Tensor:
    loss = make_loss()
    loss.backward()
    return loss


def without_a_graph() -> Tensor:
    with torch.no_grad():
        return make_loss()


def in_inference_mode() -> Tensor:
    with torch.inference_mode():
        return make_loss()


def recording_twice() -> None:
    with ts.record_steps(2), ts.record_steps(2):
        pass


MISTAKES: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
    "the model": (lambda: ts.debug(MODEL), ("Linear", "model(x).sum()")),  # type: ignore[arg-type]
    "a dict": (lambda: ts.debug({"loss": make_loss()}), ("dict", "'loss'")),  # type: ignore[arg-type]
    "a number": (lambda: ts.debug(3), ("int",)),  # type: ignore[arg-type]
    "a name": (lambda: ts.debug("loss"), ("str",)),  # type: ignore[arg-type]
    "not a scalar": (lambda: ts.debug(MODEL(torch.ones(2, 3))), ("scalar outputs",)),
    "a second time": (lambda: ts.debug(after_its_backward()), ("second time", "ts.debug(loss)")),
    "a second time, natively": (lambda: ts.backward(after_its_backward()), ("second time",)),
    "no_grad": (lambda: ts.graph(without_a_graph()), ("torch.no_grad()",)),
    "inference_mode": (lambda: ts.backward(in_inference_mode()), ("torch.inference_mode()",)),
    "a loss, not a function": (lambda: ts.profile(make_loss()), ("make_loss", "Tensor")),  # type: ignore[arg-type]
    "a policy that is none": (
        lambda: ts.backward(make_loss(), policy="hepa"),
        ("'hepa'", "'heap'", "bfs"),
    ),
    "a workload that is none": (
        lambda: ts.studies.accumulation("fanout"),
        ("'fanout'", "'fan_out'"),
    ),
    "an argument that is missing": (lambda: ts.fits(MODEL), ("fits()", "'make_batch'")),  # type: ignore[call-arg]
    "an argument that is none": (lambda: ts.debug(make_loss(), polcy="bfs"), ("debug()", "'polcy'")),  # type: ignore[call-arg]
    "a class given something else": (lambda: ts.recompute("plan"), ("ts.recompute", "str", "budget=")),  # type: ignore[arg-type]
    "a class of data": (lambda: ts.types.Accumulation("inplce"), ("'inplce'", "'inplace'")),  # type: ignore[arg-type]
    "a policy that is none, for a block": (lambda: ts.policy("hepa"), ("'hepa'", "'heap'")),
    "a backward in make_loss": (
        lambda: ts.find_nan(after_its_backward),
        ("make_loss()", ".backward()", "ts.profile_step"),
    ),
    "a session's verb": (lambda: ts.debug(make_loss()).step("3"), ("str", "session.break_at")),  # type: ignore[arg-type]
    "a session's attribute": (lambda: setattr(ts.debug(make_loss()), "policy", "hepa"), ("'hepa'", "'heap'")),
    "a native session's": (lambda: setattr(ts.debug(make_loss(), engine="native"), "policy", 7), ("policy", "int")),
    "what a deck has and a session has not": (
        lambda: ts.debug(make_loss()).save_html("x"),
        ("save_html", "session.result()"),
    ),
    "a name that nobody has": (lambda: ts.debug(make_loss()).stpe(), ("'stpe'",)),
    "stepping a run": (lambda: ts.backward(make_loss()).step(), ("step", "ts.debug(loss)")),  # type: ignore[attr-defined]
    "a row that is none": (lambda: ts.plan_order(make_loss())["hepa"], ("'hepa'", "liu")),
    "a picture of another kind": (lambda: ts.graph(make_loss()).save_svg("a.pdf"), ("a.pdf", ".svg", "to_graphviz()")),
    "a step that was not kept": (lambda: ts.replay("no/step_3", lambda: MODEL, lambda model, batch: None), ("step_3",)),  # type: ignore[arg-type,return-value]
    "a batch in parts": (
        lambda: ts.fits(MODEL, lambda: (torch.ones(2, 3), torch.ones(2)), torch.optim.SGD, "1GB"),  # type: ignore[arg-type]
        ("forward()", 2, "loss_of"),
    ),
    "a path that is none": (lambda: ts.graph(make_loss()).save_svg(3), ("int",)),  # type: ignore[arg-type]
    "a policy without a rule": (lambda: ts.Policy("mine", "my rule"), ("'mine'", "key=", "plan=")),
    "a policy whose keys are none": (lambda: ts.Policy("mine", "my rule", 3), ("'mine'", "key", "int")),  # type: ignore[arg-type]
    "a function's function": (lambda: ts.profile(lambda: make_loss), ("make_loss()",)),  # type: ignore[arg-type,return-value]
    "a text as a norm": (lambda: ts.debug(make_loss()).clip("1"), ("max_norm", "str")),  # type: ignore[arg-type]
    "a recording inside of another": (lambda: recording_twice(), ("ts.record_steps",)),
    "no history": (lambda: ts.debug(make_loss()).back(), ("history=True", "keep_history()")),  # type: ignore[union-attr]
    "a policy in the second place": (lambda: ts.backward(make_loss(), "bfs"), ("grad_tensors", "policy='bfs'")),  # type: ignore[arg-type]
    "percent": (lambda: ts.plan_recompute(make_loss, overhead=6), ("overhead", "600 %", "0.06")),
    "data that needs no gradient": (lambda: ts.debug(make_loss(), inputs=[torch.ones(2)]), ("inputs", "(2,)")),
    "a run's verb": (lambda: ts.backward(make_loss()).save("/nowhere/x.tape.json"), ("nowhere",)),
    "a size that is none": (lambda: ts.workload("rnn").build("smal"), ("'smal'", "rnn", "small", "full")),  # type: ignore[arg-type]
    "a missing plan": (lambda: ts.types.RecomputePlan.load("nowhere.json"), ("nowhere.json",)),
    "a missing file": (lambda: ts.load("nowhere.tape.json"), ("nowhere.tape.json",)),
}
"""What is done wrong, and facts of what is said to it."""

SAID_BY_OTHERS = {
    "not a scalar",
    "a second time, natively",
    "an argument that is missing",
    "an argument that is none",
    "a name that nobody has",
    "a path that is none",
    "a run's verb",
    "a missing plan",
    "a missing file",
}
"""Of the mistakes those to which Python or PyTorch has the words."""


def test_python_knows_which_name_was_meant() -> None:
    with pytest.raises(AttributeError) as caught:
        ts.debgu  # type: ignore[attr-defined]  # noqa: B018
    assert caught.value.obj is ts and caught.value.name == "debgu"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_where_it_was_made(mistake: str, snapshot: Snapshots) -> None:
    make, facts = MISTAKES[mistake]
    with pytest.raises(Exception) as caught:  # noqa: PT011
        make()
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    says(said, *facts)
    if mistake not in SAID_BY_OTHERS:
        snapshot("errors", said)
    assert _files_of(caught.value) == {Path(__file__).name}


def test_what_a_deck_refuses_ends_where_it_was_asked(snapshot: Snapshots) -> None:
    from tapescope.widgets.deck.deck import Deck

    with Deck(ts.debug(make_loss()), policy="heap") as deck:
        asked: list[tuple[tuple[str, ...], Callable[[], object]]] = [
            (("str", "session.break_at"), lambda: deck.run_to("0")),  # type: ignore[arg-type]
            (("step()",), lambda: deck.step(0, device="cpu")),
            (('"nowhere"', "ts.capture()"), lambda: deck.break_at("nowhere")),
            (("cuda:7", "cpu"), lambda: deck.step(device="cuda:7")),
            (("'hepa'", "'heap'"), lambda: setattr(deck, "policy", "hepa")),
            (("999", "0 to 4"), lambda: setattr(deck, "breakpoints", [999])),
            (("peak", "ts.profile"), lambda: deck.peak()),  # type: ignore[attr-defined]
        ]
        for facts, ask in asked:
            with pytest.raises(Exception) as caught:  # noqa: PT011
                ask()
            says(caught.value, *facts)
            assert _files_of(caught.value) == {Path(__file__).name}
            snapshot("deck", caught.value)
        trait = "selection"
        with pytest.raises(TraitError) as caught:
            setattr(deck, trait, "fc")
        says(caught.value, "selection", "int", "str")
        assert _files_of(caught.value) == {Path(__file__).name}
    with pytest.raises(RuntimeError) as caught:
        deck.step()
    says(caught.value, "ts.debug(loss)")
    snapshot("deck", caught.value)
    assert _files_of(caught.value) == {Path(__file__).name}


def test_an_error_in_a_hook_keeps_its_frames_through_a_deck() -> None:
    from tapescope.widgets.deck.deck import Deck

    def wrong(gradient: Tensor) -> None:
        raise ValueError("in here")

    handle = MODEL.weight.register_hook(wrong)
    try:
        with Deck(ts.debug(make_loss()), policy="heap") as deck, pytest.raises(ValueError, match="in here") as caught:
            deck.run()
    finally:
        handle.remove()
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "wrong"


def _files_of(error: BaseException) -> set[str]:
    return {Path(frame.filename).name for frame in traceback.extract_tb(error.__traceback__)}


def test_an_error_in_the_users_own_code_keeps_all_of_its_frames() -> None:
    def wrong() -> Tensor:
        raise ValueError("in here")

    with pytest.raises(ValueError, match="in here") as caught:
        ts.profile(wrong)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-1] == "wrong" and len(names) > 3


def test_a_mistake_of_tapescopes_own_keeps_all_of_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    from tapescope.engine.execution import backward_arguments as backward_call

    monkeypatch.setattr(backward_call, "as_gradients", lambda gradients: gradients.no_such_name)
    with pytest.raises(AttributeError) as caught:
        ts.debug(make_loss())
    assert len(traceback.extract_tb(caught.value.__traceback__)) > 3


def test_what_comes_through_the_door_is_pickled_and_documented_as_before() -> None:
    assert pickle.loads(pickle.dumps(ts.find_nan)) is ts.find_nan
    assert ts.find_nan.__doc__ and ts.find_nan.__name__ == "find_nan"


@pytest.mark.heavy
def test_all_frames_can_be_had(fresh_python: WarmPython) -> None:
    script = "import torch, tapescope as ts\nts.debug(torch.nn.Linear(1, 1))"
    for wanted, ours in (("", False), ("full", True)):
        done = fresh_python.start("-c", script, environment={"TAPESCOPE_TRACEBACKS": wanted}).end()
        assert ("validation.py" in done.stderr) is ours
        says(done.stderr.splitlines()[-1], "TypeError", "Linear", "model(x).sum()")

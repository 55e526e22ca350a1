"""A mistake of the user's ends in the user's own line, and in a sentence."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tapescope as ts

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


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "the model": (lambda: ts.debug(MODEL), "got a Linear, which is a model: pass the loss"),  # type: ignore[arg-type]
    "a dict": (lambda: ts.debug({"loss": make_loss()}), "such as the one under 'loss'"),  # type: ignore[arg-type]
    "a number": (lambda: ts.debug(3), "got an int: pass the loss"),  # type: ignore[arg-type]
    "a name": (lambda: ts.debug("loss"), "pass the loss itself"),  # type: ignore[arg-type]
    "not a scalar": (lambda: ts.debug(MODEL(torch.ones(2, 3))), "only for scalar outputs"),
    "a second time": (lambda: ts.debug(after_its_backward()), "second time"),
    "a second time, natively": (lambda: ts.backward(after_its_backward()), "second time"),
    "no_grad": (lambda: ts.graph(without_a_graph()), "no_grad"),
    "inference_mode": (lambda: ts.backward(in_inference_mode()), "inference_mode"),
    "a loss in place of a function": (lambda: ts.profile(make_loss()), "expected a function"),  # type: ignore[arg-type]
    "a policy that is none": (
        lambda: ts.backward(make_loss(), policy="hepa"),
        "'hepa', did you mean 'heap'[?] known are",
    ),
    "a workload that is none": (
        lambda: ts.studies.accumulation("fanout"),
        "'fanout', did you mean 'fan_out'[?] known: ",
    ),
    "an argument that is missing": (lambda: ts.fits(MODEL), "missing 3 required"),  # type: ignore[call-arg]
    "an argument that is none": (lambda: ts.debug(make_loss(), polcy="bfs"), "polcy"),  # type: ignore[call-arg]
    "a class given something else": (lambda: ts.recompute("plan"), "takes a plan"),  # type: ignore[arg-type]
    "a class of data": (lambda: ts.types.Accumulation("inplce"), "inplce"),  # type: ignore[arg-type]
    "a policy that is none, for a block": (lambda: ts.policy("hepa"), "did you mean 'heap'"),
    "a backward in make_loss": (lambda: ts.find_nan(after_its_backward), "without calling .backward"),
    "a session's verb": (lambda: ts.debug(make_loss()).step("3"), "expected a task"),  # type: ignore[arg-type]
    "a session's attribute": (lambda: setattr(ts.debug(make_loss()), "policy", "hepa"), "did you mean 'heap'"),
    "a native session's": (lambda: setattr(ts.debug(make_loss(), engine="native"), "policy", 7), "policy"),
    "what a deck has and a session has not": (
        lambda: ts.debug(make_loss()).save_html("x"),
        "a session has no save_html",
    ),
    "a name that nobody has": (lambda: ts.debug(make_loss()).stpe(), "has no attribute 'stpe'"),
    "a run that is stepped": (lambda: ts.backward(make_loss()).step(), r"it has run; ts.debug\(loss\) steps"),  # type: ignore[attr-defined]
    "a row that is none": (lambda: ts.plan_order(make_loss())["hepa"], "was not planned here"),
    "a path that is none": (lambda: ts.graph(make_loss()).save_svg(3), "not int"),  # type: ignore[arg-type]
    "a policy without a rule": (lambda: ts.Policy("mine", "my rule"), "has no key=, a function of a task and its"),
    "a policy whose keys are none": (lambda: ts.Policy("mine", "my rule", 3), "key of policy 'mine' is an int"),  # type: ignore[arg-type]
    "a function's function": (lambda: ts.profile(lambda: make_loss), "return what it makes, by calling it"),  # type: ignore[arg-type,return-value]
    "a text as a norm": (lambda: ts.debug(make_loss()).clip("1"), "max_norm is a str"),  # type: ignore[arg-type]
    "a recording inside of another": (lambda: recording_twice(), "memory is being measured already"),
    "no history": (lambda: ts.debug(make_loss()).back(), "keeps no history to go back in"),  # type: ignore[union-attr]
    "a policy in the second place": (lambda: ts.backward(make_loss(), "bfs"), "policy='bfs'"),  # type: ignore[arg-type]
    "percent": (lambda: ts.plan_recompute(make_loss, overhead=6), "which would be 600 % of a step's time; 6 % is 0.06"),
    "data that needs no gradient": (lambda: ts.debug(make_loss(), inputs=[torch.ones(2)]), "does not require grad, so"),
    "a run's verb": (lambda: ts.backward(make_loss()).save("/nowhere/x.tape.json"), "nowhere"),
    "a size that is none": (lambda: ts.workload("rnn").build("smal"), "unknown size"),  # type: ignore[arg-type]
    "a plan that is not there": (lambda: ts.types.RecomputePlan.load("nowhere.mirror"), "nowhere.mirror"),
    "a file that is not there": (lambda: ts.load("nowhere.tape.json"), "nowhere.tape.json"),
}


def test_python_knows_which_name_was_meant() -> None:
    with pytest.raises(AttributeError) as caught:
        ts.debgu  # type: ignore[attr-defined]  # noqa: B018
    assert caught.value.obj is ts and caught.value.name == "debgu"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_where_it_was_made(mistake: str) -> None:
    make, sentence = MISTAKES[mistake]
    with pytest.raises(Exception, match=sentence) as caught:
        make()
    assert _files_of(caught.value) == {Path(__file__).name}


def test_what_a_deck_refuses_ends_where_it_was_asked() -> None:
    from tapescope.widgets.deck.deck import Deck

    with Deck(ts.debug(make_loss()), policy="heap") as deck:
        asked: dict[str, Callable[[], object]] = {
            "expected a task or its number": lambda: deck.run_to("0"),  # type: ignore[arg-type]
            "step.. runs either": lambda: deck.step(0, device="cpu"),
            "nothing in this graph is called": lambda: deck.break_at("nowhere"),
            "no task of this backward runs on cuda:7": lambda: deck.step(device="cuda:7"),
            "there is no policy 'hepa'": lambda: setattr(deck, "policy", "hepa"),
            "there is no task 999": lambda: setattr(deck, "breakpoints", [999]),
            "expected an int, not the str": lambda: setattr(deck, "selection", "fc"),
            "a deck has no peak: its memory is predicted": lambda: deck.peak(),  # type: ignore[attr-defined]
        }
        for sentence, ask in asked.items():
            with pytest.raises(Exception, match=sentence) as caught:
                ask()
            assert _files_of(caught.value) == {Path(__file__).name}
    with pytest.raises(RuntimeError, match="this session is over") as caught:
        deck.step()
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
    from tapescope.engine.tasks import backward_call

    monkeypatch.setattr(backward_call, "as_outputs", lambda tensors: tensors.no_such_name)
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
        assert ("arguments.py" in done.stderr) is ours
        assert done.stderr.rstrip().endswith("such as model(x).sum()")

"""A backward that is over is over: who comes after a session finds the graph as after `loss.backward()`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.api.debug import debug
from tapescope.engine.execution.backward_arguments import BackwardCall
from tapescope.engine.session.direct_session import Stepper
from tapescope.tests.says import Snapshots, raises, says, says_none_of

from ..comparing import second_time


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 3 * x**2


def plain(w: Tensor) -> Tensor:
    return (w * 2).exp().sum()


def custom(w: Tensor) -> Tensor:
    return Cubed.apply(w).sum()


def copied(w: Tensor) -> Tensor:
    base = w * 1
    base[1:].mul_(base[0].detach() + 2)
    return base.sum()


def recomputed(w: Tensor) -> Tensor:
    return checkpoint(torch.exp, w * 2, use_reentrant=False).sum()


def recomputed_inside(w: Tensor) -> Tensor:
    return checkpoint(torch.exp, w + 2, use_reentrant=True).sum()


def packed(w: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor):
        return w.exp().sum()


def hooked(w: Tensor) -> Tensor:
    module = nn.Tanh()
    module.register_full_backward_hook(lambda module, inputs, outputs: None)
    return module(w * 2).sum()


def several(w: Tensor) -> Tensor:
    return sum(part.sin().sum() for part in torch.stack([w.exp(), w.tanh()]).unbind())


PROGRAMS = [plain, custom, copied, recomputed, recomputed_inside, packed, hooked, several]


def again(loss: Tensor, w: Tensor) -> Iterator[tuple[str, Callable[[], object]]]:
    """All ways to run a backward through this graph."""
    yield "backward", loss.backward
    yield "keeping", lambda: loss.backward(retain_graph=True)
    yield "another loss", lambda: (loss * 2).backward()
    yield "grad", lambda: torch.autograd.grad(loss, w)
    yield "ts native", lambda: ts.backward(loss)
    yield "ts bfs", lambda: ts.backward(loss, policy="bfs")
    yield "ts traced", lambda: ts.backward(loss, trace="off")
    yield "ts direct", lambda: ts.backward(loss, engine="direct")
    yield "session", lambda: Stepper(loss).run()
    yield "with a history", lambda: Stepper(loss, history=True).run()
    yield "debug", lambda: debug(loss)
    yield "debug native", lambda: debug(loss, engine="native")


def refused(call: Callable[[], object]) -> bool:
    """Return whether it raises PyTorch's error."""
    try:
        call()
    except RuntimeError as error:
        return str(error).startswith(second_time())
    return False


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_pytorch_refuses_a_second_backward_of_these_programs(program: Callable[[Tensor], Tensor]) -> None:
    w = torch.linspace(0.1, 1, 4, requires_grad=True)
    loss = program(w)
    loss.backward()
    assert refused(loss.backward)


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("way", [name for name, _ in again(torch.ones(()), torch.ones(()))])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_after_a_session_every_backward_of_the_graph_raises_pytorchs_sentence(
    program: Callable[[Tensor], Tensor], way: str, history: bool
) -> None:
    if (way, program) == ("grad", recomputed_inside):
        pytest.skip("a reentrant checkpoint refuses autograd.grad for another reason")
    w = torch.linspace(0.1, 1, 4, requires_grad=True)
    loss = program(w)
    session = Stepper(loss, history=history)
    session.run()
    expected = w.grad.clone()
    assert refused(dict(again(loss, w))[way])
    assert torch.equal(w.grad, expected)
    if history is True and program is not recomputed_inside:
        session.back(len(session.order))
        session.run()
        assert torch.equal(w.grad, expected), "the session itself may go back and on"


@pytest.mark.parametrize("end", ["close", "forget", "gone"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_however_the_session_ends(program: Callable[[Tensor], Tensor], end: str) -> None:
    w = torch.linspace(0.1, 1, 4, requires_grad=True)
    loss = program(w)
    session = Stepper(loss, history=True)
    session.run()
    if end == "close":
        session.close()
    elif end == "forget":
        session.forget()
    del session
    with raises(RuntimeError, second_time()):
        loss.backward()


def test_nodes_that_have_run_are_as_after_a_backward_that_was_interrupted_there() -> None:
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    early, late = a.exp(), b.exp()
    sine = early.sin()
    session = Stepper((sine.sum() + late.sin().sum()), history=True)
    while sine.grad_fn not in [session.graph.nodes[task] for task in session.order]:
        session.step()
    assert refused(sine.sum().backward), "the sine has run"
    early.sum().backward()
    assert a.grad.tolist() == pytest.approx([torch.e] * 2), "the exponential has not"


def test_what_was_taken_back_may_be_run_by_anybody() -> None:
    w = torch.ones(3, requires_grad=True)
    loss = (w * 2).exp().sum()
    session = Stepper(loss, history=True)
    session.run()
    session.back(len(session.order))
    session.close()
    w.grad = None
    loss.backward()
    assert w.grad.tolist() == pytest.approx([2 * torch.e**2] * 3)


def test_retain_graph_keeps_it_for_all() -> None:
    w = torch.ones(3, requires_grad=True)
    loss = (w * 2).exp().sum()
    Stepper(BackwardCall(loss, retain_graph=True), history=True).run()
    once = w.grad.clone()
    loss.backward()
    assert torch.equal(w.grad, 2 * once)


def test_two_sessions_on_one_graph_do_not_run_a_task_twice() -> None:
    w = torch.ones(3, requires_grad=True)
    loss = (w * 2).exp().sum()
    one, other = Stepper(loss, history=True), Stepper(loss, history=True)
    one.run()
    other.step()
    with raises(RuntimeError, second_time()):
        other.run()


def test_debug_says_at_once_where_the_graph_is_freed(snapshot: Snapshots) -> None:
    for engine in ("direct", "native"):
        w = torch.ones(3, requires_grad=True)
        loss = (w * 2).exp().sum()
        loss.backward()
        with raises(RuntimeError, second_time(), "MulBackward0", "ts.debug(loss)") as raised:
            debug(loss, engine=engine)
    snapshot("debug", raised.value)


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        (ts.plan_order, {}),
        (ts.orders.unpack_order, {}),
        (ts.debug, {}),
        (ts.backward, {}),
        (ts.debug, {"history": True}),
        (ts.backward, {"history": True}),
        (ts.plan_order, {"engine": "native"}),
    ],
)
def test_who_comes_upon_what_an_open_session_has_freed_is_told_of_it(
    verb: Callable[[Tensor], object], options: dict[str, Any], snapshot: Snapshots
) -> None:
    loss = plain(torch.ones(2, requires_grad=True))
    session = ts.debug(loss, **options)
    session.step(count=2)
    with pytest.raises(RuntimeError) as caught:
        verb(loss)
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    says(told, f"2 of {len(session.graph)}", "run()", "close()")
    says_none_of(told, "pass retain_graph=True")
    if not options and verb is not ts.backward:  # whose notes go by what ran before in this process
        snapshot(verb.__name__, told)
    session.close()
    with pytest.raises(RuntimeError) as caught:
        ts.plan_order(loss)
    says_none_of("\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())]), "run()", "close()")


def test_sessions_of_other_graphs_of_the_model_are_not_counted() -> None:
    model = nn.Linear(3, 2)
    other = ts.debug(model(torch.ones(4, 3)).exp().sum())
    other.step(count=4)
    assert any(other.graph.tasks[task_id].is_leaf for task_id in other.order), "it has run shared nodes"
    loss = model(torch.ones(4, 3)).exp().sum()
    session = ts.debug(loss)
    session.step(count=3)
    with pytest.raises(RuntimeError) as caught:
        ts.debug(loss)
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    says(told, f"3 of {len(session.graph)}")
    says_none_of(told, f"4 of {len(other.graph)}")
    other.close()
    session.close()


@pytest.mark.parametrize("engine", ["direct", "native"])
def test_a_session_does_not_speak_of_itself_as_open_elsewhere(engine: Any) -> None:
    shared = torch.ones(2, requires_grad=True).exp()
    loss = (shared * 2).exp().sum()
    with ts.debug(loss, engine=engine) as session:
        session.step()
        (shared * 3).sum().backward()  # frees what this session is to run yet
        with raises(RuntimeError, second_time()) as caught:
            session.run()
    says_none_of("\n".join(caught.value.__notes__), "run()", "close()")


@pytest.mark.parametrize("start", [ts.debug, ts.deck])
def test_a_number_of_tasks_given_as_a_task_is_told_how_to_say_it(
    start: Callable[[Tensor], Any], snapshot: Snapshots
) -> None:
    session = start(plain(torch.ones(2, requires_grad=True)))
    with raises(ValueError, 100, 0, 3, "step(count=100)") as raised:
        session.step(100)
    if start is ts.debug:
        snapshot("debug", raised.value)
    session.close()

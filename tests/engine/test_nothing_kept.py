"""No result of a verb keeps a saved tensor alive that the program has freed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary, ref

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

import tapescope as ts
from tapescope.engine.api.make_loss import for_all
from tapescope.engine.studies.ready_workload import own_program
from tapescope.tests.says import Snapshots, raises

model = nn.Linear(4, 4)


def run(loss: Any, **options: Any) -> ts.Run:
    return ts.backward(loss, retain_graph=True, **options)


def late(loss: Tensor) -> ts.Run:
    """A run whose order was planned before, so that its graph is read when somebody asks."""
    run(loss, policy="bfs")
    return run(loss, policy="bfs")


def asked(loss: Tensor) -> ts.Run:
    found = run(loss)
    assert found.order
    return found


def closed(session: Any) -> object:
    session.step()
    session.close()
    return session


VERBS: dict[str, Callable[[Tensor], object]] = {
    "graph": ts.graph,
    "graph with names": lambda loss: ts.graph(loss, model),
    "graph of a list": lambda loss: ts.graph([loss]),
    "backward": run,
    "backward, asked for its order": asked,
    "backward by another policy": late,
    "backward with a trace": lambda loss: run(loss, trace="full"),
    "backward with memory": lambda loss: run(loss, memory=True),
    "backward from an edge": lambda loss: run(get_gradient_edge(loss), grad_tensors=torch.ones(()), memory=True),
    "direct": lambda loss: run(loss, engine="direct", trace="cheap", memory=True),
    "footprints": lambda loss: run(loss, memory=True).footprints,
    "peak": lambda loss: run(loss, memory=True).peak(),
    "diff": lambda loss: ts.diff(run(loss, memory=True), run(loss, memory=True, trace="full")),
    "simulate": lambda loss: ts.simulate(ts.graph(loss)),
    "simulate of an edge": lambda loss: ts.simulate(ts.graph(get_gradient_edge(loss))),
    "dry_run": lambda loss: ts.orders.dry_run(ts.graph(loss)),
    "plan": ts.plan_order,
    "plan of a graph": lambda loss: ts.plan_order(ts.graph(loss)),
    "makespan": ts.makespan,
    "groups": ts.find_batches,
    "unpack_order": ts.orders.unpack_order,
    "closed session": lambda loss: closed(ts.debug(loss, retain_graph=True)),
    "closed native session": lambda loss: closed(ts.debug(loss, retain_graph=True, engine="native")),
    "run of a session": lambda loss: ts.debug(loss, retain_graph=True).run(),
}


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def made() -> tuple[Tensor, ref[Tensor]]:
    """A loss, and a tensor that only its graph keeps."""
    hidden = model(torch.randn(3, 4)).exp()
    return (hidden * hidden).sum(), ref(hidden)


@pytest.mark.parametrize("is_captured", [False, True], ids=["", "captured"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_result_keeps_no_saved_tensor_when_the_loss_is_gone(verb: str, is_captured: bool) -> None:
    VERBS[verb](made()[0])  # the first call may import parts of torch, which leave cycles of frames
    gc.collect()
    if is_captured:
        with ts.capture(model):
            loss, saved = made()
    else:
        loss, saved = made()
    result = VERBS[verb](loss)
    assert saved() is not None and result is not None
    del loss
    assert saved() is None


@pytest.mark.parametrize(
    "verb", ["profile", "compare", "find_nan", "find_unused", "find_order_dependence", "plan_recompute"]
)
def test_neither_does_one_of_a_function(verb: str) -> None:
    alive: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # which verbs that put lists back leave alone

    def make_loss() -> Tensor:
        loss, saved = made()
        if (hidden := saved()) is not None:  # else it was dropped, and is recomputed
            alive[id(saved)] = hidden
        return loss

    more: dict[str, Any] = {"plan_recompute": {"budget": 0.5}, "find_unused": {"model": model}}
    kept = make_loss()
    assert len(alive) == 1
    del kept
    result = getattr(ts, verb)(make_loss, **more.get(verb, {}))
    assert result is not None and not len(alive)


def of_rows(net: nn.Module, rows: Tensor) -> Tensor:
    found: Tensor = net(rows).sum()
    return found


def step_of(net: nn.Module) -> None:
    of_rows(net, torch.ones(2, 4)).backward()
    torch.optim.SGD(net.parameters(), 0.1).step()


def trained(net: nn.Module) -> object:
    with ts.training(net) as training:
        for _ in range(3):
            step_of(net)
    return training


made_by_loss_of: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # verbs put lists back, but not this


def loss_of(net: nn.Module) -> Tensor:
    hidden: Tensor = net(torch.ones(2, 4)).exp()
    made_by_loss_of[id(hidden)] = hidden
    return (hidden * hidden).sum()


def fitted(net: nn.Module) -> None:
    fit = ts.fits(net, lambda size=2: torch.ones(size, 4), lambda own: torch.optim.SGD(own, 0.1), "0.3KB", of_rows)
    assert not fit.fits
    assert fit.remedies == ()  # looked for, with further steps


PROGRAMS: dict[str, Callable[[nn.Module], object]] = {
    "record_forward": lambda net: ts.record_forward(lambda: of_rows(net, torch.ones(2, 4))),
    "profile_step": lambda net: ts.profile_step(lambda: step_of(net), model=net),
    "training": lambda net: trained(net),
    "find_nan": lambda net: ts.find_nan(lambda: loss_of(net)),
    "find_unused": lambda net: ts.find_unused(lambda: loss_of(net), net),
    "find_order_dependence": lambda net: ts.find_order_dependence(lambda: loss_of(net), "bfs"),
    "compare": lambda net: ts.compare(lambda: loss_of(net), "bfs", repetitions=1),
    "advise": lambda net: ts.advise(lambda: loss_of(net), rounds=1),
    "plan_recompute": lambda net: ts.plan_recompute(lambda: loss_of(net), seconds=0.01, repetitions=1),
    "recomputed": lambda net: ts.recompute(budget=0.9, seconds=0.01)(loss_of, net).backward(),
    "profile": lambda net: ts.profile(lambda: loss_of(net)),
    "accumulation_study": lambda net: (
        ts.studies.accumulation(own_program(lambda: loss_of(net), "own"), repetitions=1).rows
    ),
    "fits": fitted,
    "check": lambda net: ts.debug(loss_of(net)).check(),
    "diff": lambda net: ts.diff(run(loss_of(net), memory=True), run(loss_of(net), trace="full")),
    "simulate": lambda net: ts.simulate(ts.graph(loss_of(net))),
    "plan": lambda net: ts.plan_order(loss_of(net)),
}


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


@pytest.mark.parametrize("verb", PROGRAMS)
def test_a_verb_that_is_over_keeps_nothing_of_the_program(verb: str) -> None:
    PROGRAMS[verb](network())  # the first call may import parts of torch
    gc.collect()
    net = network()
    known = [ref(net), ref(net[0].weight)]
    kept = loss_of(net)
    assert len(made_by_loss_of) == 1
    del kept
    result = PROGRAMS[verb](net)
    del net
    assert [each() for each in known] == [None, None]
    assert not len(made_by_loss_of)
    del result


@pytest.mark.parametrize("verb", [name for name in PROGRAMS if name != "profile_step"])
def test_it_keeps_no_program_with_hooks_of_leaves_either(verb: str) -> None:
    """Hooks that lead back to the model are a cycle. The collector frees those of `register_hook`, but never those of
    `register_post_accumulate_grad_hook`, in torch alone either (see test_torch_private): these are removed here."""
    net = network()
    net[0].weight.register_hook(lambda gradient, net=net: None)
    waiting = [each.register_post_accumulate_grad_hook(lambda leaf, net=net: None) for each in net.parameters()]
    known = [ref(net), ref(net[0].weight)]
    PROGRAMS[verb](net)
    del net
    for each in waiting:
        each.remove()
    gc.collect()
    assert [each() for each in known] == [None, None]


def test_a_run_that_is_kept_still_tells_what_it_did(tmp_path: Path) -> None:
    loss, _ = made()
    kept, asked_before = late(loss), asked(loss)
    del loss
    for each in (kept, asked_before):
        assert sorted(each.order) == list(range(len(each.graph))) and not each.graph.nodes
        assert ts.load(each.save(tmp_path / "run.json")).order == each.order
        assert set(map(id, each.graph.leaves.values())) == set(map(id, model.parameters()))
        assert ts.diff(each, each).first_in_order is None


class OnCtx(torch.autograd.Function):
    """Keeps on its `ctx` what its backward needs, where nothing frees it but the end of the node."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.kept = [x.exp()]
        alive.append(ref(ctx.kept[0]))
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.kept[0]


alive: list[ref[Tensor]] = []


@pytest.mark.parametrize("policy", ["heap", "bfs"])
def test_a_run_of_a_graph_that_was_freed_keeps_nothing_of_it_either(policy: Any) -> None:
    for _ in range(3):  # its order is planned in the first
        run = ts.backward(OnCtx.apply(model(torch.randn(3, 4))).sum(), policy=policy)
        assert alive.pop()() is None
        assert sorted(run.order) == list(range(len(run.graph))) and not run.graph.nodes


def test_what_needs_the_nodes_says_that_the_loss_is_gone(snapshot: Snapshots) -> None:
    loss, _ = made()
    graph, other = ts.graph(loss), ts.graph(loss)
    assert len(graph.nodes) == len(graph) and graph.saved
    del loss
    assert graph.saved and not graph.nodes and len(graph.tasks) == len(other.tasks)
    for ask in (
        lambda: other.saved,
        lambda: ts.plan_order(other),
        lambda: ts.find_batches(other),
    ):
        with raises((RuntimeError, ValueError), "loss") as raised:
            ask()
        snapshot("graph", raised.value)
    with raises(ValueError, "loss"):
        ts.simulate(other)
    assert other.to_svg() and other.to_json()


def test_a_graph_of_a_temporary_or_of_an_edge_holds_its_nodes() -> None:
    assert ts.simulate(ts.graph(made()[0])).peak_bytes
    graph = ts.graph([made()[0]])
    assert graph.nodes and graph.saved
    loss, saved = made()
    of_edge = ts.graph(get_gradient_edge(loss))
    del loss
    assert of_edge.nodes and saved() is not None


def test_a_loss_that_dies_in_a_later_call_takes_the_nodes_with_it() -> None:
    loss, saved = made()
    losses, graph = [loss], ts.graph(loss)
    del loss
    for_all([losses], list.clear)  # of tapescope's: the collector may run there, too
    assert not graph.nodes and saved() is None


def test_a_live_session_keeps_what_it_has_to_run() -> None:
    loss, _ = made()
    session = ts.debug(loss)
    del loss
    model.zero_grad()
    assert sorted(session.run().order) == list(range(len(session.graph)))
    assert model.weight.grad is not None
    model.zero_grad()

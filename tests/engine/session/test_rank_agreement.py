"""Ranks of a process group run one order, on which all have agreed, or PyTorch's own: gradients are plain torch's."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import tapescope as ts
from tapescope.engine.session import rank_agreement as agreement
from tapescope.engine.session.rank_agreement import _Asking, _Question, may_communicate
from tapescope.tests.says import Snapshots, raises, says, says_none_of
from tapescope.tests.warm_python import WarmPython

from ..ranks import logs_of_ranks
from .rank_agreement_program import LIMIT_S

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(
        not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="needs gloo"
    ),
]

SIZE = 2


@pytest.fixture(scope="module")
def ranks(fresh_python: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the log of each rank."""
    program = Path(__file__).with_name("rank_agreement_program.py")
    return logs_of_ranks(fresh_python, program, tmp_path_factory.mktemp("agreement"), str(SIZE), size=SIZE)


def runs(rank: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return rank[name] if isinstance(rank[name], list) else [rank[name]]


@pytest.mark.parametrize(
    "name",
    [
        "agreed",
        "other orders",
        "other kinds",
        "one keeps its own",
        "a user's",
        "session",
        "nobody answers",
        "after that",
    ],
)
def test_gradients_are_those_of_plain_torch_whatever_order_each_rank_asked_for(
    ranks: list[dict[str, Any]], name: str
) -> None:
    for rank in ranks:
        for run in runs(rank, name):
            assert run["gradients"] == rank["plain"]["gradients"]


def test_an_order_that_all_ranks_ask_for_runs(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert [run["policy"] for run in (*rank["agreed"], *rank["agreed once"])] == ["bfs"] * 4
        assert rank["a user's"]["policy"] == "oldest" and rank["session"]["policy"] == "bfs"
    assert ranks[0]["agreed"][0]["order"] == ranks[1]["agreed"][0]["order"] != ranks[0]["other orders"]["order"]


def test_where_one_asks_for_another_order_all_run_pytorchs_and_say_so(
    ranks: list[dict[str, Any]], snapshot: Snapshots
) -> None:
    assert [rank["other orders"]["policy"] for rank in ranks] == ["bfs: heap", "oldest: heap"]
    for name in ("other orders", "other orders once"):
        notes = {rank[name]["note"] for rank in ranks}
        assert len(notes) == 1
        says(*notes, 0, 1)
        says_none_of(*notes, "wait_for_ranks")
        assert ranks[0][name]["order"] == ranks[1][name]["order"]
        assert ranks[0][name]["note"] in ranks[0][name]["text"]
    snapshot("backward", ranks[0]["other orders"]["note"].replace("1", "0"))  # either rank may be named first
    note = ranks[0]["one keeps its own"]["note"]
    says(note, 1, "PyTorch")
    says_none_of(note, 0)
    snapshot("backward", note)


def test_what_is_measured_is_of_the_order_that_is_named(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["compared"]["orders"]["bfs"] == ranks[0]["agreed"][0]["order"]
        assert rank["compared"]["orders"]["heap"] == rank["other orders"]["order"]
        assert rank["profiled, other orders"]["order"] == rank["other orders"]["order"]
    policies = [rank["profiled, other orders"]["policy"] for rank in ranks]
    assert policies == ["bfs: heap", "oldest: heap"]


def test_an_order_that_was_refused_is_not_measured(ranks: list[dict[str, Any]], snapshot: Snapshots) -> None:
    for rank, policy in zip(ranks, ("bfs", "oldest"), strict=True):
        for said in (rank["compared, other orders"]["refused"], rank["timed, other orders"]):
            says(said, policy, "PyTorch", 0, 1, "rank", '"heap"')
    snapshot("compare", ranks[0]["compared, other orders"]["refused"].replace("1", "0"))


def test_a_rank_that_is_at_another_graph_or_does_not_ask_is_not_waited_for_longer_than_the_limit(
    ranks: list[dict[str, Any]], snapshot: Snapshots
) -> None:
    assert {rank["other kinds"]["policy"] for rank in ranks} == {"bfs: heap"}
    silent = ranks[0]["nobody answers"]
    assert silent["policy"] == "bfs: heap"
    says(silent["note"], 1, 2, f"{LIMIT_S:g} s", "wait_for_ranks")
    snapshot("backward", silent["note"])
    assert ranks[0]["after that"]["policy"] == "bfs: heap" and ranks[0]["after that"]["seconds"] < LIMIT_S


def test_each_rank_warns_once(ranks: list[dict[str, Any]]) -> None:
    assert [len(rank["warnings"]) for rank in ranks] == [1, 1]


def test_a_session_keeps_the_order_on_which_ranks_agreed(ranks: list[dict[str, Any]], snapshot: Snapshots) -> None:
    for rank in ranks:
        says(rank["session"]["refused"], "PolicyError", "heap", "rank")
    snapshot("debug", ranks[0]["session"]["refused"])


# The decision, on a store without processes


class Rank:
    """A member of a group of some size, as far as the decision sees it."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.members = number, size

    def rank(self) -> int:
        return self.number

    def size(self) -> int:
        return self.members


def members(store: Any, size: int = SIZE) -> tuple[list[Rank], list[_Asking]]:
    groups = [Rank(number, size) for number in range(size)]
    found = [_Asking(group) for group in groups]
    for each in found:
        each._store = store
    return groups, found


@pytest.fixture
def short_limit() -> Any:
    before = agreement._limit_s
    ts.wait_for_ranks(0.2)
    yield
    ts.wait_for_ranks(before)


@pytest.mark.usefixtures("short_limit")
def test_who_gives_up_waiting_decides_for_those_who_come_late() -> None:
    _, (first, second) = members(dist.HashStore())
    alone = first._decide("key", "answer")
    says(alone, 1, 2, "0.2 s", "wait_for_ranks")
    assert second._decide("key", "answer") == alone


@pytest.mark.usefixtures("short_limit")
def test_all_ranks_read_one_verdict_however_they_race() -> None:
    for number in range(10):
        _, asking = members(dist.HashStore(), 3)
        found: dict[int, str | None] = {}

        def ask(rank: int) -> None:
            if rank == 2 and number % 2:
                threading.Event().wait(0.2)  # about when the others give up
            found[rank] = asking[rank]._decide("key", "answer")

        threads = [threading.Thread(target=ask, args=(rank,)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(found) == 3 and len(set(found.values())) == 1


class Broken:
    """A store that fails from some operation on."""

    def __init__(self, works: int) -> None:
        self.store, self.left = dist.HashStore(), works

    def __getattr__(self, name: str) -> Any:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("connection closed by peer")
        return getattr(self.store, name)


@pytest.mark.usefixtures("short_limit")
def test_once_a_rank_has_answered_it_runs_nothing_without_a_verdict(snapshot: Snapshots) -> None:
    _, (first, _) = members(Broken(1))
    with raises(RuntimeError, "connection closed by peer", "wait_for_ranks(0)") as raised:
        first._decide("key", "answer")
    snapshot("backward", raised.value)
    _, (first, _) = members(Broken(0))
    says(first._decide("key", None), "connection closed by peer")  # had nothing to ask for


@pytest.mark.usefixtures("short_limit")
def test_a_group_made_anew_on_the_same_store_finds_no_answers_of_the_one_before(monkeypatch: Any) -> None:
    store = dist.HashStore()
    monkeypatch.setattr(agreement, "world_store", lambda: store)
    groups = [Rank(number, SIZE) for number in range(SIZE)]
    before = [_Asking(group) for group in groups]
    before[0]._decide("key", "answer")
    assert _Question(before[1], "key", "answer")._find() != "yes"
    again = [_Asking(group) for group in groups]
    assert again[0].store().check(["key/verdict"]) is False


def test_what_could_communicate() -> None:
    x = torch.ones(3, requires_grad=True)
    assert not may_communicate(ts.graph(x.exp().sum()))
    held = x * 2
    handle = held.register_hook(lambda gradient: None)
    assert may_communicate(ts.graph(held.sum()))
    handle.remove()


def test_a_limit_is_a_time(snapshot: Snapshots) -> None:
    for wrong in (-1, float("nan"), float("inf"), "soon"):
        with raises(ValueError, 0, repr(wrong)) as raised:
            ts.wait_for_ranks(wrong)  # type: ignore[arg-type]
    snapshot("backward", raised.value)


DEBUGGED = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method=sys.argv[1], rank=int(sys.argv[2]), world_size=2)
x = torch.ones(3, requires_grad=True)
(x * 2).exp().sum().backward()
dist.all_reduce(x.grad)
print("rank", dist.get_rank(), x.grad[0].item(), flush=True)
dist.barrier()
os._exit(0)
"""


@pytest.mark.parametrize("prompted", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_of_several_ranks_one_has_the_prompt(tmp_path: Path, prompted: int, fresh_python: WarmPython) -> None:
    script = tmp_path / "step.py"
    script.write_text(DEBUGGED)
    debug = "import sys; from tapescope.__main__ import main; sys.exit(main())"
    given = ("debug", "--rank", str(prompted), script, f"file://{tmp_path}/store")
    started = [fresh_python.start("-c", debug, *given, str(rank), typed="step\ncontinue\n") for rank in range(2)]
    said = [done.stdout + done.stderr for done in (process.end(300) for process in started)]
    for rank, text in enumerate(said):
        assert ("(tapescope)" in text) == (rank == prompted), text
        assert f"rank {rank} 29.5" in text
    says(said[prompted], "init_process_group", "timeout=")
    says(said[1 - prompted], f"rank {prompted}", "--rank")

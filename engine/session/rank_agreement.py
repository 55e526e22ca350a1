"""An order that all ranks of a process group run, or none does: agreed on through the group's store, within a limit.

Collectives of a backward pair up by the order in which each rank begins them. Ranks that run different orders would
sum other tensors than they mean to, without an error. So a rank leaves PyTorch's own order only if all have said that
they run the same one.

How it is decided. Each question has one key for the verdict, which is set once (`compare_set`): "yes" by the rank whose
answer was the last that was missing; why not, by the first rank which sees that another answer is there, which has
nothing to agree on, or which has waited long enough. All ranks read that one verdict before they act: who has given up
waiting has decided for all, and who doesn't ask leaves its answer out, so that there is no "yes". What can fail is the
store. As long as this rank has not answered nobody can have a "yes", and PyTorch's own order is safe; afterwards
somebody may, and the backward is refused before anything of it runs.

What is asked. Of a graph in which nothing is seen that could communicate, once for each kind of graph and order; the
answer is kept. Of any other, before each backward: while one rank is at a graph of this kind, another may be at another
kind. The ranks then also compare how many collectives each has begun, so that they mean the same backward. Nothing here
is a collective, and inside of a backward nobody is asked.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Collection, Sequence
from hashlib import sha256
from threading import Lock, Thread
from typing import Any
from weakref import ref

from ...inspector.graph.graph import Graph
from ...inspector.graph.kinds import Kind
from ...inspector.graph.source_lines import warn
from ...inspector.torch_private.distributed import collectives_issued, part_of, world, world_store
from ...inspector.torch_private.engine import in_backward
from ...inspector.torch_private.saved_variables import hides_saved, is_packed
from ...inspector.torch_private.tensors import computes_itself
from ..execution.find_hooks import no_hooks

_MOST_KINDS = 256  # of graphs and orders that are asked for: the store keeps some 100 bytes of each for every rank
_YES = "yes"
_FIRST_POLL_S, _LAST_POLL_S = 0.0002, 0.02
_QUIET = frozenset((Kind.CPP, Kind.ACCUMULATE_GRAD))

_limit_s = 10.0


def wait_for_ranks(seconds: float) -> None:
    """How long a backward waits at most until all ranks of the process group have said that they run the same order.

    Where `torch.distributed` has several ranks, an order other than PyTorch's own is run only if all ranks run it: each
    has to ask for it, as by `ts.policy("bfs")` in every process. They tell each other through the store of the default
    group. A rank that doesn't answer in time, or has another graph or order, means PyTorch's own order for all of them;
    `Run.policy` and `Run.note` say so. After a rank did not answer, nobody asks for anything new.

    Args:
        seconds: 10 unless this was called. 0: nobody is asked, and each order is PyTorch's own.

    Raises:
        ValueError: it is no time.
    """
    global _limit_s
    if not (isinstance(seconds, int | float) and 0 <= seconds < math.inf):
        raise ValueError(f"ranks are waited for for some seconds, a number from 0 on, not {seconds!r}")
    _limit_s = float(seconds)


def in_group() -> bool:
    """Whether there are other ranks, with which orders have to be agreed on."""
    return world() is not None


def why_not(graph: Graph, needed: Collection[int] | None, order: Sequence[int] | None) -> str | None:
    """Why PyTorch's own order is to be run in place of this one; None: all ranks run this one, or there are no others.

    Args:
        graph: the graph of the backward that is about to run.
        needed: its tasks that run; None: all.
        order: all of them; None: this rank is going to run PyTorch's own order in any case, and tells the others.

    Raises:
        RuntimeError: the store can't be reached any more, so that what the other ranks run is not known.
    """
    group = world()
    if group is None:
        return None
    if in_backward():
        return "it is inside of another backward, where no other rank is waited for"
    if not _limit_s:
        return "no other rank is asked (ts.wait_for_ranks(0))"
    with _lock:
        asking = _asking_in(group)
        found = asking.ask(graph, needed, order)
        if found is not None and order is not None and not asking.warned:
            asking.warned = True
            warn(
                f"a backward runs in PyTorch's own order: {found}. In a process group another order is run only if all "
                "ranks run it. This is said once; Run.note says it of each backward"
            )
    return found


class _Asking:
    """What one rank has asked in one process group, and the keys under which it asks next."""

    def __init__(self, group: Any) -> None:
        self.group = ref(group)
        self.rank, self.size = group.rank(), group.size()
        self.warned = False
        self._store: Any = None
        self._kept: dict[tuple[str, str], str | None] = {}  # by kind and order
        self._rounds: dict[str, int] = {}  # by kind, how many orders were asked for
        self._turn = 0  # how many backwards were
        self._over: str | None = None  # why nothing is asked any more

    def ask(self, graph: Graph, needed: Collection[int] | None, order: Sequence[int] | None) -> str | None:
        """As `why_not`."""
        kind, planned = _kind(graph, needed), "" if order is None else sha256(array("q", order)).hexdigest()
        if may_communicate(graph):
            if self._over is not None:
                return self._over
            self._turn += 1
            answer = sha256(f"{kind} {planned} {collectives_issued()}".encode()).hexdigest()
            return self._decide(f"backward/{self._turn}", answer if planned else None)
        if (kind, planned) not in self._kept:
            if self._over is None and len(self._kept) >= _MOST_KINDS:
                self._over = f"there are more than {_MOST_KINDS} kinds of graphs and orders"
            if self._over is not None:
                return self._over
            number = self._rounds[kind] = self._rounds.get(kind, 0) + 1
            self._kept[kind, planned] = "the other ranks were asked, and the answer was not waited for"
            self._kept[kind, planned] = self._decide(f"kind/{kind}/{number}", planned or None)
        return self._kept[kind, planned]

    def _decide(self, key: str, answer: str | None) -> str | None:
        """The verdict: None for "yes", else why not.

        The store's own calls may wait for half an hour where a network is gone. So they are a thread's, which is left
        to itself then: what it has said stays said, and a key is never used twice.
        """
        question = _Question(self, key, answer)
        thread = Thread(target=question.run, name="tapescope asks the other ranks", daemon=True)
        thread.start()
        thread.join(2 * _limit_s + 1)
        if question.verdict is None:
            problem = question.error or "it does not answer"
            self._over = f"the store of the process group can't be reached ({problem})"
            if question.answered:
                raise RuntimeError(
                    f"{self._over}, so it is not known in which order the other ranks run this backward, and nothing "
                    "of it has run; begin again without a policy, or with ts.wait_for_ranks(0)"
                )
            return self._over
        if question.in_vain:
            self._over = question.verdict
        return None if question.verdict == _YES else question.verdict

    def store(self) -> Any:
        """The part of the group's store in which this is asked.

        Stores may outlive a group: one that is made anew finds the keys of the one before. So they have the number of
        this rank's groups in them. Where ranks asked in different ones of these, no answers meet.
        """
        if self._store is None:
            store = world_store()
            if store is None:
                raise RuntimeError("its backend has none")
            ours = part_of(store, f"tapescope/{self.size}")
            self._store = part_of(ours, str(ours.add(f"groups of {self.rank}", 1)))
        return self._store


class _Question:
    """One question, and its verdict.

    Attributes:
        answered: whether the others may know of this rank's answer.
        in_vain: this rank has waited as long as it may.
        error: what the store raised.
    """

    def __init__(self, asking: _Asking, key: str, answer: str | None) -> None:
        self._asking, self._key, self._answer = asking, key, answer
        self._limit_s = _limit_s
        self.answered = self.in_vain = False
        self.error: Exception | None = None
        self.verdict: str | None = None

    def run(self) -> None:
        try:
            self.verdict = self._find()
        except Exception as error:  # of the store, which has classes of its own
            self.error = error

    def _find(self) -> str:
        ends = time.monotonic() + self._limit_s
        asking, rank = self._asking, self._asking.rank
        store = self._asked = asking.store()
        if self._answer is None:
            return self._say(f"rank {rank} runs PyTorch's own order")
        self.answered = True
        first, by = store.compare_set(self._name("answer"), "", f"{self._answer} {rank}").decode().split()
        if first != self._answer:
            return self._say(f"ranks {by} and {rank} are at other graphs, or have planned other orders")
        if store.add(self._name("count"), 1) == asking.size:
            return self._say(_YES)
        pause = _FIRST_POLL_S
        while time.monotonic() < ends:
            if store.check([self._name("verdict")]):
                return str(store.get(self._name("verdict")).decode())
            time.sleep(pause)
            pause = min(2 * pause, _LAST_POLL_S)
        count = store.add(self._name("count"), 0)
        said = f"{count} of {asking.size} ranks asked for this order within {self._limit_s:g} s (ts.wait_for_ranks)"
        verdict = self._say(said)
        self.in_vain = verdict == said
        return verdict

    def _say(self, verdict: str) -> str:
        """Sets the verdict, unless there is one. Returns what is set."""
        return str(self._asked.compare_set(self._name("verdict"), "", verdict).decode())

    def _name(self, of: str) -> str:
        return f"{self._key}/{of}"


_lock = Lock()
_asking: _Asking | None = None


def _asking_in(group: Any) -> _Asking:
    global _asking
    if _asking is None or _asking.group() is not group:
        _asking = _Asking(group)
    return _asking


def may_communicate(graph: Graph) -> bool:
    """Whether anything of the graph could: what Python or an extension does in it, hooks, tensors such as DTensor.

    The C++ hooks of DistributedDataParallel are not meant: its buckets start in one order, whichever is full first.
    Hooks of tensors are listed nowhere, so any hook counts that is in the process, but those of modules.
    """
    return (
        not no_hooks(look=True)
        or any(task.kind not in _QUIET for task in graph.tasks)
        or any(map(computes_itself, graph.leaves.values()))
        or any(hides_saved(node) or is_packed(node) for node in graph.nodes)
    )


def _kind(graph: Graph, needed: Collection[int] | None) -> str:
    """A graph and what runs of it, equal in all processes for equal ones; ranks may have devices of other numbers."""
    digest = sha256()
    for task in graph.tasks:
        metas = [(meta.shape, meta.dtype, meta.device.type) for meta in task.inputs]
        digest.update(repr((task.name, metas)).encode())
    for edge in graph.edges:
        digest.update(array("q", (edge.task, edge.output, edge.next_task, edge.input)))
    roots = [(root.task, root.input) for root in graph.roots]
    digest.update(repr((roots, None if needed is None else sorted(needed))).encode())
    return digest.hexdigest()

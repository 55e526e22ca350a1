"""Agreement of all ranks of a process group on one order, through the group's store and within a time limit.

Collectives of a backward are matched by the order in which each rank starts them. Ranks with different orders would
silently sum the wrong tensors. So a rank runs an order other than PyTorch's own only if every rank has confirmed the
same one.

The decision: each question has one key for the verdict, which is set only once (`compare_set`). The last rank to answer
sets it to "yes". A rank that sees a different answer, has no other order, or has reached the time limit sets it to the
reason for refusing. All ranks read this verdict before they act. So a rank that stops waiting has decided for all, and
a rank that does not ask prevents a "yes" because its answer is missing. The store itself may fail. Before this rank has
answered, no rank can have read "yes", so PyTorch's own order is safe. After that another rank may have, so the backward
is refused before any of it runs.

The questions: ranks ask once for each order of a kind of graph that cannot communicate, and cache the answer. For any
other graph they ask before each backward, because ranks may be at different kinds of graphs at the same time. The ranks
then also compare the number of collectives each has started, to be sure that they mean the same backward. Nothing here
is a collective, and no rank asks while it is inside a backward.
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

_MOST_KINDS = 256  # kinds of graphs and orders; the store keeps about 100 bytes of each for every rank
_YES = "yes"
_FIRST_POLL_S, _LAST_POLL_S = 0.0002, 0.02
_QUIET = frozenset((Kind.CPP, Kind.ACCUMULATE_GRAD))

_limit_s = 10.0


def wait_for_ranks(seconds: float) -> None:
    """Set the time limit for agreeing with the other ranks on the order of a backward.

    If `torch.distributed` has several ranks, an order other than PyTorch's own runs only if all ranks request it, for
    example with `ts.policy("bfs")` in every process. They communicate through the store of the default group. If a rank
    does not answer in time, or has another graph or order, all ranks run PyTorch's own order; `Run.policy` and
    `Run.note` say so. After a rank has not answered, nothing new is asked.

    Args:
        seconds: the limit, 10 by default. With 0 nothing is asked, and every order is PyTorch's own.

    Raises:
        ValueError: `seconds` is not a finite number of at least 0.
    """
    global _limit_s
    if not (isinstance(seconds, int | float) and 0 <= seconds < math.inf):
        raise ValueError(f"seconds must be a finite number of at least 0, got {seconds!r}")
    _limit_s = float(seconds)


def in_group() -> bool:
    """Return whether the process group has other ranks, with which an order has to be agreed."""
    return world() is not None


def reason_against(graph: Graph, needed: Collection[int] | None, order: Sequence[int] | None) -> str | None:
    """Return the reason why PyTorch's own order must run instead of this one; None if all ranks run this one or there
    are no others.

    Args:
        graph: the graph of the backward that is about to run.
        needed: ids of the tasks that run; None for all.
        order: their ids in order; None if this rank runs PyTorch's own order in any case, which it tells the others.

    Raises:
        RuntimeError: the store is no longer reachable, so the other ranks' orders are unknown.
    """
    group = world()
    if group is None:
        return None
    if in_backward():
        return "it runs inside another backward, where ranks do not wait for each other"
    if not _limit_s:
        return "ts.wait_for_ranks(0) turns off agreement between ranks"
    # Other threads' backwards wait here, up to 2 * _limit_s + 1 seconds: one question at a time keeps the numbers of
    # the keys equal on all ranks.
    global _asking
    with _lock:
        if _asking is None or _asking.group() is not group:
            _asking = _Asking(group)
        asking = _asking
        found = asking.ask(graph, needed, order)
        if found is not None and order is not None and not asking.warned:
            asking.warned = True
            warn(
                f"a backward runs in PyTorch's own order: {found}. In a process group another order runs only if "
                "all ranks run it. This warning appears once; Run.note has the reason for each backward"
            )
    return found


class _Asking:
    """The questions one rank has asked in a process group, and the keys of the next ones."""

    def __init__(self, group: Any) -> None:
        self.group = ref(group)
        self.rank, self.size = group.rank(), group.size()
        self.warned = False
        self._store: Any = None
        self._kept: dict[tuple[str, str], str | None] = {}  # by kind and order
        self._rounds: dict[str, int] = {}  # number of orders asked for, by kind
        self._turn = 0  # number of backwards asked for
        self._over: str | None = None  # the reason why nothing more is asked

    def ask(self, graph: Graph, needed: Collection[int] | None, order: Sequence[int] | None) -> str | None:
        """Return the reason against an order; see `reason_against`."""
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
            # Set before waiting: after an interrupt the same question must not be asked again under another key.
            self._kept[kind, planned] = "the wait for the other ranks' answer was interrupted"
            self._kept[kind, planned] = self._decide(f"kind/{kind}/{number}", planned or None)
        return self._kept[kind, planned]

    def _decide(self, key: str, answer: str | None) -> str | None:
        """Return None for the verdict "yes", otherwise the reason against.

        The store's calls may block for half an hour if the network is gone. They run in a thread that is abandoned
        after the time limit; its answer stays valid, and a key is never used twice.
        """
        question = _Question(self, key, answer)
        thread = Thread(target=question.run, name="tapescope asks the other ranks", daemon=True)
        thread.start()
        thread.join(2 * _limit_s + 1)
        if question.verdict is None:
            problem = question.error or "it does not answer"
            self._over = f"the store of the process group cannot be reached ({problem})"
            if question.answered:
                raise RuntimeError(
                    f"{self._over}, so the order on the other ranks is unknown, and the backward has not started; "
                    "run it without a policy, or call ts.wait_for_ranks(0) first"
                )
            return self._over
        if question.timed_out:
            self._over = question.verdict
        return None if question.verdict == _YES else question.verdict

    def store(self) -> Any:
        """Return the part of the group's store used for these questions.

        A store may outlive its group, and a new group would find the previous group's keys. The keys therefore contain
        the number of this rank's groups. If ranks disagree on that number, their answers never meet.
        """
        if self._store is None:
            store = world_store()
            if store is None:
                raise RuntimeError("its backend does not have one")
            ours = part_of(store, f"tapescope/{self.size}")
            self._store = part_of(ours, str(ours.add(f"groups of {self.rank}", 1)))
        return self._store


class _Question:
    """One question to the other ranks, and its verdict.

    Attributes:
        answered: whether other ranks may have read this rank's answer.
        timed_out: whether this rank reached the time limit.
        error: the exception raised by the store.
    """

    def __init__(self, asking: _Asking, key: str, answer: str | None) -> None:
        self._asking, self._key, self._answer = asking, key, answer
        self._limit_s = _limit_s
        self.answered = self.timed_out = False
        self.error: Exception | None = None
        self.verdict: str | None = None

    def run(self) -> None:
        try:
            self.verdict = self._find()
        except Exception as error:  # stores raise their own exception classes
            self.error = error

    def _find(self) -> str:
        ends = time.monotonic() + self._limit_s
        asking, rank = self._asking, self._asking.rank
        store = self._group_store = asking.store()
        if self._answer is None:
            return self._say(f"rank {rank} runs PyTorch's own order")
        self.answered = True
        # compare_set writes only if the key is empty, so all ranks compare their answer with that of the first.
        first, by = store.compare_set(self._name("answer"), "", f"{self._answer} {rank}").decode().split()
        if first != self._answer:
            return self._say(f"ranks {by} and {rank} have different graphs, or planned different orders")
        if store.add(self._name("count"), 1) == asking.size:
            return self._say(_YES)
        pause = _FIRST_POLL_S
        while time.monotonic() < ends:
            if store.check([self._name("verdict")]):
                return str(store.get(self._name("verdict")).decode())
            time.sleep(pause)
            pause = min(2 * pause, _LAST_POLL_S)
        count = store.add(self._name("count"), 0)
        said = f"{count} of {asking.size} ranks requested this order within {self._limit_s:g} s (ts.wait_for_ranks)"
        verdict = self._say(said)
        self.timed_out = verdict == said
        return verdict

    def _say(self, verdict: str) -> str:
        """Set the verdict unless there is one, and return the one that is set."""
        return str(self._group_store.compare_set(self._name("verdict"), "", verdict).decode())

    def _name(self, part: str) -> str:
        return f"{self._key}/{part}"


_lock = Lock()
_asking: _Asking | None = None


def may_communicate(graph: Graph) -> bool:
    """Return whether part of the graph may communicate: Python or extension code, hooks, or tensors such as DTensor.

    The C++ hooks of DistributedDataParallel do not count: its buckets are reduced in a fixed order, whichever is full
    first. There is no list of tensor hooks, so any hook in the process counts, except hooks of modules.
    """
    return (
        not no_hooks(look=True)
        or any(task.kind not in _QUIET for task in graph.tasks)
        or any(map(computes_itself, graph.leaves.values()))
        or any(hides_saved(node) or is_packed(node) for node in graph.nodes)
    )


def _kind(graph: Graph, needed: Collection[int] | None) -> str:
    """Return a digest of a graph and its needed tasks, equal in all processes even if device indices differ."""
    digest = sha256()
    for task in graph.tasks:
        metas = [(meta.shape, meta.dtype, meta.device.type) for meta in task.inputs]
        digest.update(repr((task.name, metas)).encode())
    for edge in graph.edges:
        digest.update(array("q", (edge.task, edge.output, edge.next_task, edge.input)))
    roots = [(root.task, root.input) for root in graph.roots]
    digest.update(repr((roots, None if needed is None else sorted(needed))).encode())
    return digest.hexdigest()

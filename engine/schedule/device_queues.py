"""Separate ready queues for the devices, on a simulated clock, and the reasons why a device is idle."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import attrgetter, itemgetter
from typing import Literal

from ...inspector.graph.graph import Graph
from ...inspector.text.sizes_and_counts import nth
from .policy import Choice, Key, Policy, label_of
from .ready_queue import KeyedQueue, ReadyQueue, ReadyTask, ready_queue

Queues = Literal["one", "per device"]
"""One ready queue for all devices, or one per device."""

QUEUES: dict[str, Queues] = {"one": "one", "per-device": "per device"}
"""The values of the command line's option and the corresponding values of the argument `queues`."""

_BY_ARRIVAL = Policy("arrival", "first come, first served", key=lambda task, arrival: (arrival,))


@dataclass(frozen=True, slots=True)
class TaskTime:
    """A task's time on its device, in nanoseconds since the start.

    Attributes:
        ready_ns: the arrival of its last gradient.
        start_ns, end_ns: its start and end.
        after: the task that computed that gradient; None for a root.
    """

    ready_ns: int
    start_ns: int
    end_ns: int
    after: int | None


@dataclass(frozen=True, slots=True)
class _Ready:
    """A ready task: the time since when, its arrival number, and the task that computed its last gradient."""

    ready_ns: int
    arrival: int
    after: int | None


class DeviceQueues:
    """The ready queues of several devices, each with a simulated worker that starts a task as soon as it ends one.

    The tasks run one after the other, in the order in which the workers would start them. A task enters its device's
    queue when all tasks that it waits for have ended on the simulated clock. If several devices could start a task at
    one moment, the CPU is first, then the others by name.

    A policy sorts each queue separately, with separate arrival numbers. A user's policy receives one device's ready
    tasks.

    Args:
        graph: the graph.
        policy: the policy of each queue.
        order: the caller's list of tasks that ran, which a user's policy may read.
        durations_ns: the duration of each task, by id.
        devices: the name of each task's device, by id.
    """

    def __init__(
        self,
        graph: Graph,
        policy: Policy | Choice,
        order: Sequence[int],
        durations_ns: Sequence[int],
        devices: Sequence[str],
    ) -> None:
        self._graph, self._policy = graph, policy
        self._durations_ns = durations_ns
        self._device_of = devices
        self.devices = devices_in_order(devices)
        self._queues: dict[str, ReadyQueue] = {name: ready_queue(graph, policy, order) for name in self.devices}
        self._free_ns = dict.fromkeys(self.devices, 0)
        self._coming: dict[str, list[tuple[tuple[int, int, int], int]]] = {name: [] for name in self.devices}
        self._ready: dict[int, _Ready] = {}
        self._ended: dict[int, tuple[int, int]] = {}  # by task that ran: its end and its place
        self._last: int | None = None
        self._latest_ns = 0
        self._arrived = 0
        self._next: tuple[int, str] | None = None
        self._chosen: dict[None, int] = {}  # the result of `first`; each change of state replaces the dict

    def __len__(self) -> int:
        return len(self._ready)

    def __contains__(self, task_id: int) -> bool:
        return task_id in self._ready

    def push(self, task_id: int) -> Key | None:
        """Add a task, ready once the tasks that it waits for have ended; with `stages`, once all earlier tasks have."""
        ended = {edge.task: edge.output for edge in self._graph.in_edges[task_id] if edge.task in self._ended}
        after = max(ended, key=self._ended.__getitem__, default=None)
        ready_ns = self._ended[after][0] if after is not None else 0
        if self._last is not None and self._last not in ended:
            ready_ns = self._latest_ns
        self._ready[task_id] = _Ready(ready_ns, self._arrived, after)
        brought = (0, 0) if after is None else (self._ended[after][1], ended[after])
        heappush(self._coming[self._device_of[task_id]], ((ready_ns, *brought), task_id))
        self._arrived += 1
        self._next, self._chosen = None, {}
        return None

    def label(self, task_id: int) -> str:
        """Return the label of a ready task; arrivals are counted over all devices."""
        arrival = self._ready[task_id].arrival
        if isinstance(self._policy, Policy):
            return self._policy.label(self._graph.tasks[task_id], arrival)
        return f"@{arrival}"

    def choose(self) -> int:
        """Choose the task that starts next, on any device."""
        if chosen := self._chosen:
            return chosen[None]
        if self._next is None:
            self._next = self._first_device()
        assert self._next is not None, "a task is ready"
        chosen_task = self.choose_on(self._next[1])
        assert chosen_task is not None
        return chosen_task

    def first(self, ask: bool = True) -> int | None:
        """Return the task that starts next; None if none is ready. Any thread may call this at any time.

        Unlike `choose`, this does not change the queue: a running task may still make earlier tasks ready. It needs
        O(devices), and O(k log k) for k tasks that became ready since the device started its last one.

        Args:
            ask: as in `ReadyQueue.first`.
        """
        chosen = self._chosen
        if chosen:
            return chosen[None]
        if (found := self._first_device()) is None:
            return None
        start_ns, device = found
        first = self._queues[device].first_with(self._arriving(device, start_ns), ask)
        return first if first is None or not ask else chosen.setdefault(None, first)

    def _arriving(self, device: str, until_ns: int) -> list[int]:
        """Return the tasks that `_take_in` would move, in order, from the top of the heap."""
        coming, places = self._coming[device], [0]
        found: list[tuple[tuple[int, int, int], int]] = []
        for place in places:
            for entry in coming[place : place + 1]:  # empty if another thread has taken some meanwhile
                if entry[0][0] <= until_ns:
                    found.append(entry)
                    places += (2 * place + 1, 2 * place + 2)
        return [task_id for _, task_id in sorted(found)]

    def choose_on(self, device: str) -> int | None:
        """Choose the task that starts next on this device; None if none is ready."""
        start_ns = self._start_ns(device)
        if start_ns is None:
            return None
        self._take_in(device, start_ns)
        return self._queues[device].choose()

    def remove(self, task_id: int) -> TaskTime:
        """Remove a task that runs now, and return its simulated times."""
        device, ready = self._device_of[task_id], self._ready.pop(task_id)
        start_ns = max(self._free_ns[device], ready.ready_ns)
        end_ns = start_ns + self._durations_ns[task_id]
        self._take_in(device, start_ns)
        self._queues[device].remove(task_id)
        self._free_ns[device] = end_ns
        self._ended[task_id] = end_ns, len(self._ended)
        self._last, self._latest_ns = task_id, max(self._latest_ns, end_ns)
        self._next, self._chosen = None, {}
        return TaskTime(ready.ready_ns, start_ns, end_ns, ready.after)

    def entries(self) -> list[ReadyTask]:
        """Return all ready tasks in the order in which they would start if no other arrived."""
        starts = [
            (start_ns, number, place, task_id)
            for number, device in enumerate(self.devices)
            for place, (start_ns, task_id) in enumerate(self._foreseen(device))
        ]
        ready, label = dict(self._ready), label_of(self._policy)
        return [
            ReadyTask(task := self._graph.tasks[task_id], at := ready[task_id].arrival, label(task, at))
            for *_, task_id in sorted(starts)
            if task_id in ready  # another thread may be running it
        ]

    def _foreseen(self, device: str) -> Iterator[tuple[int, int]]:
        """Yield the times at which the device would start its tasks if no other arrived, without calling a user's
        policy."""
        queue = KeyedQueue(self._graph, self._policy if isinstance(self._policy, Policy) else _BY_ARRIVAL)
        for entry in sorted(self._queues[device].entries(), key=attrgetter("arrival")):
            queue.push(entry.task.id)
        coming = deque(sorted(self._coming[device]))
        at_ns = self._free_ns[device]
        while queue or coming:
            if not queue:
                at_ns = max(at_ns, coming[0][0][0])
            while coming and coming[0][0][0] <= at_ns:
                queue.push(coming.popleft()[1])
            task_id = queue.choose()
            queue.remove(task_id)
            yield at_ns, task_id
            at_ns += self._durations_ns[task_id]

    def _first_device(self) -> tuple[int, str] | None:
        """Return the time and device at which the next task starts; None if none is ready."""
        starts = [(start_ns, device) for device in self.devices if (start_ns := self._start_ns(device)) is not None]
        return min(starts, key=itemgetter(0), default=None)

    def _start_ns(self, device: str) -> int | None:
        """Return the time at which the device starts its next task; None if none is ready."""
        free_ns = self._free_ns[device]
        if len(self._queues[device]):
            return free_ns
        return next((max(free_ns, ready_ns) for (ready_ns, *_), _ in self._coming[device][:1]), None)

    def _take_in(self, device: str, until_ns: int) -> None:
        """Move the tasks that are ready by this time into the queue."""
        coming = self._coming[device]
        while coming and coming[0][0][0] <= until_ns:
            self._queues[device].push(heappop(coming)[1])


AnyQueue = ReadyQueue | DeviceQueues

MakeQueue = Callable[[Graph, Policy | Choice, Sequence[int]], AnyQueue]
"""Creates an empty queue, as `ready_queue` does, from a graph, a policy and the list of tasks that ran."""


def devices_in_order(devices: Sequence[str]) -> tuple[str, ...]:
    """Return each device once, the CPU first, then by name."""
    return tuple(sorted(set(devices), key=lambda name: (name != "cpu", name)))


def why_idle(graph: Graph, device: str, planned: Sequence[int], ran: Sequence[int]) -> str:
    """Return why no task is ready on a device.

    Args:
        graph: the graph.
        device: the device.
        planned: all tasks in the order in which they ran and will run.
        ran: the tasks that have run.
    """
    done = set(ran)
    left = (task_id for task_id in planned if task_id not in done and str(graph.tasks[task_id].device) == device)
    coming = next(left, None)
    if coming is None:
        return f"{device} has run all of its tasks"
    places = {task_id: place for place, task_id in enumerate(planned, 1)}
    missing = {edge.task for edge in graph.in_edges[coming] if edge.task in places} - done
    last = max(missing, key=places.__getitem__)
    where = str(graph.tasks[last].device)
    return (
        f"{device} is idle: {graph.describe(coming)}, its next task, waits for {graph.describe(last)}, which runs "
        f"{nth(places[last])}, on {where}"
    )

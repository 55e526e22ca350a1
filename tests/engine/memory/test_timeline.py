"""`Timeline` against a slow and obvious account of the same storages."""

from __future__ import annotations

import dataclasses
from array import array
from dataclasses import dataclass, field
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import tapescope as ts
from tapescope.engine.memory.categories import Category
from tapescope.engine.memory.estimates import Estimate
from tapescope.engine.memory.lifetimes import mean_level
from tapescope.engine.memory.timeline import Keeper, Maker, Timeline
from tapescope.tests.says import Snapshots, raises, says

CATEGORIES = st.sampled_from(Category)
BIRTH = st.tuples(st.just("birth"), st.integers(0, 5), CATEGORIES)
DEATH = st.tuples(st.just("death"), st.integers(0, 50), st.none())
CHANGE = st.tuples(st.just("change"), st.integers(0, 50), CATEGORIES)
STEPS = st.lists(st.one_of(BIRTH, DEATH, CHANGE), max_size=8)


@cache
def graph() -> ts.Graph:
    x = torch.ones(4, requires_grad=True)
    with ts.capture():
        loss = ((x * 2).exp() @ x.sin()).sum()
    return ts.graph(loss)


@dataclass
class Account:
    """A backward described step by step, with every expected fact of its timeline recorded as it happens.

    `states[i]` says of each storage that is alive before event i what it is for.
    """

    before: list[tuple[int, Category]]
    forward: list[tuple[str, int, Category | None]]
    tasks: list[list[tuple[str, int, Category | None]]]
    after: list[tuple[str, int, Category | None]]
    order: tuple[int, ...] = ()
    events: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    born_as: list[Category] = field(default_factory=list)
    changes: list[tuple[int, int, Category]] = field(default_factory=list)
    states: list[dict[int, Category]] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.order = tuple(range(len(graph())))[::-1][: len(self.tasks)]
        alive = {}
        for nbytes, category in self.before:
            alive[len(self.nbytes)] = category
            self._storage(nbytes, category)
        self.states.append(alive)
        self._tell(self.forward, -1)
        for place, steps in enumerate(self.tasks):
            self.starts.append(len(self.events))
            self._tell(steps, place)
        self.starts.append(len(self.events))
        self._tell(self.after, len(self.tasks))

    def _storage(self, nbytes: int, category: Category) -> None:
        self.nbytes.append(nbytes)
        self.born_as.append(category)

    def _tell(self, steps: list[tuple[str, int, Category | None]], place: int) -> None:
        for what, number, category in steps:
            alive = self.states[-1]
            if what == "birth":
                assert category is not None
                self.events.append(len(self.nbytes))
                self.states.append({**alive, len(self.nbytes): category})
                self._storage(number, category)
                self.places.append(place)
            elif alive:
                number = sorted(alive)[number % len(alive)]
                if what == "death":
                    self.events.append(~number)
                    self.states.append({each: alive[each] for each in alive if each != number})
                    self.places.append(place)
                else:
                    assert category is not None
                    self.changes.append((len(self.events), number, category))
                    alive[number] = category

    def timeline(self, **others: object) -> Timeline:
        return Timeline(
            graph(),
            self.order,
            "cpu",
            "measured",
            array("q", self.events),
            array("q", self.starts),
            array("q", self.nbytes),
            array("b", self.born_as),
            self.changes,
            len(self.before),
            **others,  # type: ignore[arg-type]
        )

    def level(self, event: int) -> int:
        return sum(self.nbytes[number] for number in self.states[event])

    def level_of(self, category: Category, event: int) -> int:
        return sum(self.nbytes[number] for number, found in self.states[event].items() if found is category)


ACCOUNTS = st.builds(
    Account,
    st.lists(st.tuples(st.integers(0, 5), CATEGORIES), max_size=4),
    STEPS,
    st.lists(STEPS, max_size=5),
    STEPS,
)


@given(ACCOUNTS)
def test_levels_and_peaks(account: Account) -> None:
    timeline = account.timeline()
    levels = [account.level(event) for event in range(len(account.states))]
    start = account.starts[0]
    assert list(timeline.levels) == levels
    assert (timeline.start_bytes, timeline.end_bytes) == (levels[start], levels[-1])
    assert timeline.peak_bytes == max(levels[start:])
    first = next(event for event in range(start, len(levels)) if levels[event] == timeline.peak_bytes)
    assert timeline.peak_event == first
    place = account.places[first - 1] if first > start else -1
    assert timeline.peak_place == place
    assert timeline.peak_task == (account.order[place] if 0 <= place < len(account.order) else None)
    of_tasks = []
    for place in range(len(account.order)):
        begins, ends = account.starts[place], account.starts[place + 1]
        of_tasks.append(max(levels[begins : ends + 1]))
    assert list(timeline.task_peaks) == of_tasks
    if account.before:
        assert timeline.forward_peak_bytes is None
    else:
        assert timeline.forward_peak_bytes == max(levels[: start + 1])


@given(ACCOUNTS)
def test_what_is_alive_and_what_for(account: Account) -> None:
    timeline = account.timeline()
    for event, state in enumerate(account.states):
        assert timeline.alive(event) == sorted(state)
        assert all(timeline.category_at(number, event) is category for number, category in state.items())
    assert timeline.alive() == sorted(account.states[timeline.peak_event])
    assert [timeline.place_of(event) for event in range(len(account.events))] == account.places


@given(ACCOUNTS)
def test_categories_add_up_to_each_tasks_peak(account: Account) -> None:
    timeline = account.timeline()
    found = timeline.category_levels
    for place, highest in enumerate(timeline.task_peaks):
        assert sum(levels[place] for levels in found.values()) == highest
        begins, ends = account.starts[place], account.starts[place + 1]
        moment = next(event for event in range(begins, ends + 1) if account.level(event) == highest)
        for category in Category:
            expected = account.level_of(category, moment)
            assert (found[category][place] if category in found else 0) == expected
    assert all(any(levels) for levels in found.values())


@given(ACCOUNTS, st.data())
def test_the_life_of_each_storage(account: Account, data: st.DataObject) -> None:
    count = len(account.nbytes)
    some = st.sets(st.integers(0, count - 1)) if count else st.just(set())
    tasks = st.integers(0, len(graph()) - 1)
    held, grads = frozenset(data.draw(some)), {number: data.draw(tasks) for number in data.draw(some)}
    slot = st.tuples(tasks, st.sampled_from(["self", "result"]))
    saved = {number: tuple(data.draw(st.lists(slot, min_size=1, max_size=3))) for number in data.draw(some)}
    makers = [Maker(None, None, f"module.{number}") for number in range(data.draw(st.integers(0, count)))]
    clock = data.draw(st.booleans())
    wanted = [(place, task) for place, task in enumerate(account.order) for _ in graph().tasks[task].inputs]
    waiting = data.draw(st.lists(st.integers(-1, count - 1), min_size=len(wanted), max_size=len(wanted)))
    recorded = data.draw(st.booleans())
    timeline = account.timeline(
        held=held,
        grads=grads,
        saved=saved,
        makers=makers,
        inputs=array("q", waiting if recorded else []),
        event_ns=array("q", range(100, 100 + len(account.events)) if clock else []),
    )
    assert len(timeline) == count == len(list(timeline))
    for number, storage in enumerate(timeline):
        born = account.events.index(number) if number in account.events else None
        died = account.events.index(~number) if ~number in account.events else None
        assert (storage.number, storage.nbytes) == (number, account.nbytes[number])
        assert storage.born == (-1 if born is None else account.places[born])
        assert storage.died == (None if died is None else account.places[died])
        assert storage.born_ns == (100 + born if clock and born is not None else None)
        assert storage.died_ns == (100 + died if clock and died is not None else None)
        last = [state[number] for state in account.states if number in state]
        assert storage.category is last[-1]
        if number < len(makers):
            assert storage.made_by is makers[number]
        elif 0 <= storage.born < len(account.order):
            task = graph().tasks[account.order[storage.born]]
            assert storage.made_by == Maker(task.id, task.operation, graph().module(task))
        else:
            assert storage.made_by == Maker(None, None, None)
        waits = [task for (_, task), found in zip(wanted, waiting, strict=True) if found == number and recorded]
        keepers = [
            *(Keeper("saved" if task in account.order else "node", task, at) for task, at in saved.get(number, ())),
            *(Keeper("buffer", task) for task in dict.fromkeys(waits)),
            *([Keeper("grad", grads[number])] if number in grads else []),
            *([Keeper("user")] if number in held else []),
            *([Keeper("backward")] if storage.died == len(account.order) else []),
        ]
        assert list(storage.kept_by) == keepers
    with raises(IndexError, count):
        timeline.storage(count)
    with pytest.raises(IndexError):
        timeline.storage(-1)


def test_the_text_says_what_it_is(snapshot: Snapshots) -> None:
    account = Account([(3, Category.SAVED)], [], [[("birth", 1_000_000, Category.BUFFER)]], [])
    measured = account.timeline()
    says(repr(measured), "cpu", "measured", "1,000,003")
    predicted = Timeline(
        graph(), (), "cuda:0", "dry run", array("q"), array("q", [0]), array("q"), array("b"), estimates=("so",)
    )
    says(repr(predicted), "cuda:0", "dry run", 0)
    lower = dataclasses.replace(predicted, estimates=(Estimate("so", "at least"),))
    assert lower.direction == "at least"
    snapshot("profile", "\n".join(map(repr, (measured, predicted, lower))))


def test_the_share_of_workspace_is_that_of_the_peak() -> None:
    births = [("birth", 200, Category.BUFFER), ("birth", 700, Category.WORKSPACE)]
    timeline = Account([(100, Category.SAVED)], [], [births], []).timeline()
    assert timeline.workspace_share == 0.7
    assert repr(timeline) == "<Timeline of cpu, measured: peak 1,000 bytes, 70.0% of it workspace>"
    assert Account([(100, Category.SAVED)], [], [births[:1]], []).timeline().workspace_share == 0


def test_each_category_has_a_title() -> None:
    assert len({category.title for category in Category}) == len(Category)


def test_two_hundred_thousand_events() -> None:
    count = 100_000
    events = array("q", (each for number in range(count) for each in (number, ~number)))
    order = tuple(range(len(graph())))
    step = len(events) // len(order)
    starts = array("q", [*(place * step for place in range(len(order))), len(events)])
    timeline = Timeline(
        graph(), order, "cpu", "measured", events, starts, array("q", [8] * count), array("b", [1] * count)
    )
    assert timeline.peak_bytes == 8 and timeline.category_levels[Category.BUFFER][0] == 8
    assert sum(storage.nbytes for storage in timeline) == 8 * count


def test_gradients_become_grad_one_leaf_after_the_other_though_nothing_is_allocated() -> None:
    weights = [torch.randn(100, 100, requires_grad=True) for _ in range(5)]
    run = ts.profile(lambda: torch.stack([weight.exp().sum() for weight in weights]).sum(), "bfs")
    timeline = run.timeline
    assert timeline is not None
    levels = timeline.category_levels[Category.GRADIENT]
    done = 0
    for place, task in enumerate(run.order):
        done += run.graph.tasks[task].is_leaf
        assert levels[place] == done * 40_000
    for number, leaf in timeline.grads.items():
        ((event, place, category),) = timeline.changes_of[number]
        assert (place, category) == (run.order.index(leaf), Category.GRADIENT)
        assert timeline.category_at(number, event, place - 1) is Category.BUFFER
        assert timeline.category_at(number, event, place) is Category.GRADIENT


def test_a_category_says_what_it_is(snapshot: Snapshots) -> None:
    for each in Category:
        assert f"{each}" == str(each) == each.title
    snapshot("profile", "\n".join(f"{each.title}, {each.plural}" for each in Category))


def test_the_mean_level_counts_each_level_for_as_long_as_it_lasted() -> None:
    levels, ns = [4, 10, 7, 0], [2, 5, 9]  # 4 until 2, 10 until 5, 7 until 9, then 0
    at = [4, 4, 10, 10, 10, 7, 7, 7, 7, 0, 0, 0]  # the level in each nanosecond
    for began in range(11):
        for ended in range(began + 1, 12):
            assert mean_level(levels, ns, began, ended) == pytest.approx(sum(at[began:ended]) / (ended - began))
    assert mean_level(levels, ns, 3, 3) == 0.0


def test_a_measured_backward_has_an_average_and_a_prediction_has_none() -> None:
    model = nn.Linear(64, 64)
    run = ts.profile(lambda: model(torch.ones(64, 64)).sum())
    assert 0 < run.timeline.average_bytes <= run.peak_bytes
    assert ts.simulate(run.graph, "heap", run.footprints).average_bytes is None

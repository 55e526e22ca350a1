"""The deck from Python and from its page: one session, which both drive and both see."""

from __future__ import annotations

import gc
import random
import re
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock
from weakref import ref

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

import tapescope as ts
from tapescope.engine.planning.policies import TABS
from tapescope.engine.recording.run import Engine
from tapescope.engine.schedule.policy import Policy, QueueState
from tapescope.inspector.graph.graph import Task
from tapescope.tests.says import Snapshots, raises, says
from tapescope.widgets.deck.deck import Deck

from ..models import ENGINES, Branches, deck_on, expected_gradients, forward, gradients
from ..page_side import Page, settle


def agree(page: Page) -> None:
    """The page shows what the session has done and is going to do."""
    deck = page.deck
    assert deck is not None
    ready = deck.ready
    assert page.position == deck.position == len(deck.order)
    assert page.order[: page.position] == deck.order
    assert page.replay.queue(page.position) == [each.task.id for each in ready]
    assert [page.replay.key(each.task.id) for each in ready] == [each.label for each in ready]
    assert deck.current_task == page.replay.running(page.position)
    assert not page.told or page.last["current"] == deck.current_task


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("policy", TABS)
def test_after_every_step_the_page_shows_the_queue_of_the_session(page: Page, engine: Engine, policy: str) -> None:
    deck = deck_on(forward(Branches()), engine=engine, policy=policy)
    page.open(deck)
    while deck.current is not None:
        deck.step()
        agree(page)
    assert deck.status == page.last["status"] == "finished"


@pytest.mark.parametrize("engine", ENGINES)
def test_the_gradients_are_those_of_loss_backward_bit_for_bit(engine: Engine) -> None:
    model = Branches()
    deck = deck_on(forward(model), engine=engine)
    deck.step()
    deck.step(count=3)
    assert deck.position == 4
    run = deck.run()
    assert list(run.order) == deck.order and deck.current is None
    assert all(map(torch.equal, gradients(model), expected_gradients()))
    deck.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_switching_midway_shows_what_ran_and_what_will(page: Page, engine: Engine) -> None:
    deck = deck_on(forward(Branches()), engine=engine, policy="bfs")
    page.open(deck)
    mixed = "bfs"
    for policy in ("dfs", "heap", "bfs"):
        deck.step(count=2)
        mixed += f", then {policy}"
        deck.switch(policy)
        assert deck.policy == policy
        assert page.document["schedules"][0]["policy"] == mixed
        assert [each["policy"] for each in page.document["schedules"][1:]] == list(TABS), "from their start"
        agree(page)
    planned = page.order
    deck.run()
    assert deck.order == planned == page.order
    assert deck.trace is not None
    assert re.findall("heap|bfs|dfs", deck.trace.policy) == ["bfs", "dfs", "heap", "bfs"]


def test_a_task_chosen_by_hand_moves_up_in_the_plan(page: Page) -> None:
    deck = deck_on(forward(Branches()))
    page.open(deck)
    while len(deck.ready) < 3:
        deck.step()
    chosen = deck.ready[-1]
    assert deck.step(chosen) == chosen.task
    agree(page)
    assert page.document["schedules"][0]["by_hand"] == [chosen.task.id]
    page.send(kind="step", task=deck.ready[-1].task.id)
    settle(deck)
    agree(page)
    assert len(page.document["schedules"][0]["by_hand"]) == 2


def test_a_task_that_is_not_ready_is_refused_in_words_and_nothing_changes(page: Page, snapshot: Snapshots) -> None:
    deck = deck_on(forward(Branches()))
    page.open(deck)
    with raises(ValueError, deck.graph.describe(0, page.order.index(0))) as raised:
        deck.step(0)
    snapshot("deck", raised.value)
    page.send(kind="step", task=0)
    settle(deck)
    says(page.last["trouble"], raised.value)
    assert page.last["status"] == "stopped"
    agree(page)
    deck.step()
    assert page.last["trouble"] == ""


def test_the_native_engine_says_who_can_run_another_task(page: Page) -> None:
    deck = deck_on(forward(Branches()), engine="native")
    page.open(deck)
    while len(deck.ready) < 2:
        deck.step()
    with pytest.raises(NotImplementedError, match='engine="direct"'):
        deck.step(deck.ready[-1])
    agree(page)
    assert deck.step(deck.current).id == page.order[page.position - 1]
    assert page.document["schedules"][0]["by_hand"] == []


@pytest.mark.parametrize("engine", ENGINES)
def test_run_stops_before_breakpoints_and_at_the_end(page: Page, engine: Engine, snapshot: Snapshots) -> None:
    deck = deck_on(forward(Branches()), engine=engine)
    page.open(deck)
    stops = [page.order[3], page.order[7]]
    deck.breakpoints = stops
    assert [(deck.run(), deck.current_task)[1] for _ in range(3)] == [*stops, None]
    assert deck.status == "finished"
    deck.run()  # nothing is left
    with raises(RuntimeError, len(deck.graph)) as raised:
        deck.step()
    if engine == "direct":
        snapshot("deck", raised.value)
    assert deck.status == "finished"


@pytest.mark.parametrize("engine", ENGINES)
def test_run_to_stops_before_its_task_and_refuses_what_has_run(page: Page, engine: Engine, snapshot: Snapshots) -> None:
    deck = deck_on(forward(Branches()), engine=engine)
    page.open(deck)
    target = page.order[5]
    assert deck.run_to(target) == deck.graph.tasks[target] == deck.current
    assert deck.run_to(deck.ready[0]) == deck.current, "it is there already"
    with raises(ValueError, deck.graph.tasks[deck.order[0]].name) as raised:
        deck.run_to(deck.order[0])
    if engine == "direct":
        snapshot("deck", raised.value)
    with raises(ValueError, 10_000):
        deck.run_to(10_000)
    agree(page)


@pytest.mark.parametrize("engine", ENGINES)
def test_stop_from_a_hook_ends_the_run_after_its_task(page: Page, engine: Engine) -> None:
    loss = forward(Branches())
    deck = deck_on(loss, engine=engine)
    page.open(deck)
    node = loss.grad_fn.next_functions[0][0]
    stopped = []
    node.register_hook(lambda outputs, gradients: stopped.append(deck.stop()))
    deck.run()
    assert deck.status == "stopped" and stopped
    assert deck.graph.nodes[deck.order[-1]] is node
    deck.run()
    assert deck.status == "finished"
    deck.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_stop_from_another_thread_and_from_the_page(page: Page, engine: Engine) -> None:
    loss = forward(Branches())
    begun, go_on = threading.Event(), threading.Event()
    loss.grad_fn.register_prehook(lambda gradients: (begun.set(), go_on.wait(5), None)[-1])
    deck = deck_on(loss, engine=engine)
    page.open(deck)
    for stop in (deck.stop, lambda: page.send(kind="stop")):
        if deck.position:
            break
        runs = threading.Thread(target=deck.run)
        runs.start()
        assert begun.wait(5)
        assert page.last["status"] == "running", "told while the first task runs"
        stop()
        go_on.set()
        runs.join(5)
        assert deck.position == 1 and deck.status == "stopped"
    page.send(kind="run")
    settle(deck)
    assert deck.status == "finished", "a stop that was heard is forgotten"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_slow_task_is_the_one_that_is_shown_while_it_runs(page: Page, engine: Engine) -> None:
    loss = forward(Branches())
    deck = deck_on(loss, engine=engine)
    slow = deck.graph.tasks[deck._live.plan.order[2]]
    begun, go_on = threading.Event(), threading.Event()
    deck.graph.nodes[slow.id].register_prehook(lambda gradients: (begun.set(), go_on.wait(10), None)[-1])
    page.open(deck)
    runs = threading.Thread(target=deck.run)
    runs.start()
    assert begun.wait(5)
    until_s = time.monotonic() + 5
    while deck.position < 2 and time.monotonic() < until_s:
        time.sleep(0.01)
    try:
        assert (deck.position, deck.status, deck.current_task) == (2, "running", slow.id)
        assert (page.position, page.last["current"]) == (2, slow.id)
    finally:
        go_on.set()
        runs.join(10)
    assert deck.status == "finished"
    agree(page)
    deck.close()


def test_stop_reaches_a_run_that_waits_in_the_queue_and_no_later_one(page: Page) -> None:
    loss = forward(Branches())
    begun, go_on = threading.Event(), threading.Event()
    loss.grad_fn.register_prehook(lambda gradients: (begun.set(), go_on.wait(5), None)[-1])
    deck = deck_on(loss)
    page.open(deck)
    page.send(kind="step", count=1)
    assert begun.wait(5)
    page.send(kind="run")
    deck.stop()
    page.send(kind="step", count=2)
    go_on.set()
    settle(deck)
    assert deck.position == 3


@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_in_a_hook_reaches_the_caller_and_the_page(page: Page, engine: Engine) -> None:
    error = KeyError("mine")

    def fail(gradient: Tensor) -> None:
        raise error

    model = Branches()
    hooks = [model.up.weight.register_hook(fail)]
    deck = deck_on(forward(model), engine=engine)
    page.open(deck)
    with pytest.raises(KeyError, match="mine") as raised:
        deck.run()
    assert raised.value is error
    assert deck.status == page.last["status"] == "failed"
    assert "KeyError: 'mine'" in page.last["trouble"]
    *_, note, line = page.last["trouble"].split("\n")
    says(note, "tapescope: ", "AccumulateGrad", "up.weight")
    assert line == f"at test_deck.py:{fail.__code__.co_firstlineno + 1}"
    assert deck.current is None and page.order[: deck.position] == deck.order
    failed = page.replay.running(deck.position)
    assert failed is not None and deck.graph.tasks[failed].parameter == "up.weight"
    with raises(RuntimeError, "KeyError", "ts.debug(loss)"):
        deck.run()
    assert deck.status == "failed" and "KeyError" in page.last["trouble"]
    plain = Branches()
    hooks.append(plain.up.weight.register_hook(fail))
    with pytest.raises(KeyError):
        forward(plain).backward()
    for hook in hooks:
        hook.remove()  # the error knows this frame, and the frame the models
    assert [None if p.grad is None else p.grad.tolist() for p in model.parameters()] == [
        None if p.grad is None else p.grad.tolist() for p in plain.parameters()
    ]


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ArithmeticError("no gradient today")


class Faulty(Branches):
    def forward(self, x: Tensor) -> Tensor:
        return Failing.apply(super().forward(x))


@pytest.mark.parametrize("engine", ENGINES)
def test_the_trouble_names_task_module_and_source_line(page: Page, engine: Engine, snapshot: Snapshots) -> None:
    deck = deck_on(forward(Faulty()), engine=engine)
    page.open(deck)
    page.send(kind="run")
    settle(deck)
    assert deck.status == "failed"
    trouble = page.last["trouble"]
    says(trouble, "ArithmeticError: no gradient today")
    assert re.search(r" FailingBackward \(\d+[a-z]{2}, test_deck.py:\d+\)\n", trouble)
    if engine == "direct":
        snapshot("deck", trouble)
    assert trouble.endswith(f"\nat test_deck.py:{Failing.backward.__code__.co_firstlineno + 2}")


def test_words_of_the_users_stay_as_they_are(page: Page) -> None:
    model = Branches()
    loss = forward(model)
    name = ts.graph(loss).tasks[3].name

    def fail(gradient: Tensor) -> None:
        raise ArithmeticError(f"not in task 3 {name}")

    hook = model.up.weight.register_hook(fail)
    deck = deck_on(loss)
    page.open(deck)
    page.send(kind="run")
    settle(deck)
    hook.remove()
    assert page.last["trouble"].startswith(f"ArithmeticError: not in task 3 {name}\n")
    says(page.last["trouble"], "tapescope: ", "AccumulateGrad", "up.weight")


@pytest.mark.parametrize("engine", ENGINES)
def test_closing_leaves_no_thread_no_hooks_and_no_graph(page: Page, engine: Engine) -> None:
    loss = forward(Branches())
    node = loss.grad_fn
    numbers = [each._sequence_nr() for each in ts.graph(loss).nodes]
    storage = StorageWeakRef(loss.untyped_storage())
    saved = StorageWeakRef(node.next_functions[0][0].next_functions[0][0]._saved_self.untyped_storage())
    deck = deck_on(loss, engine=engine)
    deck.step(count=2)
    prediction, trace = deck.compare(["bfs"]), deck.trace
    graph = ts.graph(loss)
    deck.close()
    deck.close()
    assert deck.status == "closed"
    assert [each._sequence_nr() for each in graph.nodes] == numbers
    assert deck.graph.nodes == () and len(deck.graph) == len(graph)
    with pytest.raises(RuntimeError, match="closed"):
        deck.step()
    assert deck.ready == [] and len(deck.order) == 2
    del loss, node, graph, trace
    assert storage.expired() and saved.expired()
    assert prediction.rows[0].peak_bytes > 0


def test_a_closed_deck_that_nobody_holds_is_freed() -> None:
    deck = deck_on(forward(Branches()))
    deck.run()
    deck.close()
    dead = ref(deck)
    del deck
    gc.collect()
    assert dead() is None


def test_closing_from_a_hook_and_while_a_task_runs(page: Page) -> None:
    for engine in ENGINES:
        for from_hook in (True, False):
            loss = forward(Branches())
            deck = deck_on(loss, engine=engine)
            begun, go_on = threading.Event(), threading.Event()

            def hook(
                gradients: Sequence[Tensor],
                deck: Deck = deck,
                from_hook: bool = from_hook,
                begun: threading.Event = begun,
                go_on: threading.Event = go_on,
            ) -> None:
                if from_hook:
                    deck.close()
                begun.set()
                go_on.wait(5)

            loss.grad_fn.register_prehook(hook)
            ended = deck._live.driver.do(deck._live.running.run)
            assert begun.wait(5)
            threading.Timer(0.05, go_on.set).start()
            deck.close()
            ended.exception(5)
            settle(deck)
            assert deck.status == "closed" and len(deck.order) <= 1


def test_what_waits_when_a_deck_is_closed_is_told_so(page: Page, snapshot: Snapshots) -> None:
    loss = forward(Branches())
    begun, go_on = threading.Event(), threading.Event()
    loss.grad_fn.register_prehook(lambda gradients: (begun.set(), go_on.wait(5), None)[-1])
    deck = deck_on(loss)
    said: list[str] = []

    def ask() -> None:
        with pytest.raises(RuntimeError) as raised:
            deck.step()
        said.append(str(raised.value))

    first = deck._live.driver.do(deck._live.running.run)
    assert begun.wait(5)
    waiting = threading.Thread(target=ask)
    waiting.start()
    while not deck._live.driver._commands:
        time.sleep(0.001)
    threading.Timer(0.05, go_on.set).start()
    deck.close()
    waiting.join(5)
    first.exception(5)
    (closed,) = said
    says(closed, "closed")
    snapshot("deck", closed)


@pytest.mark.parametrize("engine", ENGINES)
def test_hooks_may_look_but_not_wait(page: Page, engine: Engine, snapshot: Snapshots) -> None:
    loss = forward(Branches())
    said: list[object] = []
    deck = deck_on(loss, engine=engine)
    page.open(deck)

    def hook(gradients: object) -> None:
        try:
            deck.step()
        except RuntimeError as error:
            said.append(str(error))
        said.append(len(deck.ready))

    loss.grad_fn.register_prehook(hook)
    deck.run()
    says(said[0], "thread", "hook", "deck.stop()")
    if engine == "direct":
        snapshot("deck", said[0])
    assert isinstance(said[1], int)


def test_observers_see_each_position_may_look_and_may_not_step(page: Page) -> None:
    deck = deck_on(forward(Branches()))
    page.open(deck)
    seen: list[tuple[int, int]] = []
    deck.observe(lambda change: seen.append((change["new"], len(deck.gradients))), "position")
    deck.step()
    deck.step()
    assert [position for position, _ in seen] == [1, 2]
    deck.unobserve_all("position")
    deck.observe(lambda change: deck.step(), "position")
    with raises(RuntimeError, "hook", "observer", "deck.stop()"):
        deck.step()
    assert (deck.position, deck.status) == (3, "stopped"), "it ran, and all traits are set"
    agree_without_waiting(page)
    deck.unobserve_all("position")
    deck.run()
    assert deck.status == "finished"


def agree_without_waiting(page: Page) -> None:
    assert page.deck is not None and page.position == page.deck.position


def test_an_observer_that_raises_ends_a_run_but_not_the_session(page: Page) -> None:
    loss = forward(Branches())
    loss.grad_fn.next_functions[0][0].register_prehook(lambda gradients: time.sleep(0.15))
    deck = deck_on(loss)
    page.open(deck)

    def complain(change: object) -> None:
        raise LookupError("not this one")

    deck.observe(complain, "position")
    with pytest.raises(LookupError):
        deck.run()
    deck.unobserve_all("position")
    assert deck.status == "stopped" and 0 < deck.position < len(deck.graph)
    deck.run()
    assert deck.status == "finished"


def test_what_another_thread_sets_while_observers_run_reaches_the_page_at_once(page: Page) -> None:
    deck = page.open(deck_on(forward(Branches()))).deck
    assert deck is not None and deck.comm is not None
    settle(deck)
    sent: list[dict[str, Any]] = []
    found: list[bool] = []

    def select(change: object) -> None:
        other = threading.Thread(target=setattr, args=(deck, "selection", 3))
        other.start()
        other.join()
        found.append(any(each.get("state", {}).get("selection") == 3 for each in sent))

    deck.observe(select, "position")
    with mock.patch.object(deck.comm, "send", lambda data, buffers: sent.append(data)):
        deck.step()
    assert found == [True]


def test_an_observer_may_switch_the_policy(page: Page) -> None:
    deck = deck_on(forward(Branches()), policy="bfs")
    page.open(deck)

    def switch(change: Any) -> None:
        if change["new"] == 2:
            deck.policy = "dfs"

    deck.observe(switch, "position")
    deck.step(count=2)
    settle(deck)
    assert deck.policy == "dfs"
    agree(page)


def test_the_trait_policy_switches_and_refuses_unknown_names(page: Page) -> None:
    deck = deck_on(forward(Branches()))
    page.open(deck)
    deck.policy = "bfs"
    settle(deck)
    assert deck.policy == "bfs" and deck._live.session.policy == "bfs"
    with raises(ValueError, "policy", "'bsf'", "'bfs'", "heap"):
        deck.policy = "bsf"
    assert deck.policy == "bfs"
    deck.set_state({"policy": "dfs"})  # as a linked widget of the page does
    settle(deck)
    assert deck._live.session.policy == "dfs"
    page.send(kind="policy", policy="what")
    settle(deck)
    says(page.last["trouble"], "policy", "'what'")
    assert deck.policy == "dfs"
    agree(page)


def test_the_last_policy_asked_for_is_the_one_that_stays(page: Page) -> None:
    loss = forward(Branches())
    begun, go_on = threading.Event(), threading.Event()
    loss.grad_fn.register_prehook(lambda gradients: (begun.set(), go_on.wait(5), None)[-1])
    deck = deck_on(loss)
    page.open(deck)
    page.send(kind="step", count=1)
    assert begun.wait(5)
    deck.policy = "bfs"
    deck.policy = "heap"  # while the first change still waits
    go_on.set()
    settle(deck)
    assert deck.policy == deck._live.session.policy == "heap"


def test_a_closed_deck_says_so_to_the_page(page: Page) -> None:
    deck = deck_on(forward(Branches()))
    page.open(deck)
    deck.close()
    assert page.last["status"] == "closed"
    page.send(kind="step", count=1)
    settle(deck)
    says(page.last["trouble"], "closed", "ts.debug(loss)")


def test_replace_gives_the_task_other_gradients_and_tells_the_page(page: Page) -> None:
    for engine in ENGINES:
        model = Branches()
        deck = deck_on(forward(model), engine=engine)
        page.open(deck)
        deck.step()
        zeros = [torch.zeros_like(each) for each in deck.gradients if each is not None]
        deck.replace(zeros)
        assert all(map(torch.equal, deck.gradients, zeros))
        assert page.document["records"][str(deck.current_task)]["inputs"][0]["norm"] == 0
        with pytest.raises(ValueError, match="shape|number|takes"):
            deck.replace(torch.zeros(7))
        deck.run()
        assert deck.trace is not None and any(record.edits for record in deck.trace)
        deck.close()


def test_waiting_shows_input_buffers(page: Page, snapshot: Snapshots) -> None:
    deck = deck_on(forward(Branches()))
    page.open(deck)
    deck.step(count=4)
    for each in deck.ready:
        assert [g.shape for g in deck.waiting(each) if g is not None] == [
            torch.Size(meta.shape) for meta in each.task.inputs if meta.shape is not None
        ]
    page.send(kind="inspect", task=deck.ready[-1].task.id)
    settle(deck)
    assert str(deck.ready[-1].task.id) in page.document["records"]
    deck.close()
    native = deck_on(forward(Branches()), engine="native")
    with raises(NotImplementedError, "PyTorch's") as raised:
        native.waiting(0)
    snapshot("deck", raised.value)
    native.close()


def test_messages_from_many_threads_keep_the_deck_whole(page: Page) -> None:
    for engine in ENGINES:
        model = Branches()
        deck = deck_on(forward(model), engine=engine)
        page.open(deck)
        messages: list[dict[str, Any]] = [
            {"kind": "step", "count": 1},
            {"kind": "policy", "policy": "bfs"},
            {"kind": "stop"},
            {"kind": "inspect", "task": 3},
            {"kind": "hello", "revision": 0},
            {"kind": "policy", "policy": "heap"},
            {"kind": "run_to", "task": 0},
            {"kind": "nonsense"},
        ]

        def hammer(number: int, deck: Deck = deck, messages: list[dict[str, Any]] = messages) -> None:
            for turn in range(12):
                page.send(**messages[(number + turn) % len(messages)])
                if turn % 5 == number % 5:
                    deck.breakpoints = [turn]
                    deck.get_state()

        threads = [threading.Thread(target=hammer, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        settle(deck)
        deck.breakpoints = []
        deck.run()
        assert sorted(deck.order) == list(range(len(deck.graph))), "each task ran once"
        assert page.order == deck.order
        assert all(map(torch.allclose, gradients(model), expected_gradients()))
        deck.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_an_interrupt_ends_the_run_and_leaves_the_deck(page: Page, engine: Engine) -> None:
    loss = forward(Branches())
    begun, go_on = threading.Event(), threading.Event()
    loss.grad_fn.register_prehook(lambda gradients: (begun.set(), go_on.wait(5), None)[-1])
    deck = deck_on(loss, engine=engine)
    page.open(deck)
    for _ in range(2):  # the second while the task is still under way
        with pytest.raises(KeyboardInterrupt):
            interrupted_run(deck, begun)
    go_on.set()
    settle(deck)
    assert (deck.position, deck.status) == (1, "stopped")
    agree(page)
    deck.run()
    assert deck.status == "finished"


def interrupted_run(deck: Deck, begun: threading.Event) -> None:
    def send() -> None:
        begun.wait(5)
        time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=send, daemon=True).start()
    deck.run()


def first_name(ready: Sequence[Task], state: QueueState) -> Task:
    return min(ready, key=lambda task: (task.name, task.id))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_callable_picks_and_its_tab_stays_when_another_policy_takes_over(page: Page, engine: Engine) -> None:
    deck = deck_on(forward(Branches()), engine=engine, policy=first_name)
    page.open(deck)
    settle(deck)
    planned = page.order
    deck.step(count=5)
    assert deck.policy == "first_name" and deck.order == planned[:5]
    deck.policy = "heap"
    settle(deck)
    mixed = "first_name, then heap"
    assert [each["policy"] for each in page.document["schedules"]] == [mixed, *TABS, "first_name"]
    page.send(kind="policy", policy="first_name")
    settle(deck)
    assert deck.policy == "first_name" and page.order == planned
    deck.run()
    assert deck.order == planned


def test_a_policy_with_keys_labels_the_queue_its_own_way(page: Page) -> None:
    widest = Policy(
        "widest",
        "most elements first",
        lambda task, arrival: (-(task.inputs[0].nbytes or 0), arrival),
        lambda task, arrival: f"{task.inputs[0].nbytes} B @{arrival}",
    )
    deck = deck_on(forward(Branches()), policy=widest)
    page.open(deck)
    while deck.current is not None:
        agree(page)
        deck.step()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_dynamic_policy_shows_the_next_task_and_what_ran(page: Page, engine: Engine, snapshot: Snapshots) -> None:
    ran: list[int] = []
    turning = Policy(
        "turning", "as the wind", lambda task, arrival: (arrival if len(ran) % 2 else -arrival,), dynamic=True
    )
    deck = deck_on(forward(Branches()), engine=engine, policy=turning)
    page.open(deck)
    while deck.current is not None:
        ran.append(deck.step().id)
        assert page.order[: page.position] == deck.order == ran
        assert page.replay.running(page.position) == deck.current_task
    with raises(ValueError, "turning") as raised:
        deck.compare([turning])
    if engine == "direct":
        snapshot("deck", raised.value)


def test_a_policy_that_draws_lots_shows_what_it_drew(page: Page) -> None:
    lots = random.Random(3)

    def lottery(ready: Sequence[Task], state: QueueState) -> Task:
        return lots.choice(ready)

    for engine in ENGINES:
        deck = deck_on(forward(Branches()), engine=engine, policy=lottery)
        page.open(deck)
        while deck.current is not None:
            deck.step()
            assert page.order[: page.position] == deck.order
            assert page.replay.running(page.position) == deck.current_task
        deck.close()


def test_a_policy_that_fails_to_choose_can_be_replaced(page: Page) -> None:
    def moody(ready: Sequence[Task], state: QueueState) -> Task:
        if len(state.order) == 3:
            raise OSError("not now")
        return ready[0]

    deck = deck_on(forward(Branches()), policy=moody)
    page.open(deck)
    deck.step(count=3)
    assert deck.current is None and deck.status == "stopped"
    with pytest.raises(OSError, match="not now"):
        deck.run()
    page.send(kind="run")
    settle(deck)
    assert "OSError: not now" in page.last["trouble"] and page.last["status"] == "stopped"
    deck.switch("heap")
    agree(page)
    deck.run()
    assert deck.status == "finished"


def test_a_policy_that_returns_nonsense_is_named(page: Page) -> None:
    def wrong(ready: Sequence[Task], state: QueueState) -> Any:
        return 7

    deck = deck_on(forward(Branches()), policy=wrong)
    page.open(deck)
    with raises(ts.PolicyError, "wrong", 7):
        deck.step()
    assert deck.status == "stopped"
    deck.switch("bfs")
    agree(page)


@pytest.mark.parametrize("engine", ENGINES)
def test_inputs_leaves_tasks_out_of_every_schedule(page: Page, engine: Engine) -> None:
    model = Branches()
    deck = deck_on(forward(model), engine=engine, inputs=[model.down.weight])
    page.open(deck)
    settle(deck)
    assert len(page.order) < len(deck.graph)
    assert {frozenset(each["order"]) for each in page.document["schedules"]} == {frozenset(page.order)}
    while deck.current is not None:
        agree(page)
        deck.step()
    left_out = next(task for task in deck.graph.tasks if task.id not in page.order)
    with raises(ValueError, left_out.name):
        deck.run_to(left_out)
    assert model.up.weight.grad is None and torch.equal(model.down.weight.grad, dict_of_expected()["down.weight"])


def dict_of_expected() -> dict[str, Tensor]:
    model = Branches()
    forward(model).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_two_decks_run_side_by_side(page: Page) -> None:
    models = Branches(), Branches()
    decks = [deck_on(forward(model), engine=engine) for model, engine in zip(models, ENGINES, strict=True)]
    while any(deck.current for deck in decks):
        for deck in decks:
            deck.step()
    for model, deck in zip(models, decks, strict=True):
        assert all(map(torch.equal, gradients(model), expected_gradients()))
        deck.close()


def test_a_closed_deck_says_that_its_session_is_over() -> None:
    deck = deck_on(forward(Branches()))
    deck.close()
    with raises(RuntimeError, "closed", "ts.debug(loss)"):
        deck.back()
    with raises(RuntimeError, "closed", "ts.debug(loss)"):
        deck.policy = "bfs"
    assert deck.policy == "heap"


def test_a_page_that_opens_late_hears_what_it_missed(page: Page) -> None:
    deck = deck_on(forward(Branches()))
    page.open(deck)
    settle(deck)
    late = dict(page.document)
    deck.step(count=3)
    deck.switch("bfs")
    count = len(page.told)
    page.send(kind="hello", revision=late["revision"])
    news = page.told[count]
    assert news["position"] == 3 and len(news["records"]) >= 3
    assert news["live"]["order"] == page.order and len(news["others"]) == len(TABS)
    page.send(kind="hello", revision=deck._live.document.content["revision"])
    assert page.last["live"] is None and page.last["records"] == {} and page.last["status"] == "stopped"


def test_a_reloaded_page_gets_todays_document(page: Page) -> None:
    deck = deck_on(forward(Branches()))
    page.open(deck)
    deck.step(count=4)
    deck.switch("dfs")
    again = Page().open(deck)
    assert again.document["position"] == 4
    assert again.document["records"] == page.document["records"]
    assert again.order == page.order and again.document["metas"] == page.document["metas"]


def test_a_deck_that_is_asked_for_comes_wherever_this_runs(tmp_path: Path) -> None:
    assert isinstance(ts.debug(forward(Branches())), ts.types.Stepper)
    model = Branches()
    with ts.deck(forward(model), policy="bfs", history=False) as deck:
        assert isinstance(deck, Deck) and deck.policy == "bfs" and deck.history is None
        deck.step()
        assert deck.save_html(tmp_path / "deck.html").stat().st_size > 100_000
        deck.run()
    assert deck.status == "closed"
    assert all(map(torch.allclose, gradients(model), expected_gradients()))
    assert isinstance(ts.debug(forward(Branches())), ts.types.Stepper)

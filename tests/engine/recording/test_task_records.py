"""The trace, held against the queues that the engines show while they run, and against the gradients themselves."""

from __future__ import annotations

import dataclasses
import gc
import random
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import tapescope as ts
from tapescope.engine.execution.run_hooks import Hook
from tapescope.engine.planning.policies import find_policy
from tapescope.engine.recording import statistics_table
from tapescope.engine.recording.recorder import Recorder
from tapescope.engine.schedule.dependencies import Pending
from tapescope.engine.schedule.ready_queue import ready_queue
from tapescope.inspector.graph.graph import TensorMeta
from tapescope.tests.says import Snapshots, raises, says

from ..backward_programs import random_program
from ..comparing import ENGINES

POLICIES = ("heap", "bfs", "dfs")


def small_loss() -> Tensor:
    x = torch.arange(4.0).reshape(2, 2).requires_grad_()
    w = torch.ones(2, requires_grad=True)
    return ((x @ x).tanh() * w + x).sum()


def gradient_like(meta: TensorMeta) -> Tensor:
    return torch.ones(meta.shape, dtype=meta.dtype)


def no_hand(ready: list[int]) -> None:
    return None


def play(
    graph: ts.Graph, policy: object, level: str = "off", by_hand: Callable[[list[int]], int | None] = no_hand
) -> tuple[ts.types.Trace, list[list[tuple[int, str]]]]:
    """Records a backward that does nothing. The trace, and the queue at each start and at the end as it really was."""
    chosen = find_policy(policy)  # type: ignore[arg-type]
    order: list[int] = []
    queue = ready_queue(graph, chosen, order)
    recorder = Recorder(graph, chosen, level)  # type: ignore[arg-type]
    pending = Pending(graph)
    queues = []

    def arrive(task_ids: list[int]) -> None:
        for task_id in task_ids:
            queue.push(task_id)
            recorder.arrive(task_id, queue.label(task_id))

    arrive(pending.start())
    while queue:
        queues.append([(entry.task.id, entry.label) for entry in queue.entries()])
        told = by_hand([task_id for task_id, _ in queues[-1]])
        task_id = queue.choose() if told is None else told
        recorder.start(task_id, [gradient_like(meta) for meta in graph.tasks[task_id].inputs], told is not None)
        queue.remove(task_id)
        order.append(task_id)
        recorder.end(
            [gradient_like(graph.tasks[edge.next_task].inputs[edge.input]) for edge in graph.out_edges[task_id]]
        )
        arrive(pending.run(task_id))
    return recorder.trace(), [*queues, []]


def last_ready(ready, state):
    return ready[-1]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", [*POLICIES, last_ready], ids=[*POLICIES, "last_ready"])
def test_the_queue_is_shown_as_it_was_also_after_picks_by_hand(seed: int, policy: object) -> None:
    graph = ts.graph(random_program(seed)[1])
    pick = random.Random(seed)
    by_hand = lambda ready: pick.choice(ready) if pick.random() < 0.3 else None  # noqa: E731
    trace, queues = play(graph, policy, by_hand=by_hand)
    assert len(trace) == len(graph)
    for place, record in enumerate(trace):
        assert record.queue_before == queues[place]
        assert record.queue_after == queues[place + 1]
    for place in random.Random(seed).sample(range(len(trace)), len(trace)):
        assert trace[place].queue_before == queues[place]


def test_reasons_say_who_picked(snapshot: Snapshots) -> None:
    graph = ts.graph(random_program(1)[1])
    trace, queues = play(graph, "dfs")
    reasons: dict[tuple[str, str], str] = {}
    for policy, by_hand, name, choice in (
        ("dfs", no_hand, "dfs", "first"),
        (last_ready, no_hand, "last_ready", "function"),
        ("heap", lambda ready: ready[-1], "", "hand"),
    ):
        trace, queues = play(graph, policy, by_hand=by_hand)
        for record, queue in zip(trace, queues, strict=False):
            assert record.choice == ("only" if len(queue) == 1 and choice != "hand" else choice)
            assert record.by_hand is (choice == "hand")
            if record.choice != "only":
                says(record.reason, len(queue), name)
            reasons.setdefault((name, record.choice), record.reason)
    assert {choice for _, choice in reasons} == {"only", "first", "function", "hand"}
    snapshot("trace", "\n".join(dict.fromkeys(reasons.values())))


def test_what_an_engine_picks_against_the_policy_is_said(snapshot: Snapshots) -> None:
    graph = ts.graph(small_loss())
    leaf, inner = (6, 1)
    assert graph.tasks[leaf].is_leaf and not graph.tasks[inner].is_leaf
    recorder = Recorder(graph, find_policy("heap"))
    recorder.arrive(inner, "#1")
    recorder.arrive(leaf, "leaf")
    recorder.start(inner, [None])
    recorder.end([None])
    recorder.start(5, [None])
    first, second = recorder.trace()
    assert (first.choice, second.choice) == ("passed over", "unseen")
    says(first.reason, 2, "heap", "AccumulateGrad")
    snapshot("trace", f"{first.reason}\n{second.reason}")
    assert second.elapsed_ns is None and second.outputs == ()


def test_a_dynamic_policy_is_asked_for_its_key_when_a_task_arrives() -> None:
    graph = ts.graph(random_program(2)[1])
    clock = iter(range(10**6))
    falling = ts.Policy(
        "falling", "the later asked, the sooner", lambda task, arrival: (-next(clock) // 3,), dynamic=True
    )
    chosen = find_policy(falling)
    queue = ready_queue(graph, chosen, [])
    recorder = Recorder(graph, chosen)
    for task_id in range(10):
        queue.push(task_id)
        key = next(key for key, waiting in queue._heap if waiting == task_id)
        recorder.arrive(task_id, queue.label(task_id), key)
    asked = next(clock)
    assert recorder.trace().queue(0) == [(entry.task.id, entry.label) for entry in queue.entries()]
    assert next(clock) == asked + 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(3))
def test_both_engines_record_the_queue_and_the_gradients(engine: str, policy: str, seed: int) -> None:
    graph = ts.graph(random_program(seed)[1])
    expected, queues = play(graph, policy)
    run = ts.backward(random_program(seed)[1], policy=policy, engine=engine, trace="cheap")
    trace = run.trace
    assert trace is not None and trace.order == run.order == expected.order
    seen: dict[int, tuple[Tensor | None, ...]] = {}
    again = random_program(seed)[1]
    for task_id, node in enumerate(ts.graph(again).nodes):
        node.register_prehook(lambda gradients, task_id=task_id: seen.update({task_id: gradients}))
    ts.backward(again, policy=policy)
    for record, queue in zip(trace, queues, strict=False):
        assert record.queue_before == queue
        for gradient, real in zip(record.inputs, seen[record.task.id], strict=True):
            assert (gradient is None) == (real is None)
            if gradient is not None and real is not None:
                assert (gradient.meta.shape, gradient.meta.dtype) == (real.shape, real.dtype)
                assert gradient.statistics is not None
                assert gradient.statistics.norm == pytest.approx(float(real.double().norm()), rel=1e-3, abs=1e-6)
    assert trace[0].started_ns == 0
    for record, later in zip(trace, list(trace)[1:], strict=False):
        assert record.elapsed_ns is not None and record.elapsed_ns > 0
        assert record.started_ns + record.elapsed_ns <= later.started_ns
        assert record.thread == 0 and record.device == torch.device("cpu")


@pytest.mark.parametrize("engine", ENGINES)
def test_hooks_that_ran_are_listed_in_order(engine: str) -> None:
    x = torch.ones(2, requires_grad=True)
    y = x * 2

    def tensor_hook(gradient):
        return None

    def pre_hook(gradients):
        return None

    def post_hook(outputs, gradients):
        return None

    y.register_hook(tensor_hook)
    y.grad_fn.register_prehook(pre_hook)
    y.grad_fn.register_hook(post_hook)
    run = ts.backward(y.sum(), engine=engine, trace="off")
    (record,) = [record for record in run.trace if record.hooks]
    assert record.task.short_name == "Mul"
    assert [hook.kind for hook in record.hooks] == ["tensor", "pre", "post"]
    assert [hook.name.rpartition(".")[2] for hook in record.hooks] == ["tensor_hook", "pre_hook", "post_hook"]


def test_hooks_of_tensors_that_live_are_listed_by_the_native_engine_also_under_a_profiler() -> None:
    x = torch.ones(4, requires_grad=True)
    called: list[Tensor] = []
    gone = x.neg()
    gone.register_hook(called.append)
    left, right = (gone * 1).split(2)
    right.register_hook(called.append)
    left.retain_grad()
    left.register_hook(called.append)
    loss = (left * right).sum()
    loss.register_hook(lambda gradient: right.register_hook(seen_later) and None)

    def seen_later(gradient: Tensor) -> None:
        called.append(gradient)

    del gone
    sys.setprofile(lambda *event: None)
    try:
        trace = ts.backward(loss, engine="native", trace="off").trace
    finally:
        sys.setprofile(None)
    hooks = {
        record.task.short_name: [(hook.kind, hook.name.rpartition(".")[2]) for hook in record.hooks] for record in trace
    }
    assert hooks["Sum"] == [("tensor", "<lambda>")]
    assert hooks["Split"] == [
        ("tensor", "append"),
        ("tensor", "append"),
        ("tensor", "seen_later"),
        ("retain_grad", "retain_grad"),
    ]
    assert hooks["Neg"] == [] and len(called) == 4


def test_the_direct_engine_leaves_a_profiler_alone_and_lists_no_hooks_of_tensors_under_it() -> None:
    def hooks(profiler: object) -> list[Hook]:
        loss = small_loss()
        loss.register_hook(lambda gradient: None)
        sys.setprofile(profiler)
        try:
            trace = ts.backward(loss, engine="direct", trace="off").trace
            assert sys.getprofile() is profiler
        finally:
            sys.setprofile(None)
        return [hook for record in trace for hook in record.hooks]

    assert len(hooks(None)) == 1 and hooks(lambda *event: None) == []


def test_gradients_that_differ_from_what_the_graph_says_are_shown_as_they_were() -> None:
    graph = ts.graph(small_loss())
    recorder = Recorder(graph, find_policy("heap"))
    recorder.start(2, [None])
    recorder.end([torch.ones(5, dtype=torch.float64), None, torch.eye(3).to_sparse()])
    recorder.start(3, [torch.ones(2, 2)])
    recorder.end([torch.ones(2, 2), torch.ones(2, 2)])
    odd, usual = recorder.trace()
    assert odd.inputs == (None,)
    first, second, third = odd.outputs
    assert first.meta == TensorMeta((5,), torch.float64, torch.device("cpu"))
    assert second is None and third.layout is torch.sparse_coo
    assert len(recorder.trace().forms) == 3
    for gradient, edge in zip(usual.outputs, graph.out_edges[3], strict=True):
        assert gradient.meta is graph.tasks[edge.next_task].inputs[edge.input] and gradient.statistics is None


def test_a_function_mode_of_the_users_does_not_see_the_recorder() -> None:
    class Watching(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            raise AssertionError(f"{function} was seen")

    graph = ts.graph(small_loss())
    gradient, outputs = torch.ones(2, 2), [torch.ones(2, 2), torch.ones(5)]
    recorder = Recorder(graph, find_policy("heap"), "cheap")
    with Watching():
        recorder.start(3, [gradient])
        recorder.end(outputs)
    (record,) = recorder.trace()
    assert record.inputs[0].statistics.norm == 2 and record.outputs[1].meta.shape == (5,)


def test_edits_show_what_was_replaced() -> None:
    graph = ts.graph(small_loss())
    recorder = Recorder(graph, find_policy("heap"), "cheap")
    same = torch.ones(2, 2)
    recorder.edit(2, [torch.ones(2, 2), same, None], [torch.zeros(2, 2), same, torch.full((2,), 3.0)])
    recorder.start(2, [torch.zeros(2, 2)])
    (record,) = recorder.trace()
    changed, added = record.edits
    assert (changed.input, changed.before.statistics.max, changed.after.statistics.max) == (0, 1, 0)
    assert (added.input, added.before, added.after.statistics.max) == (2, None, 3)


def test_nothing_recorded_is_kept_alive() -> None:
    graph = ts.graph(small_loss())
    for level in ("off", "cheap", "full"):
        recorder = Recorder(graph, find_policy("heap"), level)
        gradient, output = torch.ones(2, 2), torch.ones(2, 2)
        alive = [weakref.ref(gradient), weakref.ref(output)]
        recorder.edit(3, [gradient], [output])
        recorder.start(3, [gradient])
        recorder.end([output, None])
        trace = recorder.trace()
        assert trace[0].inputs[0].meta.shape == (2, 2)
        del gradient, output
        gc.collect()
        assert all(ref() is None for ref in alive)


def test_a_trace_is_what_was_recorded_until_then(snapshot: Snapshots) -> None:
    graph = ts.graph(small_loss())
    recorder = Recorder(graph, find_policy("heap"))
    assert len(recorder.trace()) == 0 and list(recorder.trace()) == []
    recorder.arrive(4, "#4")
    recorder.start(4, [torch.tensor(1.0)])
    during = recorder.trace()
    recorder.end([torch.ones(2, 2)])
    recorder.arrive(3, "#3")
    recorder.start(3, [torch.ones(2, 2)])
    assert len(during) == 1 and during[0].elapsed_ns is None and during[0].queue_after == []
    assert len(recorder.trace()) == 2 and recorder.trace()[-2].elapsed_ns is not None
    assert during.of(4).place == 0 and during.of(3) is None
    with raises(IndexError, 1) as refused:
        during[1]
    snapshot("trace", refused.value)


def test_a_call_without_a_running_task_is_refused(snapshot: Snapshots) -> None:
    recorder = Recorder(ts.graph(small_loss()), find_policy("heap"))
    with raises(RuntimeError) as no_end:
        recorder.end([])
    with raises(RuntimeError, "pre", "f") as no_hook:
        recorder.hook("pre", "f")
    snapshot("trace", f"{no_end.value}\n{no_hook.value}")


def test_tasks_that_overlap_in_several_threads_keep_their_own_ends_and_hooks() -> None:
    graph = ts.graph(random_program(0)[1])
    recorder = Recorder(graph, find_policy("bfs"), "cheap")
    count, both_run = 2, threading.Barrier(2)
    failed: list[BaseException] = []

    def work(task_ids: list[int]) -> None:
        try:
            for task_id in task_ids:
                recorder.arrive(task_id, f"@{task_id}")
                recorder.start(task_id, [torch.full((), float(task_id))])
                both_run.wait(10)
                recorder.hook("pre", f"hook of {task_id}")
                recorder.end([torch.full((), -float(task_id))])
        except BaseException as error:
            failed.append(error)
            both_run.abort()

    tasks = [list(range(first, 40, count)) for first in range(count)]
    threads = [threading.Thread(target=work, args=(each,)) for each in tasks]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for record in recorder.trace():  # reads while they write
            assert record.inputs[0].statistics.max == record.task.id
    assert not failed
    trace = recorder.trace()
    assert sorted(trace.order) == list(range(40))
    for record in trace:
        task_id = record.task.id
        assert [hook.name for hook in record.hooks] == [f"hook of {task_id}"]
        assert (record.inputs[0].statistics.max, record.outputs[0].statistics.max) == (task_id, -task_id)
        assert record.thread == trace.of(task_id % count).thread
    assert {record.thread for record in trace} == {0, 1}


def test_records_and_traces_read_as_sentences(snapshot: Snapshots) -> None:
    trace, _ = play(ts.graph(small_loss()), "heap")
    says(repr(trace), "Trace", 7, "heap", "off")
    snapshot("trace", repr(trace))
    says(repr(trace[0]), "<Task 4 Sum>", "µs", trace[0].reason)


def test_statistics_on_an_accelerator_are_stacked_and_read_when_asked_for(
    accelerator: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics_table, "_MOST_PENDING", 50)
    leaf = torch.ones(3, device=accelerator, requires_grad=True)
    made = leaf
    for _ in range(60):
        made = made * 1.0
    run = ts.backward(made.sum(), trace="cheap", engine="direct")
    assert run.trace.table._stacked and run.trace.table._pending
    assert all(record.inputs[0].statistics.max == 1 for record in run.trace)
    assert run.trace[0].device == accelerator


def test_a_task_runs_on_its_first_accelerator_and_meta_is_none() -> None:
    def device(*names: str) -> str:
        metas = tuple(TensorMeta((1,), torch.float32, torch.device(name)) for name in names)
        return str(dataclasses.replace(graph.tasks[0], inputs=metas).device)

    graph = ts.graph(small_loss())
    assert device("cpu", "cuda:1", "cuda:0") == "cuda:1"
    assert device("cpu") == device("meta") == device("lazy") == device("meta", "cuda") == device() == "cpu"
    run = ts.backward(torch.ones(2, device="meta", requires_grad=True).exp().sum(), trace="off")
    assert all(record.device == torch.device("cpu") for record in run.trace)


OLDEST = ts.Policy("oldest", "by id", lambda task, arrival: (task.id,), dynamic=True)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(3))
def test_after_another_policy_was_set_the_queue_and_the_reasons_go_by_it(
    engine: str, seed: int, tmp_path: Path
) -> None:
    pick = random.Random(seed)
    session = ts.debug(random_program(seed)[1], policy="bfs", engine=engine)

    def ready() -> list[int]:
        return [entry.task.id for entry in session.ready]

    queues, policies = [], []
    while queue := ready():
        policy = session.policy
        if pick.random() < 0.3:
            session.policy = pick.choice([*POLICIES, last_ready, OLDEST])
            if engine == "direct":  # the native engine has taken its next task by now
                queue, policy = ready(), session.policy
        queues.append(queue)
        policies.append(policy)
        session.step()
    order = tuple(session.order)
    run = ts.Run(session.graph, session.policy, engine, order, order, 5, session.trace)
    assert len(session.trace.terms) > 1
    says(session.trace.policy, *(term.policy for term in session.trace.terms))
    for trace in (run.trace, ts.load(run.save(tmp_path / "run.json")).trace):
        for place in pick.sample(range(len(trace)), len(trace)):
            record, queue, policy = trace[place], queues[place], policies[place]
            shown = [task_id for task_id, _ in record.queue_before]
            assert sorted(shown) == sorted(queue) and (shown == queue or policy == "last_ready")
            if len(queue) == 1:
                assert record.choice == "only"
            else:
                assert record.choice == ("function" if policy == "last_ready" else "first")
                says(record.reason, len(queue), policy)

"""Whole steps of unchanged loops: the memory they hold, to the byte, and no side effects."""

from __future__ import annotations

import copy
import html
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.optim import LBFGS, SGD, Adam, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

import tapescope as ts
from tapescope.engine.training.step_memory import StepTimeline
from tapescope.inspector.text.sizes_and_counts import size_text
from tapescope.tests.says import Snapshots, raises, says, says_none_of

Loop = Callable[[nn.Module], Iterator[Any]]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)
    )


def loss_of(model: nn.Module, scale: float = 1.0) -> Tensor:
    return functional.cross_entropy(model(torch.randn(8, 16)), torch.randint(0, 4, (8,))) * scale


def adam(**options: Any) -> Loop:
    def loop(model: nn.Module) -> Iterator[Any]:
        optimizer = Adam(model.parameters(), **options)
        while True:
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
            yield [optimizer]

    return loop


def accumulation_and_clipping(model: nn.Module) -> Iterator[Any]:
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    while True:
        for _ in range(3):
            loss_of(model, 1 / 3).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield [optimizer]
        optimizer.zero_grad()


def lbfgs(model: nn.Module) -> Iterator[Any]:
    optimizer = LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    while True:
        optimizer.step(closure)
        yield [optimizer]


def gan(model: nn.Module) -> Iterator[Any]:
    critic = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    of_critic, of_model = Adam(critic.parameters()), Adam(model.parameters())
    while True:
        made = model(torch.randn(8, 16))
        of_critic.zero_grad()
        (critic(made.detach()).mean() - critic(torch.randn(8, 4)).mean()).backward()
        of_critic.step()
        of_model.zero_grad()
        (-critic(made).mean()).backward()
        of_model.step()
        yield [of_critic, of_model]


def scaled(model: nn.Module) -> Iterator[Any]:
    optimizer = Adam(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for number in range(99):
        optimizer.zero_grad()
        loss = loss_of(model) * (float("inf") if number == 1 else 1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        yield [optimizer]


LOOPS: dict[str, Loop] = {
    "adam, for-loop": adam(foreach=False),
    "adam, foreach": adam(foreach=True),
    "adam, fused": adam(fused=True),
    "momentum, accumulation, clipping": accumulation_and_clipping,
    "lbfgs": lbfgs,
    "gan": gan,
    "scaler": scaled,
}


def tensors_of(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(each)


def walked(optimizers: list[Optimizer]) -> dict[str, int]:
    """Return the optimizers' state and the .grads, each storage once."""
    parameters = [each for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]]
    sums = {}
    for kind, found in {
        "optimizer state": [each for optimizer in optimizers for each in tensors_of(dict(optimizer.state))],
        "gradients": [each.grad for each in parameters if each.grad is not None],
        "parameters": parameters,
    }.items():
        sums[kind] = sum(
            {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in found}.values()
        )
    return sums


def held_after_optimizer(timeline: StepTimeline) -> dict[str, int]:
    """Return the recorded memory at the moment after the step's last optimizer has stepped."""
    after = timeline.phases[-1]
    return timeline.parts_at(after.event if after.name == "between" else len(timeline.events))


@pytest.mark.parametrize("name", LOOPS)
def test_state_gradients_and_parameters_are_the_walked_sums_to_the_byte(name: str) -> None:
    loop = LOOPS[name](model())
    sums = []
    with ts.record_steps(steps=3) as steps:
        for optimizers in loop:
            sums.append(walked(optimizers))
            if len(sums) == 5:
                break
    assert len(steps) == 3
    for step, wanted in zip(steps, sums, strict=False):
        held = held_after_optimizer(step.timeline)
        assert {kind: held.get(kind, 0) for kind in wanted} == wanted


@pytest.mark.parametrize("name", LOOPS)
def test_a_profiled_step_holds_the_same(name: str) -> None:
    loop = LOOPS[name](model())
    held: list[dict[str, int]] = []
    step = ts.profile_step(lambda: held.append(walked(next(loop))))
    found = step.timeline.parts_at(len(step.timeline.events))
    assert {kind: found.get(kind, 0) for kind in held[step.number]} == held[step.number]


@pytest.mark.parametrize("name", LOOPS)
def test_training_is_bit_by_bit_as_without(name: str) -> None:
    def trained(recorded: bool) -> list[Tensor]:
        made = model()
        torch.manual_seed(1)
        loop = LOOPS[name](made)
        if recorded:
            with ts.record_steps(steps=2):
                for _ in range(4):
                    optimizers = next(loop)
        else:
            for _ in range(4):
                optimizers = next(loop)
        state = [each for optimizer in optimizers for each in tensors_of(dict(optimizer.state))]
        return [
            *made.state_dict().values(),
            *(each.grad for each in made.parameters() if each.grad is not None),
            *state,
        ]

    for one, other in zip(trained(True), trained(False), strict=True):
        assert torch.equal(one, other)


def in_place() -> list[Any]:
    """All that may be put in place for a recording."""
    hooks = nn.modules.module
    return [
        torch.autograd._engine_run_backward,
        torch.autograd.graph._engine_run_backward,
        torch.autograd.backward,
        torch.amp.GradScaler.__dict__["_maybe_opt_step"],
        torch.amp.GradScaler.__dict__["scale"],
        hooks._has_any_global_hook,
        *(list(getattr(hooks, name)) for name in dir(hooks) if name.startswith("_global_") and name.endswith("hooks")),
        list(_global_optimizer_pre_hooks),
        list(_global_optimizer_post_hooks),
        torch.autograd._profiler_enabled(),
    ]


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("after", [0, 1, 6])
def test_nothing_stays_in_place(error: type[BaseException] | None, after: int) -> None:
    before = in_place()
    loop = adam()(model())
    steps = ts.record_steps(steps=3)

    def run() -> None:
        with steps:
            for _ in range(after):
                next(loop)
            if error is not None:
                raise error

    with nullcontext() if error is None else pytest.raises(error):
        run()
    assert in_place() == before
    assert len(steps) == min(after, 3)


@pytest.mark.parametrize("where", ["forward", "backward", "optimizer"])
def test_an_error_inside_of_a_step_leaves_nothing_in_place(where: str) -> None:
    before = in_place()
    made = model()

    def fail(*given: object) -> None:
        raise ArithmeticError(where)

    optimizer = SGD(made.parameters(), 0.1)
    if where == "forward":
        made[2].register_forward_hook(fail)
    elif where == "backward":
        made[2].register_full_backward_hook(fail)
    else:
        optimizer.register_step_post_hook(fail)

    def run() -> None:
        with ts.record_steps():
            loss_of(made).backward()
            optimizer.step()

    with pytest.raises(ArithmeticError, match=where):
        run()
    assert in_place() == before


def test_the_loop_goes_on_unseen_when_the_steps_are_there() -> None:
    before = in_place()
    loop = adam()(model())
    with ts.record_steps(steps=2) as steps:
        for _ in range(4):
            next(loop)
        assert in_place() == before
        ts.profile(lambda: loss_of(model()))  # memory can be measured again
        next(loop)
    assert len(steps) == 2


def test_a_recording_is_true_while_its_block_is_open_and_where_there_are_steps() -> None:
    loop = adam()(model())
    steps = ts.record_steps(steps=2)
    assert not steps
    with steps:
        assert steps
        assert len(steps) == 0
        for _ in range(3):
            next(loop)
        assert steps
    assert steps
    with steps:
        pass
    assert not steps


def test_a_first_step_is_told_apart_and_later_ones_are_alike(snapshot: Snapshots) -> None:
    loop = adam(foreach=True)(model())
    with ts.record_steps(steps=3) as steps:
        for _ in range(5):
            next(loop)
    first, second, third = steps
    assert first.state_made == steps[1].timeline.parts_at(0)["optimizer state"]
    assert second.state_made == third.state_made == 0
    assert first.like_before is None
    assert second.like_before is False
    assert third.like_before is True
    (said,) = [each for each in first.sentences if ts.size_text(first.state_made) in each and "Adam" in each]
    assert said not in second.sentences
    snapshot("record_steps", said)


def test_a_model_that_is_gone_in_the_end_had_parameters_all_the_same() -> None:
    def train() -> tuple[int, int]:
        made = model()
        loop = adam()(made)
        next(loop), next(loop)
        return tuple(sum(each.nbytes for each in of()) for of in (made.parameters, made.buffers))

    with ts.record_steps(steps=2) as steps:
        parameters, buffers = train()
    parts = steps[1].timeline.parts_at(0)
    assert (parts["parameters"], parts["buffers"]) == (parameters, buffers)
    assert parts.get("batch", 0) < parameters / 2


def test_a_model_made_in_each_step_goes_with_it_also_where_the_step_is_followed() -> None:
    made: list[ref[nn.Module]] = []

    def step() -> None:
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
        made.append(ref(model))
        optimizer = SGD(model.parameters(), 0.1)
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()

    with ts.record_steps(3):
        for _ in range(4):
            step()
            assert made[-1]() is None


def test_temporaries_of_optimizers_are_those_of_their_kind() -> None:
    def taken(**options: Any) -> tuple[int, int]:
        made = model()
        loop = adam(**options)(made)
        step = ts.profile_step(lambda: next(loop))
        return step.timeline.temporaries_of("optimizer"), sum(each.nbytes for each in made.parameters())

    parameters = taken(foreach=True)[1]
    assert taken(fused=True)[0] < 100
    assert parameters <= taken(foreach=True)[0] < parameters + 100
    largest = max(each.nbytes for each in model().parameters())
    assert largest < taken(foreach=False)[0] <= 2 * largest + 200


def test_steps_that_a_scaler_leaves_out_are_said(snapshot: Snapshots) -> None:
    loop = scaled(model())
    with ts.record_steps(steps=3) as steps:
        for _ in range(5):
            next(loop)
    assert [step.skipped for step in steps] == [(), ("Adam",), ()]
    assert [step.optimizers for step in steps] == [("Adam",), (), ("Adam",)]
    _, said, _ = steps.sentences
    says(said, "Adam")
    says(steps, said)
    assert steps[1].sentences[2] in said
    snapshot("record_steps", said)


def test_two_optimizers_are_one_step() -> None:
    loop = gan(model())
    with ts.record_steps(steps=2) as steps:
        for _ in range(3):
            next(loop)
    assert [step.optimizers for step in steps] == [("Adam", "Adam")] * 2
    names = [phase.name for phase in steps[1].timeline.phases]
    assert names.count("backward") == 2
    assert names.count("optimizer") == 2


def test_accumulation_shows_gradients_beside_activations() -> None:
    made = model()
    loop = accumulation_and_clipping(made)
    step = ts.profile_step(lambda: next(loop))
    assert [phase.name for phase in step.timeline.phases].count("backward") == 3
    gradients = sum(each.nbytes for each in made.parameters())
    forward = next(each for each in step.phases if each.phase == "forward")
    assert forward.parts["gradients"] == gradients
    assert forward.parts["activations"] > 0


def test_a_closure_runs_its_forward_and_backward_inside_of_the_step() -> None:
    loop = lbfgs(model())
    step = ts.profile_step(lambda: next(loop))
    names = [phase.name for phase in step.timeline.phases]
    assert names[:5] == ["between", "optimizer", "forward", "backward", "after backward"]
    assert step.optimizers == ("LBFGS",)


def test_a_moving_average_of_the_parameters_changes_nothing() -> None:
    made = model()
    average = torch.optim.swa_utils.AveragedModel(made)
    optimizer = Adam(made.parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss_of(made).backward()
        optimizer.step()
        average.update_parameters(made)

    found = ts.profile_step(step)
    assert found.like_before
    assert found.timeline.parts_at(0)["parameters"] == sum(each.nbytes for each in made.parameters())


def test_a_loop_without_modules_has_a_forward_too() -> None:
    weight = torch.randn(64, 64, requires_grad=True)
    optimizer = SGD([weight], 0.01)
    with ts.record_steps(steps=2) as steps:
        for _ in range(3):
            optimizer.zero_grad()
            (torch.randn(8, 64) @ weight).tanh().sum().backward()
            optimizer.step()
    assert [phase.name for phase in steps[1].timeline.phases] == [
        "forward",
        "backward",
        "after backward",
        "optimizer",
        "between",
    ][: len(steps[1].timeline.phases)]
    assert steps[1].timeline.parts_at(0)["parameters"] == weight.nbytes


def test_levels_are_those_of_the_categories_and_of_the_blocks() -> None:
    loop = adam()(model())
    step = ts.profile_step(lambda: next(loop))
    timeline = step.timeline
    for event in range(len(timeline.events) + 1):
        assert timeline.levels[event] == sum(column[event] for column in timeline.category_levels.values())
    for event in (0, timeline.peak_event, len(timeline.events)):
        assert timeline.levels[event] == sum(timeline.parts_at(event).values())
        assert timeline.levels[event] == sum(timeline.nbytes[number] for number in timeline.alive(event))
    assert max(phase.nbytes for phase in step.phases) == step.peak_bytes == step.peak().nbytes
    assert sum(each["bytes"] for each in step.records() if each["at_peak"]) == step.peak_bytes


def test_the_peak_is_said_in_words(snapshot: Snapshots) -> None:
    loop = adam()(model())
    peak = ts.profile_step(lambda: next(loop)).peak()
    share = ts.share_text(peak.categories["optimizer state"], peak.nbytes)
    says(peak, share, "Adam")
    assert html.escape(peak.answer[0]) in peak._repr_html_()
    snapshot("profile_step", peak)


def test_notebooks_show_tables() -> None:
    loop = adam()(model())
    with ts.record_steps() as steps:
        for _ in range(3):
            next(loop)
    for shown in (steps, steps[1], steps[1].peak()):
        assert shown._repr_html_().count("<table>") == 1


@pytest.mark.parametrize("order", ["inside", "around"])
def test_policies_and_captures_go_on_working(order: str) -> None:
    made = model()
    optimizer = Adam(made.parameters())

    def step() -> None:
        optimizer.zero_grad()
        with ts.capture():
            loss = loss_of(made)
        loss.backward()
        optimizer.step()

    runs: list[ts.Run] = []
    outer, inner = ts.policy("bfs", on_run=runs.append), ts.record_steps(steps=2)
    contexts = (outer, inner) if order == "inside" else (inner, outer)
    with contexts[0], contexts[1]:
        for _ in range(3):
            step()
    assert len(runs) == 3
    assert len(inner) == 2
    assert torch.autograd._engine_run_backward.__module__ == "torch.autograd.graph"  # neither stands there any more
    names = [phase.name for phase in inner[1].timeline.phases]
    assert names == ["forward", "backward", "after backward", "optimizer", "between"]


def test_recordings_inside_of_each_other_are_refused_in_a_sentence(snapshot: Snapshots) -> None:
    before = in_place()
    with ts.record_steps() as steps:
        with raises(RuntimeError, "ts.record_steps") as recorded, ts.record_steps():
            pass
        with raises(RuntimeError, "ts.record_steps"):
            ts.profile_step(lambda: None)
        with raises(RuntimeError, "ts.record_steps") as profiled:
            ts.profile(lambda: loss_of(model()))
        with raises(RuntimeError, "ts.record_steps()") as again, steps:
            pass
        with raises(RuntimeError, "`with`", "ts.record_steps()") as early:
            steps[0]
    assert in_place() == before
    with torch.profiler.profile(), raises(RuntimeError, "torch") as with_profiler, ts.record_steps():
        pass
    for raised in (recorded, profiled, again, early, with_profiler):
        snapshot("record_steps", raised.value)
    assert in_place() == before


def test_windows_are_bounded() -> None:
    with raises(ValueError, "steps", 11, 2, 10, "1.9 kB"):
        ts.record_steps(steps=11)
    with raises(ValueError, "steps", 1, 2, 10):
        ts.record_steps(steps=1)


def test_what_is_no_step_is_refused(snapshot: Snapshots) -> None:
    with raises(ValueError, "optimizer.step()", "ts.profile(make_loss)") as raised:
        ts.profile_step(lambda: loss_of(model()).backward())
    snapshot("profile_step", raised.value)
    with ts.record_steps() as steps:
        loss_of(model()).backward()
    with raises(IndexError) as none:
        steps[0]
    snapshot("record_steps", none.value)


def test_models_on_other_devices_are_refused_before_anything_runs(snapshot: Snapshots) -> None:
    made = nn.Linear(3, 3, device="meta")
    with raises(NotImplementedError, "weight", "Linear", "meta") as raised, ts.record_steps():
        made(torch.ones(2, 3, device="meta"))
    snapshot("record_steps", raised.value)


def test_models_of_fake_tensors_are_refused_by_name(snapshot: Snapshots) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        made, x = nn.Linear(3, 3), torch.ones(2, 3)
    optimizer = torch.optim.SGD(made.parameters(), 0.1)

    def step() -> None:
        optimizer.zero_grad()
        made(x).sum().backward()
        optimizer.step()

    with raises(NotImplementedError, "weight", "Linear") as raised:
        ts.profile_step(step)
    snapshot("profile_step", raised.value)
    with raises(NotImplementedError, "weight", "Linear") as raised, ts.record_steps():
        step()
    snapshot("record_steps", raised.value)


def test_steps_of_other_threads_are_not_taken_for_ours() -> None:
    from threading import Thread

    loop, other = adam()(model()), adam()(copy.deepcopy(model()))
    with ts.record_steps(steps=2) as steps:
        for _ in range(3):
            thread = Thread(target=lambda: next(other))
            thread.start()
            thread.join()
            next(loop)
    assert [step.optimizers for step in steps] == [("Adam",), ("Adam",)]


def test_evaluation_between_steps_is_no_forward() -> None:
    made = model()
    loop = adam()(made)
    with ts.record_steps(steps=2) as steps:
        for _ in range(3):
            next(loop)
            with torch.no_grad():
                made(torch.randn(4, 16))
    assert [phase.name for phase in steps[1].timeline.phases].count("forward") == 1


def test_a_whole_step_given_to_profile_is_told_what_measures_it() -> None:
    made = model()
    optimizer = Adam(made.parameters())

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(made)
        loss.backward()
        optimizer.step()
        return loss

    for engine in ("native", "direct"):
        with raises(RuntimeError, "make_loss()", ".backward()", "ts.profile_step(step)"):
            ts.profile(step, engine=engine)
    hidden = loss_of(made)
    hidden.backward()
    with raises(RuntimeError, "retain_graph=True"):
        ts.profile(lambda: loss_of(made) + hidden)


def test_compare_says_what_the_whole_step_has_under_each_policy(snapshot: Snapshots) -> None:
    made = model()
    optimizer = Adam(made.parameters(), fused=True)
    inputs, targets = torch.randn(8, 16), torch.randint(0, 4, (8,))

    def forward() -> Tensor:
        return functional.cross_entropy(made(inputs), targets)

    def train() -> None:
        optimizer.zero_grad()
        forward().backward()
        optimizer.step()

    step = ts.profile_step(train)
    optimizer.zero_grad()
    found = ts.compare(forward, ["bfs", "heap"], repetitions=1, step=step)
    assert found.step_bytes("heap") == step.peak_bytes
    assert found.step_bytes("bfs") - found.step_bytes("heap") == found["bfs"].peak_bytes - found["heap"].peak_bytes
    bare = ts.compare(forward, ["bfs", "heap"], repetitions=1)
    (heading,) = [each for each in found.cells[0] if each not in bare.cells[0]]
    says(found, ts.size_text(step.beside_backward[0]))
    assert not any(row.dry_run_estimates or row.predicted.estimates for row in found.rows if row.predicted is not None)
    assert found.records()[0]["step_peak_bytes"] == found.step_bytes("bfs")
    assert heading in found._repr_html_()
    with raises(ValueError, "step=") as raised:
        bare.step_bytes("heap")
    snapshot("compare", raised.value)


@pytest.mark.parametrize("name", LOOPS)
def test_the_followed_backward_has_the_steps_memory(name: str) -> None:
    loop = LOOPS[name](model())
    step = ts.profile_step(lambda: next(loop))
    timeline = step.run.timeline
    assert timeline is not None
    assert list(timeline.levels[step.timeline.before :]) == list(step.timeline.levels)
    assert sorted(step.run.order) == list(range(len(step.run.graph)))
    assert sum(map(max, zip(*timeline.category_levels.values(), strict=True)), 0) > 0
    assert step.run.peak().answer


def test_where_no_step_was_seen_a_sentence_says_so_and_no_heading_stands_above_nothing(snapshot: Snapshots) -> None:
    with ts.record_steps() as steps:
        nn.Linear(2, 1)(torch.ones(1, 2)).sum().backward()
    says(steps, "optimizer.step()")
    snapshot("record_steps", steps)


def flat_gradients(model: nn.Module) -> Iterator[Any]:
    """Like Megatron: .grad is a view of one buffer while the optimizer steps, and None otherwise."""
    parameters = [*model.parameters()]
    flat, optimizer = torch.zeros(sum(each.numel() for each in parameters)), SGD(parameters, 0.1)
    while True:
        loss_of(model).backward()
        for parameter, view in zip(parameters, flat.split([each.numel() for each in parameters]), strict=True):
            parameter.grad = view.view_as(parameter).add_(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        yield {"gradients": [flat]}


def moved_parameters(model: nn.Module) -> Iterator[Any]:
    """Like sharpness-aware minimisation: .data is another block after each step."""
    optimizer = SGD(model.parameters(), 0.1)
    while True:
        loss_of(model).backward()
        before = [each.detach().clone() for each in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        for parameter, other in zip(model.parameters(), before, strict=True):
            parameter.data = other
        before.clear()
        yield {"parameters": [*model.parameters()]}


def replaced_state(model: nn.Module) -> Iterator[Any]:
    optimizer = Adam(model.parameters())
    while True:
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        yield {"optimizer state": [value for state in optimizer.state.values() for value in state.values()]}


@pytest.mark.parametrize("loop", [flat_gradients, moved_parameters, replaced_state])
def test_what_is_older_than_the_recording_counts_as_long_as_its_storage_lives(
    loop: Callable[[nn.Module], Iterator[dict[str, list[Tensor]]]], snapshot: Snapshots
) -> None:
    steps_of_loop = loop(model())
    for _ in range(2):
        next(steps_of_loop)
    with ts.record_steps(4) as steps:
        for _ in range(5):
            held = next(steps_of_loop)
    for kind, tensors in held.items():
        bytes_held = sum(each.nbytes for each in tensors)
        for step in steps:
            for event in 0, len(step.timeline.events):
                assert step.timeline.parts_at(event)[kind] == bytes_held
    assert len({step.peak_bytes for step in steps}) == 1
    (said,) = {step.sentences[-1] for step in steps}
    if loop is flat_gradients:
        snapshot("record_steps", said)


def test_a_recording_keeps_no_optimizer_alive() -> None:
    seen = []
    with ts.record_steps(4):
        for _ in range(3):
            net = model()
            optimizer = SGD(net.parameters(), 0.1)
            seen.append(ref(optimizer))
            loss_of(net).backward()
            optimizer.step()
            del optimizer
            assert [each() for each in seen] == [None] * len(seen)


@pytest.mark.filterwarnings("ignore:ts.training:UserWarning")
@pytest.mark.parametrize("verb", ["record_steps", "memory=True", "profile"])
def test_what_a_watched_loop_takes_for_itself_is_not_the_programs(verb: str) -> None:
    def found(watched: bool) -> list[int]:
        net = model()
        optimizer = Adam(net.parameters())
        with ts.training(net, optimizer, every=1) if watched else nullcontext():
            if verb == "profile":
                return list(ts.profile(lambda: loss_of(net)).timeline.levels)
            if verb == "memory=True":
                return list(ts.backward(loss_of(net), memory=True).timeline.levels)
            with ts.record_steps(3) as steps:
                for _ in range(4):
                    optimizer.zero_grad()
                    loss_of(net).backward()
                    optimizer.step()
            return [phase.nbytes for step in steps for phase in step.phases]

    assert found(True) == found(False)


def test_a_step_under_a_policy_says_at_once_that_it_has_no_page(snapshot: Snapshots) -> None:
    net = model()
    optimizer = SGD(net.parameters(), 0.1)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(net).backward()
        optimizer.step()

    with ts.policy("dfs"):
        under_policy = ts.profile_step(step)
    (said,) = [each for each in under_policy.sentences if "ts.policy" in each]
    snapshot("profile_step", said)
    says_none_of(ts.profile_step(step), "ts.policy")


def test_a_loop_without_an_optimizer_ends_its_steps_itself() -> None:
    model = nn.Linear(64, 64)

    def update(parameter: nn.Parameter) -> None:
        parameter.data.sub_(parameter.grad, alpha=0.1)
        parameter.grad = None

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(update)
    for count, recorded in ((2, 2), (5, 3)):
        with ts.record_steps(steps=3) as steps:
            for _ in range(count):
                model(torch.randn(128, 64)).square().mean().backward()
                steps.step()
        assert len(steps) == recorded
        assert len({step.peak_bytes for step in steps}) == 1
    with pytest.raises(RuntimeError, match="with"):
        steps.step()


@pytest.mark.parametrize("is_early", [False, True])
def test_gradients_of_the_step_before_that_stay_alive_through_the_forward_are_said(is_early: bool) -> None:
    model, x = nn.Linear(512, 512), torch.randn(64, 512)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ts.record_steps(steps=3) as steps:
        for _ in range(4):
            if is_early:
                optimizer.zero_grad()
            loss = model(x).square().mean()
            if not is_early:
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    nbytes = sum(each.nbytes for each in model.parameters())
    facts = (size_text(nbytes), "zero_grad(set_to_none=True)", "before the forward")
    if is_early:
        says_none_of(steps[1], *facts[1:])
    else:
        says(steps[1], *facts)

"""Each hint on a program that has its fact, and on the same program without it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import tapescope as ts
from tapescope.engine.memory.categories import Category
from tapescope.engine.recording.peak_facts import Hint, HintKind
from tapescope.engine.recording.peak_report import peak_report
from tapescope.engine.studies.workloads import WORKLOADS, workload
from tapescope.inspector.text.sizes_and_counts import share_text, size_text
from tapescope.tests.says import Snapshots, says, says_none_of

from ..backward_programs import OnCtx
from ..sizes import LARGEST_SLOW, SMALLER


def hints(make_loss: Callable[[], Tensor], policy: str = "heap", **others: int) -> tuple[Hint, ...]:
    timeline = ts.profile(make_loss, policy).timeline
    assert timeline is not None
    return peak_report(timeline, others).hints


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()


def only(found: tuple[Hint, ...], kind: HintKind, *facts: object) -> Hint:
    """The only hint of this kind, whose fact says these."""
    (hint,) = [hint for hint in found if hint.kind == kind]
    says(hint.fact, *facts)
    return hint


def kinds(found: tuple[Hint, ...]) -> set[HintKind]:
    return {hint.kind for hint in found}


@pytest.mark.parametrize(
    ("name", "pick"),
    [
        ("SelectBackward0", lambda x: x[3]),
        ("SliceBackward0", lambda x: x[3:5]),
        ("IndexBackward0", lambda x: x[torch.tensor([1, 5])]),
        ("GatherBackward0", lambda x: x.gather(0, torch.zeros(1, 100, dtype=torch.int64))),
        ("IndexSelectBackward0", lambda x: x.index_select(0, torch.tensor([1]))),
    ],
)
def test_a_gradient_filled_with_zeros_for_an_index(
    name: str, pick: Callable[[Tensor], Tensor], snapshot: Snapshots
) -> None:
    x = leaf(100, 100)
    hint = only(hints(lambda: pick(x * 2).exp().sum()), "indexing", name)
    assert hint.nbytes == 100 * 100 * 4
    if name == "SelectBackward0":
        snapshot("peak", hint)
    assert hints(lambda: (x * 2).exp().sum()) == ()


def test_an_index_that_takes_all_is_none_of_it() -> None:
    x = leaf(100, 100)
    assert hints(lambda: (x * 2)[0:100].exp().sum()) == ()


def test_the_advice_on_one_slice_is_not_that_on_many(snapshot: Snapshots) -> None:
    x = leaf(100, 100)
    one = only(hints(lambda: (x * 2)[3:5, 20:].exp().sum()), "indexing", "SliceBackward0")
    says_none_of(one.advice, "split", "chunk")

    def make_loss() -> Tensor:
        hidden = x * 2
        return sum((hidden[at : at + 5].exp().sum() for at in range(0, 100, 5)), torch.zeros(()))

    many = only(hints(make_loss), "indexing", "SliceBackward0")
    says(many.advice, "split", "chunk")
    assert one.advice != many.advice
    snapshot("peak", f"{one}\n{many}")


def test_a_sum_into_a_picked_gradient_is_not_taken_for_it() -> None:
    table = leaf(500, 64)
    found = hints(lambda: (table[torch.tensor([1, 2])] @ table.t()).exp().sum())
    assert only(found, "indexing", "IndexBackward0").nbytes == 500 * 64 * 4


def test_a_sparse_gradient_is_advised_only_where_all_of_the_gradient_would_be_sparse(
    snapshot: Snapshots,
) -> None:
    table, used = leaf(500, 64), torch.tensor([1, 2])
    hint = only(hints(lambda: functional.embedding(used, table).exp().sum()), "indexing", "EmbeddingBackward0")
    says(hint.advice, "Embedding(sparse=True)", "SparseAdam", "Adam", "AdamW")
    snapshot("peak", hint)
    twice = hints(lambda: functional.embedding(used, table).exp().sum() + functional.embedding(used, table).sum())
    says_none_of(hint.fact, 1)
    snapshot("peak", only(twice, "indexing", "EmbeddingBackward0", 1).fact)  # and 1 more
    tied = hints(lambda: (functional.embedding(used, table) @ table.t()).exp().sum())
    computed = hints(lambda: functional.embedding(used, table * 2).exp().sum())
    assert not any("Embedding" in str(hint) for hint in (*tied, *computed))


def test_how_much_of_a_picked_gradient_is_zero_is_measured_where_there_are_statistics(
    snapshot: Snapshots,
) -> None:
    x = leaf(100, 100)

    def make_loss() -> Tensor:
        return (x * 2)[3].exp().sum()

    found = ts.profile(make_loss, trace="cheap").peak().hints
    snapshot("peak", only(found, "indexing", "SelectBackward0", "99 %").fact)
    says_none_of(only(hints(make_loss), "indexing", "SelectBackward0").fact, "%")


def test_float64_where_no_parameter_is(snapshot: Snapshots) -> None:
    x = leaf(1000)
    hint = only(
        hints(lambda: (x.exp().double().exp() * 2).float().exp().sum()), "float64", "float32", "ToCopyBackward0"
    )
    snapshot("peak", hint)
    assert hint.nbytes // 8000 >= 2  # the saved exp of 1000 doubles, and a gradient
    assert hints(lambda: (x.exp().exp() * 2).float().exp().sum()) == ()
    double = x.detach().double().requires_grad_()
    assert "float64" not in kinds(hints(lambda: (double.exp() * 2).exp().sum()))


@pytest.mark.parametrize(
    ("name", "upcast"),
    [
        ("MulBackward0", lambda h: h * torch.ones(1000, dtype=torch.float64)),
        ("AddBackward0", lambda h: h + torch.from_numpy(numpy.ones(1000))),
        ("CatBackward0", lambda h: torch.cat([h, torch.zeros(1, dtype=torch.float64)])),
    ],
)
def test_float64_that_comes_of_another_operand(
    name: str, upcast: Callable[[Tensor], Tensor], snapshot: Snapshots
) -> None:
    x = leaf(1000)
    line = upcast.__code__.co_firstlineno
    hint = only(hints(lambda: upcast(x.exp()).exp().sum()), "float64")
    says(hint.fact, name, f"test_peak_hints.py:{line}", "float32", size_text(hint.nbytes // 2))
    says(hint.advice, "dtype=torch.float32", "torch.from_numpy")
    assert "float64" not in kinds(hints(lambda: (x.exp() * numpy.float64(3)).exp().sum()))
    if name == "MulBackward0":
        snapshot("peak", hint)


def test_float64_that_comes_of_one_parameter_among_others(snapshot: Snapshots) -> None:
    class Shifted(nn.Module):
        def __init__(self, dtype: torch.dtype) -> None:
            super().__init__()
            self.weight, self.scale = nn.Parameter(leaf(1000)), nn.Parameter(leaf(1000))
            self.shift = nn.Parameter(torch.zeros(1000, dtype=dtype))

        def forward(self) -> Tensor:
            return (self.weight * self.scale + self.shift).exp().sum()

    model = Shifted(torch.float64)
    hint = only(hints(model), "float64", "shift")
    says(hint.advice, "shift", "float32")
    snapshot("peak", hint)
    assert "float64" not in kinds(hints(Shifted(torch.float32)))


def test_a_gradient_that_retain_grad_holds(snapshot: Snapshots) -> None:
    x = leaf(1000)
    kept = []

    def make_loss(retain: bool) -> Tensor:
        later = x.repeat(8) * 2  # its backward comes last, and makes the peak
        hidden = x * 2
        if retain:
            hidden.retain_grad()
            kept.append(hidden)
        return hidden.exp().sum() + later.sum()

    hint = only(hints(lambda: make_loss(True)), "held by hook", "retain_grad()")
    assert hint.nbytes == 4000
    line = make_loss.__code__.co_firstlineno + 4
    says(hint.fact, f"test_peak_hints.py:{line}")
    snapshot("peak", hint)
    assert "held by hook" not in kinds(hints(lambda: make_loss(False)))


def test_a_gradient_that_a_hook_keeps(snapshot: Snapshots) -> None:
    x = leaf(1000)
    kept: list[Tensor] = []

    def make_loss() -> Tensor:
        later = x.repeat(8) * 2
        hidden = x * 2
        hidden.register_hook(kept.append)
        return hidden.exp().sum() + later.sum()

    hint = only(hints(make_loss), "held by hook")
    assert hint.nbytes == 4000
    says(hint.fact, "`list.append`", f"test_peak_hints.py:{make_loss.__code__.co_firstlineno + 3}")
    snapshot("peak", hint)


def test_gradients_of_leaves_and_modules_that_hooks_keep(snapshot: Snapshots) -> None:
    kept: list[object] = []

    def keep(*gradients: object) -> None:
        kept.append(gradients)

    def copied(leaf: Tensor) -> None:
        assert leaf.grad is not None
        kept.append(leaf.grad.clone())

    layer, x = nn.Linear(100, 100, bias=False), leaf(10, 100)
    handle = layer.register_full_backward_hook(keep)
    model = nn.Sequential(layer)
    hint = only(hints(lambda: model(x).exp().sum()), "held by hook", "module 0")
    snapshot("peak", hint)
    handle.remove()
    handle = layer.weight.register_post_accumulate_grad_hook(copied)
    hint = only(hints(lambda: model(x).exp().sum()), "held by hook", "copied")
    says(hint.fact, f"test_peak_hints.py:{copied.__code__.co_firstlineno}")
    snapshot("peak", hint)
    handle.remove()


@pytest.mark.parametrize("name", LARGEST_SLOW)
def test_no_ready_model_is_told_of_what_it_does_not_do(name: str) -> None:
    smaller = SMALLER | {"cyclegan": {"blocks": 1, "channels": 4}, "lstm_cell": {"steps": 10}}
    _, make_loss = WORKLOADS[name].build(**smaller.get(name, {}))
    picked = hints(make_loss)
    assert kinds(picked).isdisjoint({"float64", "held by hook", "held output", "held on ctx"})
    # CycleGAN's loss is one: the losses of both discriminators and of both directions share only parameters.
    assert ("sum of parts" in kinds(picked)) == (name == "cyclegan")
    for hint in ts.profile(make_loss, trace="cheap").peak().hints if picked else ():
        if hint.kind == "sum of parts":
            continue
        zeros = re.search(r"(\d+) %", hint.fact)
        assert zeros and int(zeros[1]) >= 75, hint


def test_an_output_that_the_user_still_holds(snapshot: Snapshots) -> None:
    x = leaf(1000)
    kept = []

    def make_loss(keep: bool) -> Tensor:
        hidden = x * 2
        shifted = hidden + 1  # nothing saves it
        if keep:
            kept.append(shifted)
        return (shifted.sum() * hidden.exp()).sum()

    hint = only(hints(lambda: make_loss(True)), "held output", "add")
    assert hint.nbytes == 4000
    says(hint.fact, f"test_peak_hints.py:{make_loss.__code__.co_firstlineno + 2}")
    snapshot("peak", hint)
    assert "held output" not in kinds(hints(lambda: make_loss(False)))


def test_a_copy_that_is_saved_beside_its_original(snapshot: Snapshots) -> None:
    x, weight = leaf(50, 40), leaf(50, 50)

    def make_loss(copy: bool) -> Tensor:
        hidden = x.tanh().t()  # tanh saves its result
        return ((hidden.contiguous() if copy else hidden) @ weight).exp().sum()

    hint = only(hints(lambda: make_loss(True)), "copy", "CloneBackward0")
    assert hint.nbytes == 50 * 40 * 4
    snapshot("peak", hint)
    assert "copy" not in kinds(hints(lambda: make_loss(False)))


def test_a_copy_of_what_nobody_saves_is_none_of_it() -> None:
    x, weight = leaf(50, 40), leaf(50, 50)
    found = hints(lambda: ((x + 1).t().contiguous() @ weight).exp().sum())
    assert "copy" not in kinds(found)


@pytest.mark.parametrize("saver", ["Gelu", "Mul", "Mm"])
def test_a_copy_is_told_from_any_node_that_saves_its_original(saver: str) -> None:
    x, weight, row = leaf(50, 50), leaf(50, 50), leaf(1, 50)
    users = {
        "Gelu": functional.gelu,
        "Mul": lambda hidden: weight.detach() * hidden * hidden,
        "Mm": lambda hidden: row @ hidden,
    }

    def make_loss() -> Tensor:
        hidden = x + 1
        return users[saver](hidden.view(50, 50)).sum() + (hidden.t().contiguous() @ weight).exp().sum()

    assert only(hints(make_loss), "copy").nbytes == 50 * 50 * 4


class Attention(nn.Module):
    """The copy that matmul makes of v is as large as the copy of its result that reshape makes, but not a part of
    it."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x: Tensor) -> Tensor:
        batch, count, width = x.shape
        *parts, last = self.parts
        query, key, value = (part(x).view(batch, count, 4, 16).transpose(1, 2) for part in parts)
        attention = (query @ key.transpose(-1, -2)).softmax(-1)
        return self.mlp(last((attention @ value).transpose(1, 2).reshape(batch, count, width)))


def test_a_copy_of_as_many_bytes_as_something_else_that_is_saved_is_none_of_it() -> None:
    model, x = Attention(), torch.randn(8, 32, 64)
    assert "copy" not in kinds(hints(lambda: model(x).square().sum()))


class Squares(OnCtx):
    pass


class SavedSquares(Squares):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x * 2)
        return x.square().sum()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


def test_what_is_on_ctx_when_its_task_has_run_is_the_nodes_and_not_the_users(snapshot: Snapshots) -> None:
    x = leaf(1000)
    found = hints(lambda: Squares.apply(x.repeat(8)))
    hint = only(found, "held on ctx", "SquaresBackward")
    assert hint.nbytes == 32_000
    says(hint.advice, "ctx.save_for_backward")
    snapshot("peak", hint)
    assert "held output" not in kinds(found)
    assert "held on ctx" not in kinds(hints(lambda: SavedSquares.apply(x.repeat(8))))


def test_gradients_that_wait_because_of_the_order(snapshot: Snapshots) -> None:
    _, make_loss = workload("linear50").build()
    hint = only(hints(make_loss, "bfs", heap=3_145_732), "order", 48, "TBackward0", "linear")
    assert hint.nbytes == 48 * 2**20, "the 49th task is running"
    says(hint.advice, "heap", "3.0 MiB")
    snapshot("peak", hint)
    assert "order" not in kinds(hints(make_loss, "heap"))


def test_a_policy_is_named_only_if_it_is_known_to_need_less(snapshot: Snapshots) -> None:
    _, make_loss = workload("linear50").build()
    hint = only(hints(make_loss, "bfs"), "order", 48)
    says_none_of(hint, "heap", "dfs")
    says(hint.advice, "ts.compare")
    snapshot("peak", hint.advice)
    assert "order" not in kinds(hints(make_loss, "bfs", slow=60_000_000))


def test_gradients_that_wait_for_one_task_which_is_not_ready_wait_for_no_order() -> None:
    x = leaf(32, 1000)
    found = hints(lambda: torch.stack([row.exp().sum() for row in x.unbind(0)]).sum())
    assert "order" not in kinds(found)


def test_a_small_thing_is_not_worth_a_sentence() -> None:
    x, large = leaf(4, 4), nn.Parameter(leaf(1000, 100).detach())
    assert hints(lambda: (x * 2)[0].exp().sum() + large.exp().sum()) == ()


def test_sizes_are_written_as_people_read_them() -> None:
    sizes = {0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 262144: "256 KiB", 2**20 - 1: "1.0 MiB"}
    sizes |= {51 * 2**20: "51.0 MiB", 3 * 2**30 // 2: "1.5 GiB", -20480: "-20 KiB", 2**50: "1024.0 TiB"}
    assert {nbytes: size_text(nbytes) for nbytes in sizes} == sizes
    assert [share_text(part, 1000) for part in (0, 1, 9, 11, 520, 1000)] == [
        *("0 %", "under 1 %", "under 1 %", "1 %", "52 %", "100 %")
    ]


class OwnBackward(torch.autograd.Function):
    """Computes again in the backward, and runs a backward there."""

    @staticmethod
    def forward(ctx: Any, layer: nn.Module, x: Tensor) -> Tensor:
        ctx.layer, ctx.x = layer, x.detach()
        with torch.no_grad():
            found: Tensor = layer(x)
            return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor | None]:
        with torch.enable_grad():
            x = ctx.x.requires_grad_()
            ctx.layer(x).backward(gradient)
        return None, x.grad


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_a_grad_that_is_written_inside_of_a_task_is_held_by_no_hook(own: bool, again: bool) -> None:
    layers, x = nn.ModuleList(nn.Linear(100, 100) for _ in range(3)), leaf(4, 100)

    def make_loss() -> Tensor:
        h = x * 1
        for layer in layers:
            h = OwnBackward.apply(layer, h) if own else checkpoint(layer, h, use_reentrant=True)
        return h.square().sum()

    for _ in range(1 + again):
        found = hints(make_loss)
    assert "held by hook" not in kinds(found)
    x.grad = None
    timeline = ts.profile(make_loss).timeline
    assert timeline is not None
    for group in peak_report(timeline).groups:
        if group.category is Category.HELD:
            says(group.kept_by, ".grad")


def test_what_an_optimizer_keeps_that_steps_in_a_hook_is_no_gradient(snapshot: Snapshots) -> None:
    layer, x = nn.Linear(200, 200), leaf(4, 200)
    optimizer = torch.optim.Adam(layer.parameters())

    def step(parameter: Tensor) -> None:
        optimizer.step()
        parameter.grad = None

    handle = layer.weight.register_post_accumulate_grad_hook(step)
    hint = only(hints(lambda: layer(x).square().sum()), "held by hook", "AccumulateGrad")
    says_none_of(hint.fact, "AddmmBackward0")
    snapshot("peak", hint)
    handle.remove()

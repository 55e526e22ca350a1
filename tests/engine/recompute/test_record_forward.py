"""Recording a forward: it sees what ran, and leaves nothing behind."""

from __future__ import annotations

from itertools import count
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from tapescope.engine.recompute.record_forward import record_forward
from tapescope.inspector.capture.build_graph import graph
from tapescope.inspector.capture.forward_program import WHOLE
from tapescope.inspector.torch_private.tensors import storage_of
from tapescope.tests.says import Snapshots, says


class Model(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(4, 1))


def test_operations_have_modules_lines_and_what_they_made() -> None:
    model = Model()
    program = record_forward(lambda: model(torch.ones(8, 4)).sum(), 1)
    norm = next(each for each in program.operations if each.name == "aten.native_batch_norm.default")
    assert norm.module == "1" and norm.source is not None and norm.source.file == __file__
    assert [output for _, output in norm.makes] == [0, 1, 2]
    relu = next(each for each in program.operations if each.name == "aten.relu_.default")
    assert relu.writes == (norm.makes[0][0],) and not relu.makes
    first = next(each for each in program.operations if each.name == "aten.addmm.default")
    assert [output for _, output in first.makes] == [WHOLE]
    assert [program.storages[each.storage].made_by is None for each in first.reads] == [True, False, True]
    assert program.graph.nodes == () and len(program.graph) == len(graph(model(torch.ones(8, 4)).sum()))


def test_what_nodes_save_is_what_is_saved_without_a_recording() -> None:
    model = Model()

    def make_loss() -> Tensor:
        x = model(torch.ones(8, 4))
        return (x * torch.cat([x, x.exp()])[8:]).sum()

    program = record_forward(make_loss, 1)
    recorded = [set(each.saved_by) for each in program.storages if each.saved_by]
    plain: dict[int | None, set[tuple[int, str]]] = {}
    for saved in graph(make_loss()).saved:
        plain.setdefault(saved.storage, set()).add((saved.task, saved.slot))
    assert len(plain) > 8
    assert sorted(map(sorted, recorded)) == sorted(map(sorted, plain.values()))


def test_statistics_and_random_numbers_are_as_before() -> None:
    model = Model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    record_forward(lambda: model(torch.randn(8, 4)).sum(), 2)
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_forward_that_raises_leaves_nothing_behind() -> None:
    model = Model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    calls = Mock()  # a count in a list would be put back

    def fails(times: int) -> Tensor:
        calls()
        y = model(torch.randn(8, 4))
        if calls.call_count > times:
            raise KeyError("mine")
        return y.sum()

    for times in range(4):
        calls.reset_mock()
        with pytest.raises(KeyError, match="mine"):
            record_forward(lambda times=times: fails(times), 2)
        assert not _get_current_dispatch_mode_stack()
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        node = model[0].weight.exp().grad_fn
        assert node is not None and node._raw_saved_result.unpack_hook is None


def test_it_keeps_no_tensor() -> None:
    kept: list[int] = []

    def make_loss() -> Tensor:
        y = torch.ones(3, requires_grad=True).exp()
        found = storage_of(y)
        assert found is not None
        kept.append(found.address)
        return y.sum()

    program = record_forward(make_loss, 1)
    made = [each for each in program.storages if each.made_by is not None]
    assert made and not any(isinstance(getattr(each, name), Tensor) for each in made for name in each.__slots__)


def test_a_forward_that_changes_is_said_to(snapshot: Snapshots) -> None:
    weight = torch.ones(3, requires_grad=True)
    calls = count(1)

    with pytest.warns(UserWarning, match="`calls`") as warned:
        program = record_forward(lambda: (weight.exp() if next(calls) == 2 else weight.sin()).sum(), 2)
    (said,) = [str(each.message) for each in warned if "`calls`" in str(each.message)]
    says(said, "count")
    snapshot("record_forward", said)
    (note,) = program.notes
    snapshot("record_forward", note)
    assert all(each.seconds > 0 for each in program.operations)


@pytest.mark.parametrize(
    ("wrong", "error"), [(3, TypeError), (lambda: 3, TypeError), (lambda: torch.ones(2), ValueError)]
)
def test_what_is_no_forward_is_refused(wrong: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="make"):
        record_forward(wrong)  # type: ignore[arg-type]


def test_repetitions_are_from_one_on() -> None:
    with pytest.raises(ValueError, match="repetitions .* at least 1, got 0"):
        record_forward(lambda: torch.ones(1, requires_grad=True).sum(), 0)

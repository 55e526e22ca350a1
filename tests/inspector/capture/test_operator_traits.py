"""What operators do besides giving a result."""

from __future__ import annotations

import torch

from tapescope.inspector.capture.operator_traits import (
    is_opaque,
    is_random,
    leaves_empty,
    may_write,
    moves_storage,
    replayed_arguments,
    written_by,
)

aten = torch.ops.aten


def test_what_a_call_writes_into() -> None:
    x, y, out = torch.ones(2), torch.ones(2), torch.ones(2)
    assert written_by(aten.add_.Tensor, (x, y), {})[0] is x
    assert written_by(aten.add.out, (x, y), {"out": out})[0] is out
    assert [each is x for each in written_by(aten._foreach_add_.Scalar, ([x, y], 1.0), {})] == [True, False]
    assert written_by(aten.add.Tensor, (x, y), {}) == [] and not may_write(aten.add.Tensor)


def test_a_batch_norm_in_training_writes_its_statistics_and_is_replayed_without() -> None:
    mean, variance, x = torch.zeros(3), torch.ones(3), torch.randn(4, 3)
    args = (x, None, None, mean, variance, True, 0.1, 1e-5)
    operator = aten.native_batch_norm.default
    assert may_write(operator)
    assert [each is known for each, known in zip(written_by(operator, args, {}), (mean, variance), strict=True)] == [
        True
    ] * 2
    before = mean.clone()
    again = operator(*replayed_arguments(operator, args))
    assert torch.equal(mean, before)
    for one, other in zip(operator(*args), again, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(mean, before)
    in_eval = (*args[:5], False, *args[6:])
    assert written_by(operator, in_eval, {}) == [] and replayed_arguments(operator, in_eval) is in_eval


def test_kinds_of_operators() -> None:
    assert is_random(aten.bernoulli_.float) and not is_random(aten.mul.Tensor)
    assert leaves_empty(aten.empty_like.default) and not leaves_empty(aten.zeros.default)
    assert moves_storage(aten.resize_.default) and not moves_storage(aten.mul_.Tensor)
    assert is_opaque(aten.mkldnn_rnn_layer.default) and not is_opaque(aten.mm.default)

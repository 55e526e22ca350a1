"""Side effects of operators."""

from __future__ import annotations

import torch

from tapescope.inspector.capture.operator_traits import (
    replayed_arguments,
    traits_of,
    written_by,
)

aten = torch.ops.aten


def test_what_a_call_writes_into() -> None:
    x, y, out = torch.ones(2), torch.ones(2), torch.ones(2)
    assert written_by(aten.add_.Tensor, (x, y), {})[0] is x
    assert written_by(aten.add.out, (x, y), {"out": out})[0] is out
    assert [each is x for each in written_by(aten._foreach_add_.Scalar, ([x, y], 1.0), {})] == [True, False]
    assert written_by(aten.add.Tensor, (x, y), {}) == [] and not traits_of(aten.add.Tensor).may_write


def test_a_batch_norm_in_training_writes_its_statistics_and_is_replayed_without() -> None:
    mean, variance, x = torch.zeros(3), torch.ones(3), torch.randn(4, 3)
    args = (x, None, None, mean, variance, True, 0.1, 1e-5)
    operator = aten.native_batch_norm.default
    assert traits_of(operator).may_write
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
    assert traits_of(aten.bernoulli_.float).is_random and not traits_of(aten.mul.Tensor).is_random
    assert traits_of(aten.empty_like.default).leaves_empty and not traits_of(aten.zeros.default).leaves_empty
    assert traits_of(aten.resize_.default).moves_storage and not traits_of(aten.mul_.Tensor).moves_storage
    assert traits_of(aten.mkldnn_rnn_layer.default).is_opaque and not traits_of(aten.mm.default).is_opaque

"""Warnings point at the user's line, however deep inside tapescope they are given."""

from __future__ import annotations

import warnings

import pytest
import torch

import tapescope as ts


def test_an_anomaly_is_told_at_the_line_that_runs_the_backward() -> None:
    x = torch.zeros(2, requires_grad=True)
    with warnings.catch_warnings(record=True) as told, torch.autograd.detect_anomaly(check_nan=True):
        warnings.simplefilter("always")
        loss = (x.sqrt() * 0).sum()
        with pytest.raises(RuntimeError, match="SqrtBackward0"):
            ts.backward(loss, engine="direct")
    found = [each.filename for each in told if "SqrtBackward0" in str(each.message)]
    assert found == [__file__]

"""Memory of tensors that are split over ranks: one rank's part counts, and unknown memory is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tapescope.tests.warm_python import WarmPython

from ..ranks import logs_of_ranks
from .dtensor_program import POLICIES, SIZE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.heavy,
    pytest.mark.skipif(
        not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="needs gloo"
    ),
]


@pytest.fixture(scope="module")
def ranks(fresh_python: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the log of each rank."""
    return logs_of_ranks(
        fresh_python, Path(__file__).with_name("dtensor_program.py"), tmp_path_factory.mktemp("split"), size=SIZE
    )


# The code of DTensors is not called: what a formula takes meanwhile, as that of cos() does, is not known.
WITHIN = {"tensor_parallel": 0.001, "sums_of_dtensors": 0.2}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("program", WITHIN)
def test_of_dtensors_a_ranks_own_part_counts(ranks: list[dict[str, Any]], program: str, policy: str) -> None:
    for rank in ranks:
        found = rank[f"{program} {policy}"]
        assert found["calibrated"] == found["measured"]
        assert found["dry"][0] == found["measured"][0]
        assert found["dry"][1] == pytest.approx(found["measured"][1], rel=WITHIN[program])
        assert any("DTensors" in sentence for sentence in found["why"][0])


@pytest.mark.parametrize("policy", POLICIES)
def test_what_fully_shard_gathers_is_said_not_to_be_known(ranks: list[dict[str, Any]], policy: str) -> None:
    for rank in ranks:
        found = rank[f"sharded {policy}"]
        assert any("FSDP" in sentence for sentence in found["why"][0])
        for words in found["words"]:
            assert "estimate" in words and "FSDP" in words
        assert found["calibrated"] == found["measured"] or found["why"][1]

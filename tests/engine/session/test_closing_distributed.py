"""A session that ends early in a process group leaves DistributedDataParallel as after any step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tapescope.tests.warm_python import WarmPython

from ..ranks import logs_of_ranks
from .closed_ddp_program import ENDS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="needs gloo"
    ),
]


@pytest.fixture(scope="module")
def ranks(fresh_python: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[list[float]]]]:
    """Return the log of each rank."""
    program = Path(__file__).with_name("closed_ddp_program.py")
    return logs_of_ranks(fresh_python, program, tmp_path_factory.mktemp("closed"))


@pytest.mark.parametrize("end", [each for each in ENDS if each != "plain"])
def test_the_step_and_the_next_ones_are_reduced_as_in_a_plain_run(
    ranks: list[dict[str, list[list[float]]]], end: str
) -> None:
    assert ranks[0][end] == ranks[1][end]
    for found, expected in zip(ranks[0][end], ranks[0]["plain"], strict=True):
        torch.testing.assert_close(torch.tensor(found), torch.tensor(expected))

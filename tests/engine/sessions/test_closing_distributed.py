"""A session that ends early in a process group leaves DistributedDataParallel as after any step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from .closed_ddp_program import ENDS

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(
        not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="needs gloo"
    ),
]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[list[float]]]]:
    folder = tmp_path_factory.mktemp("closed")
    program = Path(__file__).with_name("closed_ddp_program.py")
    started = [
        subprocess.Popen([sys.executable, program, str(rank), folder], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for process in started:
        errors = process.communicate(timeout=300)[1]
        assert process.returncode == 0, errors[-5000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("end", [each for each in ENDS if each != "plain"])
def test_the_step_and_the_next_ones_are_reduced_as_in_a_plain_run(
    ranks: list[dict[str, list[list[float]]]], end: str
) -> None:
    assert ranks[0][end] == ranks[1][end]
    for found, expected in zip(ranks[0][end], ranks[0]["plain"], strict=True):
        torch.testing.assert_close(torch.tensor(found), torch.tensor(expected))

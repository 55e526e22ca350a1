"""Tensor parallel on two ranks, whose collectives pair up by order: gradients are plain torch's, whoever asks what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tapescope.tests.says import says
from tapescope.tests.warm_python import WarmPython

from ..ranks import logs_of_ranks
from .tensor_parallel_program import POLICIES, SIZE

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(
        not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="needs gloo"
    ),
]

UNLIKE = ("bfs against dfs", "dfs against auto", "auto against bfs")
ALIKE = tuple(f"{policy} on both" for policy in POLICIES)


@pytest.fixture(scope="module")
def ranks(fresh_python: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the log of each rank."""
    program = Path(__file__).with_name("tensor_parallel_program.py")
    return logs_of_ranks(fresh_python, program, tmp_path_factory.mktemp("tensor_parallel"), size=SIZE)


@pytest.mark.parametrize("name", [*ALIKE, *UNLIKE])
def test_gradients_are_those_of_plain_torch_and_of_one_process(ranks: list[dict[str, Any]], name: str) -> None:
    for rank in ranks:
        for reference in ("plain", "one process"):
            for parameter, expected in rank[reference]["gradients"].items():
                found = rank[name]["gradients"][parameter]
                torch.testing.assert_close(torch.tensor(found), torch.tensor(expected))


@pytest.mark.parametrize("name", UNLIKE)
def test_ranks_that_ask_for_different_orders_all_run_pytorchs_and_say_why(
    ranks: list[dict[str, Any]], name: str
) -> None:
    asked = name.split(" against ")
    assert [rank[name]["policy"] for rank in ranks] == [f"{policy}: heap" for policy in asked]
    assert ranks[0][name]["order"] == ranks[1][name]["order"] == ranks[0]["auto on both"]["order"]
    for number, policy in enumerate(asked):
        note = ranks[number][name]["note"]
        if policy == "auto":
            says(note, "estimate")
        elif "auto" in asked:
            says(note, f"rank {1 - number}", "PyTorch")
        else:
            says(note, 0, 1)


def test_an_order_on_which_they_agree_runs(ranks: list[dict[str, Any]]) -> None:
    for name in ("bfs on both", "dfs on both"):
        assert ranks[0][name]["order"] == ranks[1][name]["order"] != ranks[0]["auto on both"]["order"]
        assert [rank[name]["policy"] for rank in ranks] == [name.split()[0]] * SIZE

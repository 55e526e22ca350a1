"""FSDP2 on two ranks: each verb under each policy gives PyTorch's gradients, this step and the next, or refuses."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("needs gloo", allow_module_level=True)

from .fully_shard_program import ELSEWHERE, OWN, POLICIES, VARIANTS, VERBS, different

FEW = {
    "as it is": (
        *("backward bfs", "backward delay_accumulate", "backward choice", "against a stage", "dynamic", "direct"),
        *(
            "stepped",
            "switched",
            "closed after 20",
            "dropped",
            "nan",
            "unused",
            "named",
            "compare before",
            "plan_mirror before",
        ),
    ),
    "flat": ("backward bfs", "closed after 20", "compare before"),
    "in buckets": ("closed after 20",),
    "accumulated": ("find_nan between",),
}
REFUSED = {
    "against a stage": "ValueError: constraint 1",
    "direct": "NotImplementedError: the direct engine",
    "direct session": "NotImplementedError: the direct engine",
    "dynamic": "PolicyError: policy live decides while the backward runs",
    "find_unused before": "NotImplementedError: fully_shard makes the parameters",
    "switched": "PolicyError: policy dfs can't take over here",
    "plan_mirror before": "NotImplementedError: th.plan_mirror",
    "plan_mirror between": "NotImplementedError: th.plan_mirror",
}
"""How a refusal begins, for each verb that is refused; no other is."""
OTHERS = {verb: said for verb, said in REFUSED.items() if verb.startswith(("direct", "switched"))}
ITS_OWN = {f"{name} {when}" for name in OWN for when in ("before", "between") if name != "forward"} | {"nan"}
FLAT = [variant for variant in VARIANTS if variant.startswith("flat")]


def ranks(folder: Path, variants: dict[str, tuple[str, ...]], limit_s: float) -> list[dict[str, Any]]:
    """What each of two ranks logged."""
    program = Path(__file__).with_name("fully_shard_program.py")
    asked = json.dumps(variants)
    started = [
        subprocess.Popen([sys.executable, program, str(rank), folder, asked], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    ends = time.monotonic() + limit_s
    try:
        for process in started:
            errors = process.communicate(timeout=max(0.0, ends - time.monotonic()))[1]
            assert process.returncode == 0, errors[-5000:]
    except subprocess.TimeoutExpired:
        at = [path.read_text() for path in sorted(folder.glob("*.at"))]
        pytest.fail(f"the ranks have not ended in {limit_s:g} s; they were at {' and '.join(at)}")
    finally:
        for process in started:
            process.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def assert_equal_or_refused(results: list[dict[str, Any]]) -> None:
    for rank, variants in enumerate(results):
        for variant, verbs in variants.items():
            plain = verbs.pop("plain")
            for verb, found in verbs.items():
                where = f"{verb} under {variant!r} on rank {rank}"
                assert "error" not in found, f"{where}: {found['error']}"
                wrong = [different(*steps) for steps in zip(found["steps"], plain["steps"], strict=True)]
                assert not any(wrong), f"{where}: the gradients of these parameters differ, by step: {wrong}"
                begins = REFUSED.get(verb) if "wrapper" not in VARIANTS[variant] else OTHERS.get(verb)
                if variant in FLAT and verb in ITS_OWN:
                    begins = "NotImplementedError: FullyShardedDataParallel keeps its gradients"
                assert bool(found["refused"]) == (begins is not None), f"{where}: {found['refused']}"
                assert all(said.startswith(begins or "") for said in found["refused"]), f"{where}: {found['refused']}"


def test_gradients_are_pytorchs_or_the_verb_refuses(tmp_path: Path) -> None:
    assert_equal_or_refused(ranks(tmp_path, FEW, limit_s=240.0))


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_verb_under_every_policy_in_every_variant(tmp_path: Path, variant: str) -> None:
    assert {f"backward {policy}" for policy in POLICIES} <= VERBS.keys()
    verbs = ELSEWHERE if "wrapper" in VARIANTS[variant] else VERBS
    assert_equal_or_refused(ranks(tmp_path, {variant: tuple(verbs)}, limit_s=1200.0))

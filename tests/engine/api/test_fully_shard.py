"""FSDP2 on two ranks: each verb under each policy gives PyTorch's gradients, this step and the next, or refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tapescope.tests.says import says

if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("needs gloo", allow_module_level=True)

from tapescope.tests.warm_python import WarmPython

from ..ranks import logs_of_ranks
from .fully_shard_program import ELSEWHERE, OWN, POLICIES, TOLERANCES, VARIANTS, VERBS, different

pytestmark = pytest.mark.heavy

FEW = {
    "as it is": (
        *("backward bfs", "against a stage", "dynamic", "direct", "stepped", "closed after 20"),
        *("nan", "unused", "compare before", "plan_recompute before"),
    ),
    "flat": ("backward bfs", "compare before"),
    "checkpointed reentrantly": ("compare between", "plan_recompute before"),
    "accumulated": ("find_nan between", "simulate", "plan", "backward auto"),
    "optimized inside": ("compare before",),
}
IN_PART = {
    "root alone": tuple(each for each in VERBS if each not in ("dynamic", "against a stage")),
    "checkpointed reentrantly": tuple(each for each in ELSEWHERE if each not in ("forward before", "check_order")),
    **dict.fromkeys(
        ("in buckets", "in buckets of a module"), tuple(each for each in ELSEWHERE if not each.endswith(" between"))
    ),
    "replicated": ("backward bfs", "backward dfs", "closed after 20", "compare before", "find_nan between", "nan"),
}
"""What is asked of a variant where it is not all. Where only the root is sharded, its graph has no task of
`fully_shard`, and any order is legal. With reentrant checkpoints one forward more changes PyTorch's own next step, and
the graph has neither the tasks of the blocks nor those of `fully_shard`. Of DistributedDataParallel a backward between
a forward and its own leaves that one's gradients as they are on each rank, without tapescope, too."""
REFUSED: dict[str, tuple[str, ...]] = {
    "against a stage": ("ValueError", "constraint 1"),
    "direct": ("NotImplementedError", "fully_shard"),
    "direct session": ("NotImplementedError", "fully_shard"),
    "dynamic": ("PolicyError", "live"),
    "find_unused before": ("NotImplementedError", "fully_shard"),
    "switched": ("PolicyError", "dfs"),
    "plan_recompute before": ("NotImplementedError", "ts.plan_recompute"),
    "plan_recompute between": ("NotImplementedError", "ts.plan_recompute"),
}
"""What a refusal says, for each verb that is refused; no other is."""
ORDINARY = ("backward heap", "backward bfs", "backward dfs")
"""What all ranks ask for here, and all run: none of it has to be refused, or to be PyTorch's own order instead."""
OTHERS = {"switched": REFUSED["switched"], "direct": ("NotImplementedError",)}
OTHERS["direct session"] = OTHERS["direct"]
ITS_OWN = {f"{name} {when}" for name in OWN for when in ("before", "between") if name != "forward"} | {"nan"}
FLAT = [variant for variant in VARIANTS if variant.startswith("flat")]


def ranks(
    python: WarmPython, folder: Path, variants: dict[str, tuple[str, ...]], limit_s: float
) -> list[dict[str, Any]]:
    """Return the log of each rank."""
    program = Path(__file__).with_name("fully_shard_program.py")
    return logs_of_ranks(python, program, folder, json.dumps(variants), limit_s=limit_s)


def refusal_of(verb: str, variant: str) -> tuple[str, ...] | None:
    """Return the text of the refusal; None if the verb gives PyTorch's gradients."""
    if variant in FLAT and verb in ITS_OWN:
        return "NotImplementedError", "FullyShardedDataParallel"
    if variant in FLAT and verb in OTHERS:
        return REFUSED[verb]
    if variant == "checkpointed reentrantly" and verb in ITS_OWN - REFUSED.keys():
        return "NotImplementedError", "FSDPNet", "FSDP2"
    if variant == "left out" and verb in ("unused", "find_unused between"):
        return REFUSED["find_unused before"]
    return OTHERS.get(verb) if "wrapper" in VARIANTS[variant] else REFUSED.get(verb)


def assert_equal_or_refused(results: list[dict[str, Any]]) -> None:
    for rank, variants in enumerate(results):
        for variant, verbs in variants.items():
            plain = verbs.pop("plain")
            for verb, found in verbs.items():
                where = f"{verb} under {variant!r} on rank {rank}"
                assert "error" not in found, f"{where}: {found['error']}"
                steps = zip(found["steps"], plain["steps"], strict=True)
                wrong = [different(*each, TOLERANCES.get(variant, 1e-3)) for each in steps]
                assert not any(wrong), f"{where}: the gradients of these parameters differ, by step: {wrong}"
                if verb in ORDINARY:
                    assert set(found["ran"]) == {verb.removeprefix("backward ")}, f"{where}: {found['ran']}"
                facts = refusal_of(verb, variant)
                assert bool(found["refused"]) == (facts is not None), f"{where}: {found['refused']}"
                for said in found["refused"]:
                    says(said, *(facts or ()))


@pytest.mark.slow
def test_gradients_are_pytorchs_or_the_verb_refuses(fresh_python: WarmPython, tmp_path: Path) -> None:
    assert_equal_or_refused(ranks(fresh_python, tmp_path, FEW, limit_s=540.0))


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_verb_under_every_policy_in_every_variant(fresh_python: WarmPython, tmp_path: Path, variant: str) -> None:
    assert {f"backward {policy}" for policy in POLICIES} <= VERBS.keys()
    verbs = ELSEWHERE if "wrapper" in VARIANTS[variant] else VERBS
    asked = {variant: IN_PART.get(variant, tuple(verbs))}
    assert_equal_or_refused(ranks(fresh_python, tmp_path, asked, limit_s=1200.0))

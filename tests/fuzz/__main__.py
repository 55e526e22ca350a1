"""Random programs, run by PyTorch and by tapescope in random ways: gradients, hooks, buffers and chance are compared.

    python tests/fuzz --programs 10000 --seed 0
    python tests/fuzz --only 1234          # one seed again; what fails is shrunk first

Exits with 1 if anything differs without being refused by name.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(1, str(Path(__file__).parents[1] / "engine"))

from judge import verdict
from recipe import OPERATIONS, Recipe
from ways import Way


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python tests/fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=1000, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of the first; the others follow")
    parser.add_argument("--only", type=int, metavar="SEED", help="one program, shrunk if it fails")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.only is not None:
        return _replay(options.only)
    started, found = time.monotonic(), Counter[str]()
    for seed in range(options.seed, options.seed + options.programs):
        recipe, way = Recipe.of(seed), Way.of(seed)
        said = verdict(recipe, way)
        found[said.partition(":")[0]] += 1
        if said.startswith("DIFFERENT"):
            print(f"{seed}: {way.name}, {way.policy}: {said}", flush=True)
        if (done := sum(found.values())) % 50 == 0:
            _set_aside()
        if done % 1000 == 0:
            print(f"{done} programs, {time.monotonic() - started:.0f} s: {dict(found)}", file=sys.stderr, flush=True)
    print(f"{options.programs} programs: {', '.join(f'{count} {what}' for what, count in found.most_common())}")
    return int(found["DIFFERENT"] > 0)


def _set_aside() -> None:
    """Takes what torch never frees (a checkpoint's graph after an error) out of sight of those who look for hooks."""
    gc.collect()
    gc.freeze()
    gc.get_freeze_count = lambda: 0


def _replay(seed: int) -> int:
    recipe, way = Recipe.of(seed), Way.of(seed)
    said = verdict(recipe, way)
    if said.startswith("DIFFERENT"):
        recipe = _shrunk(recipe, way)
    print(f"{recipe}\n{way}\n{verdict(recipe, way)}")
    return int(said.startswith("DIFFERENT"))


def _shrunk(recipe: Recipe, way: Way) -> Recipe:
    """A smaller program that still differs."""
    smaller = [replace(recipe, features=recipe.features - {feature}) for feature in sorted(recipe.features)]
    smaller += [replace(recipe, operations=count) for count in (1, *OPERATIONS) if count < recipe.operations]
    for each in smaller:
        if verdict(each, way).startswith("DIFFERENT"):
            return _shrunk(each, way)
    return recipe


if __name__ == "__main__":
    sys.exit(main())

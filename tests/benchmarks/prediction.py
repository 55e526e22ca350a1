"""Predicted against measured memory: every workload in eight orders, and random programs in random orders."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from measure import Effort, Row

import tapescope as ts
from tapescope.engine.memory.dry_run import dry_run
from tapescope.engine.studies.workloads import WORKLOADS

sys.path.append(str(Path(__file__).parents[1] / "engine"))
from backward_programs import random_policy
from memory_programs import Program

_PROGRAMS = 100  # for each repetition


def rows(effort: Effort) -> Iterator[Row]:
    for name in ["linear50"] if effort.tiny else WORKLOADS:
        yield workload_row(name)
    yield from program_rows(2 if effort.tiny else _PROGRAMS * effort.repetitions)


def workload_row(name: str) -> Row:
    """One backward calibrates, the others are predicted; and all of them without any backward, by a dry run."""
    model, make_loss = WORKLOADS[name].build()
    footprints = ts.profile(make_loss).footprints
    peaks, errors, dry_errors, shares = [], [], [], []
    for policy in ("bfs", "dfs", "heap", *map(random_policy, range(5))):
        model.zero_grad(set_to_none=True)
        guess = dry_run(ts.graph(make_loss()))
        run = ts.profile(make_loss, policy)
        timeline = run.timeline
        assert timeline is not None
        peak = timeline.peak_bytes
        peaks.append(peak)
        errors.append(ts.simulate(run.graph, run.order, footprints).peak_bytes - peak)
        dry_errors.append(ts.simulate(run.graph, run.order, guess).peak_bytes / peak - 1)
        shares.append(timeline.workspace_share)
    exact = sum(not error for error in errors)
    span = f"{min(peaks) / 2**20:.3f} to {max(peaks) / 2**20:.3f} MiB"
    worst = max(dry_errors, key=abs)
    said = f"calibrated: {exact} of {len(errors)} equal to the byte; dry run off by at most {worst:+.2%}"
    return Row(f"{name}: {span}", "×", outcome=f"{said}; workspace at the peak {max(shares):.1%}")


def program_rows(programs: int) -> Iterator[Row]:
    """`programs` random programs, each calibrated once and predicted in four random orders."""
    count: Counter[str] = Counter()
    for seed in range(programs):
        program = Program(seed, graded=seed % 3 == 1, kept=seed % 2 == 1, regions=seed % 5 == 4)
        program.reset()
        footprints = ts.profile(program.make_loss).footprints
        for number in range(4):
            program.reset()
            run = ts.profile(program.make_loss, random_policy(4 * seed + number))
            found = ts.simulate(run.graph, run.order, footprints)
            right = found.peak_bytes == run.peak_bytes
            count["runs"] += 1
            count["exact"] += right
            count["flagged"] += bool(found.estimates)
            count["wrong and not flagged"] += not right and not found.estimates
    runs = count["runs"]
    said = f"{count['exact']:,} of {runs:,} peaks equal to the byte ({count['exact'] / runs:.2%})"
    said += f"; {count['flagged']:,} flagged as estimates; wrong without a flag: {count['wrong and not flagged']}"
    yield Row(f"{programs:,} random programs × 4 random orders", "×", outcome=said)

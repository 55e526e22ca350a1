"""The memory of several devices in the deck: a curve in each one's lane."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tapescope as ts
from tapescope.widgets.deck.run_page_data import run_document

pytestmark = pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")


def levels_in(schedule: dict[str, Any], devices: list[str]) -> dict[str, list[int]]:
    return {devices[each["device"]]: each["levels"] for each in schedule.get("lane_levels", [])}


def test_each_lane_has_its_devices_memory_measured_and_predicted(
    accelerators: tuple[torch.device, torch.device],
) -> None:
    x = torch.randn(100, device=accelerators[0], requires_grad=True)
    run = ts.profile(lambda: (x * 2).exp().to(accelerators[1]).sin().cpu().exp().sum(), "bfs")
    content = run_document(run).content
    own, *others = content["schedules"]
    measured = {device: list(timeline.task_peaks) for device, timeline in run.timelines.items()}
    assert levels_in(own, content["devices"]) == measured and len(measured) == 3
    for schedule in others:
        assert schedule["memory"] is None or set(levels_in(schedule, content["devices"])) == set(measured)


def test_of_one_device_there_is_the_one_curve() -> None:
    x = torch.randn(100, requires_grad=True)
    content = run_document(ts.profile(lambda: x.exp().sum())).content
    assert all("lane_levels" not in schedule for schedule in content["schedules"])

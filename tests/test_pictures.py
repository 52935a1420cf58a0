"""Every picture is a PNG that opens, whatever the numbers behind it."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from megahour.pictures import contact_sheet, histogram, loss_curve, success_chart, tile
from megahour.storage import open_lake

EVENTS = [
    {"kind": "started", "step": 0, "attempt": 1},
    *({"kind": "step", "step": step, "loss": 2 / (step + 1), "action_loss": 1 / (step + 1)} for step in range(50)),
    {"kind": "step", "step": 50, "loss": math.nan},
    {"kind": "validation", "step": 50, "loss": 0.1},
    {"kind": "finished", "step": 50},
]
SUCCESS = {
    "trained": {"k": 19, "n": 20, "low": 0.76, "high": 0.99},
    "untrained": {"k": 0, "n": 20, "low": 0.0, "high": 0.16},
    "blind": {"k": 0, "n": 0, "low": 0.0, "high": 1.0},
}


def opened(png: bytes) -> Image.Image:
    picture = Image.open(io.BytesIO(png))
    picture.load()
    assert picture.format == "PNG"
    return picture


@pytest.mark.parametrize(
    "png",
    [
        loss_curve(EVENTS),
        loss_curve([]),
        histogram([0.1, 0.2, math.nan, 0.2], "idle share"),
        histogram([], "idle share"),
        success_chart({"step": 300, "success": SUCCESS}),
        success_chart({"step": 300, "success": {}}),
    ],
)
def test_charts_are_pictures_with_and_without_data(png: bytes) -> None:
    assert len(set(opened(png).convert("L").tobytes())) > 2
    assert len(png) < 100_000


def test_the_same_numbers_give_the_same_bytes() -> None:
    assert loss_curve(EVENTS) == loss_curve(EVENTS)


def test_tiles_stand_under_each_other() -> None:
    red, blue = (np.full((32, 40, 3), color, np.uint8) for color in ((255, 0, 0), (0, 0, 255)))
    sheet = opened(tile([("one", [red, blue]), ("broken", [])], height_px=32))
    assert sheet.getpixel((5, 20)) == (255, 0, 0)
    assert sheet.getpixel((50, 20)) == (0, 0, 255)
    assert sheet.height == 2 * (32 + 16 + 2)


def test_an_episode_that_cannot_be_read_leaves_its_row(tmp_path: Path) -> None:
    lake = open_lake(tmp_path.as_uri())
    assert opened(contact_sheet(lake, ["episodes/2026-11-29/none.mcap"])).height > 90
    opened(contact_sheet(lake, []))

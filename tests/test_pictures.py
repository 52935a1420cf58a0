"""Every picture opens, whatever the numbers behind it, and is small."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from megahour.episode.h264 import encode_video
from megahour.pictures import LAST_PICTURE_MS, contact_sheet, film, histogram, loss_curve, success_chart, tile
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


def opened(data: bytes, kind: str = "PNG") -> Image.Image:
    picture = Image.open(io.BytesIO(data))
    picture.load()
    assert picture.format == kind
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
    sheet = opened(tile([("one", [red, blue]), ("broken", [])], height_px=32), "WEBP")
    assert sheet.getpixel((20, 30)) == pytest.approx((255, 0, 0), abs=10)
    assert sheet.getpixel((60, 30)) == pytest.approx((0, 0, 255), abs=10)
    assert sheet.height == 2 * (32 + 16 + 2)


def test_an_episode_that_cannot_be_read_leaves_its_row(tmp_path: Path) -> None:
    lake = open_lake(tmp_path.as_uri())
    assert opened(contact_sheet(lake, ["episodes/2026-11-29/none.mcap"]), "WEBP").height > 90
    opened(contact_sheet(lake, []), "WEBP")


@pytest.mark.parametrize("pictures", [2, 41, 1000])
def test_a_film_plays_in_true_time_to_its_end_and_is_small(tmp_path: Path, pictures: int) -> None:
    def shades() -> Iterator[np.ndarray]:
        for place in range(pictures):
            yield np.full((64, 128, 3), 250 * (place + 1) // pictures, np.uint8)

    encode_video(tmp_path / "video.mp4", shades(), 20)
    data = film(tmp_path / "video.mp4", height_px=32)
    playing = opened(data, "WEBP")
    durations = []
    for place in range(playing.n_frames):  # type: ignore[attr-defined]
        playing.seek(place)
        playing.load()
        durations.append(playing.info["duration"])
    assert sum(durations) == pytest.approx((pictures - 1) * 50 + LAST_PICTURE_MS, abs=50)
    assert len(durations) <= 49
    assert playing.size == (64, 32)
    assert np.asarray(playing.convert("L")).mean() == pytest.approx(250, abs=6), "the end is seen"
    assert len(data) < 50_000

"""Both forms of a pattern mean the same sample, and its windows lie inside the episode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.episodes import facts
from benchmarks.patterns import SHORT_VLA, VLA, WORLD_ACTION, Pattern, moments, query, window
from megahour.episode.model import RawEpisode
from megahour.episode.reader import open_episode_file
from megahour.episode.writer import write_episode
from tests.samples import camera, pictures, series


@pytest.fixture
def episode() -> RawEpisode:
    """Pictures at 80/3 Hz, rows at 80 Hz, as the simulator's; the rows go on after the pictures."""
    return RawEpisode(
        index=0,
        robot="r",
        task="t",
        rate_hz=80 / 3,
        success=True,
        cameras=(camera("a", pictures(100, 48, 64), 80 / 3), camera("b", pictures(100, 48, 64, 1), 80 / 3)),
        series=(series("state", 330, 4, 80.0), series("action", 330, 3, 80.0)),
    )


@pytest.mark.parametrize(
    ("pattern", "frames", "states", "actions"),
    [(VLA, 2, 150, 50), (SHORT_VLA, 2, 15, 15), (WORLD_ACTION, 49, None, 145)],
)
def test_a_sample_is_what_its_window_says(
    tmp_path: Path, episode: RawEpisode, pattern: Pattern, frames: int, states: int | None, actions: int
) -> None:
    path = tmp_path / "e.mcap"
    write_episode(path, episode, facts(episode, "e"))
    reader = open_episode_file(path)
    found = moments(episode, pattern, 20).tolist()
    assert len(found) == 20
    for frame in (min(found), max(found)):
        wanted = window(episode, pattern, frame)
        sample = reader.sample(int(episode.cameras[0].times_ns[frame]), query(episode, pattern))
        for each in episode.cameras:
            assert len(wanted.pictures[each.name]) == frames
            assert tuple(sample.pictures[each.name].times_ns.tolist()) == wanted.pictures[each.name]
            assert sample.pictures[each.name].valid.all()
        counts = {"action": actions} if states is None else {"action": actions, "state": states}
        assert {name: len(rows.values) for name, rows in sample.series.items()} == counts
        for name, (since, until) in wanted.rows.items():
            times = sample.series[name].times_ns
            own = next(each for each in episode.series if each.name == name).times_ns
            assert times.tolist() == own[(own >= since) & (own <= until)].tolist()
    assert not query(episode, pattern, rows=False).series


def test_the_windows_edges(episode: RawEpisode) -> None:
    everywhere = np.unique(moments(episode, VLA, 2000))
    # 149 periods of 12.5 ms before and 49 after, a picture at every third of 330 rows.
    assert (everywhere.min(), everywhere.max()) == (50, 93)
    world = np.unique(moments(episode, WORLD_ACTION, 2000))
    assert (world.min(), world.max()) == (0, 51)

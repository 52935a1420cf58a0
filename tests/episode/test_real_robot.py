"""The episodes of a real robot keep every row bit for bit, and every picture above 38 dB."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from megahour.episode.check import check_bytes
from megahour.episode.model import EpisodeFacts
from megahour.episode.reader import open_episode_file
from megahour.episode.writer import write_episode
from megahour.sources import Recording, find_recordings, read_recording
from megahour.storage import list_files, open_lake, read_bytes
from tests.samples import copy_g1, psnr_db, rgb


@pytest.fixture(scope="module")
def landed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Recording], Callable[[str], Path]]:
    root = tmp_path_factory.mktemp("lake")
    copy_g1(root / "landing" / "g1")
    lake = open_lake(root.as_uri())
    return find_recordings(list_files(lake, "landing"), lambda key: read_bytes(lake, key)), lambda key: root / key


@pytest.mark.parametrize("number", range(6))
def test_frames_and_states_equal_the_source(
    landed: tuple[list[Recording], Callable[[str], Path]], tmp_path: Path, number: int
) -> None:
    recordings, local = landed
    parquet, video = (local(file.key) for file in recordings[number].files)
    (episode,) = read_recording(recordings[number], local)
    facts = EpisodeFacts("id", episode.robot, episode.task, "g1", "lerobot_v21", episode.rate_hz)
    written = write_episode(tmp_path / "e.mcap", episode, facts)
    reader = open_episode_file(tmp_path / "e.mcap")

    table = pq.read_table(parquet)
    for column, topic in (("observation.state", "state"), ("action", "action")):
        rows = table[column].combine_chunks().flatten().to_numpy().reshape(table.num_rows, 26)
        assert reader.series(topic).values.dtype == np.float32
        assert reader.series(topic).values.tobytes() == rows.tobytes()
    assert reader.series("state").names[0] == "kLeftShoulderPitch"
    assert written.frames_by_camera == {"cam_high": table.num_rows}

    decibels: list[float] = []
    with av.open(str(video)) as container:
        frames = (rgb(frame) for frame in container.decode(video=0))
        while block := list(islice(frames, 50)):
            returned = reader.frames("cam_high", range(len(decibels), len(decibels) + len(block)))
            decibels += [psnr_db(a, b) for a, b in zip(block, returned, strict=True)]
    assert len(decibels) == table.num_rows
    assert min(decibels) >= 38
    assert written.size_bytes < 0.65 * recordings[number].size_bytes
    assert check_bytes("e.mcap", (tmp_path / "e.mcap").read_bytes()) == []


def test_all_episodes_are_found(landed: tuple[list[Recording], Callable[[str], Path]]) -> None:
    recordings, local = landed
    assert [recording.uri for recording in recordings] == [f"landing/g1#episode={i}" for i in range(6)]
    episodes = [episode for recording in recordings for episode in read_recording(recording, local)]
    assert sum(len(episode.cameras[0].times_ns) for episode in episodes) == 1583
    assert {episode.task for episode in episodes} == {"Pick up the yellow bottle on the table."}
    assert {episode.robot for episode in episodes} == {"Unitree_G1_Inspire"}
    assert {(episode.rate_hz, episode.success) for episode in episodes} == {(30.0, None)}

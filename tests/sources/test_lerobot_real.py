"""The real G1 episodes are the same in version 2.1 and in version 3.0: states bit for bit, pictures, and identity."""

from __future__ import annotations

import json
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pytest

from megahour.sources import read_recording, recording_id
from tests.lerobot_v30 import Sharing, found, takes_of_v21, write_v30
from tests.samples import copy_g1

EPISODES = (5, 1)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes in version 2.1, and the same in two datasets of version 3.0 that share files differently."""
    root = tmp_path_factory.mktemp("lake")
    source = copy_g1(root / "landing/v21", EPISODES)
    takes = takes_of_v21(source, EPISODES)
    said = json.loads((source / "meta/info.json").read_text())
    facts = {name: said[name] for name in ("robot_type", "features")}
    write_v30(root / "landing/v30", takes, Sharing(data=2, videos=2), info=facts)
    write_v30(root / "landing/apart", takes[::-1], Sharing(data=1, videos=1, group_rows=100), info=facts)
    return root


def test_rows_and_pictures_are_the_same(lake: Path) -> None:
    by_uri = {one.uri: one for one in found(lake)}
    for number, episode in enumerate(EPISODES):
        old = by_uri[f"landing/v21#episode={episode}"]
        new = by_uri[f"landing/v30#episode={number}"]
        apart = by_uri[f"landing/apart#episode={1 - number}"]
        assert len({recording_id(one, lake.joinpath) for one in (old, new, apart)}) == 1
        (before,), (after,) = (list(read_recording(one, lake.joinpath)) for one in (old, new))
        assert after.task == before.task == "Pick up the yellow bottle on the table."
        assert after.notes == before.notes == ()
        for one, other in zip(before.series, after.series, strict=True):
            assert one.values.tobytes() == other.values.tobytes()
            assert (one.name, one.times_ns.tolist()) == (other.name, other.times_ns.tolist())
    # The last one begins in the middle of its video.
    pairs = zip_longest(before.cameras[0].frames(), after.cameras[0].frames())
    same = [bool(np.array_equal(one, other)) for one, other in pairs]
    assert same == [True] * 221

"""Workers that were forked or started anew read the same open episodes as their parent, and see the same pictures."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megahour.episode.episodes import Episodes
from megahour.episode.ranges import FileBytes, MappedBytes
from megahour.episode.reader import EpisodeReader, open_episode
from megahour.episode.sample import Query
from megahour.episode.writer import write_episode
from megahour.storage import Lake, open_lake, put_file
from tests.episode.workers import Start, in_workers, shown
from tests.samples import FACTS, camera, h264_camera, jpeg_camera, numbered, raw_episode

REPO = Path(__file__).parents[2]
MS = 1_000_000
KEY = "episodes/e.mcap"
WORKERS = {"fork": 8, "spawn": 3}
QUERY = Query({"front": (-200 * MS, 0), "files": (0,), "wrist": (0, 500 * MS)}, (40, 60))


def moments_of(worker: int) -> list[int]:
    return [(303 + 170 * worker + 40 * i) * MS for i in range(6)]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    folder = tmp_path_factory.mktemp("processes")
    cameras = (
        camera("front", numbered(90)),
        h264_camera("wrist", numbered(90), 12),
        jpeg_camera("files", numbered(90)),
    )
    write_episode(folder / "e", replace(raw_episode(), cameras=cameras), FACTS)
    lake = open_lake((folder / "lake").as_uri())
    # From here on this process has used the object store.
    put_file(lake, KEY, folder / "e")
    return lake


def expected(worker: int) -> list[int]:
    seen = []
    for moment_ns in moments_of(worker):
        for offsets in QUERY.cameras.values():
            seen += [min(89, round((moment_ns + offset) * 30 / 1e9)) for offset in offsets]
    return seen


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("what", ["reader", "mapped", "episodes"])
def test_workers_see_what_their_parent_sees(lake: Lake, start: Start, what: str) -> None:
    path = lake.local_path(KEY)
    assert path is not None
    source: Any = (
        (Episodes(lake, 10**6, threads=2), KEY)
        if what == "episodes"
        else EpisodeReader(MappedBytes(path) if what == "mapped" else FileBytes(path))
    )
    # The parent has decoded, on threads of its own, before its workers start; their decoders and locks go along.
    assert shown(source, moments_of(1), QUERY) == expected(1)
    count = WORKERS[start]
    assert in_workers(start, source, [moments_of(i) for i in range(count)], QUERY) == [
        expected(i) for i in range(count)
    ]
    assert shown(source, moments_of(2), QUERY) == expected(2), "and the parent goes on"


def test_workers_may_have_threads_while_their_parent_decodes_on_its_own(lake: Lake) -> None:
    """The pool of threads that a parent started does not exist in its child, which starts another."""
    episodes = Episodes(lake, 10**6, threads=2)
    for i in range(3):
        assert shown((episodes, KEY), moments_of(i), QUERY) == expected(i)
    pool = episodes._threads._pool
    assert pool is not None
    assert in_workers("fork", (episodes, KEY), [moments_of(5)] * 2, QUERY) == [expected(5)] * 2
    assert episodes._threads._pool is pool


def test_a_forked_child_is_told_that_it_cannot_use_an_object_store(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    # Nobody is there: what the child hears, it hears without asking.
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    remote = Lake("s3://bucket/lake")
    assert remote.store is not None
    (answer,) = in_workers("fork", (Episodes(remote, 10**6), KEY), [[0]], QUERY)
    assert answer == (
        "ForkedError: This process was forked from one that had used the object store, and cannot use it: "
        "s3://bucket/lake. Start processes by 'spawn' or 'forkserver' (multiprocessing_context of a DataLoader)"
    )
    # An episode of a local lake is read without that store, so its children need not know.
    assert in_workers("fork", open_episode(lake, KEY), [moments_of(0)], QUERY) == [expected(0)]


FIRST = """
import os, sys
from megahour.storage import Lake, list_files
lake = Lake(sys.argv[1])
if os.fork() == 0:
    print([ref.key for ref in list_files(lake, "episodes")], flush=True)
    os._exit(0)
os.wait()
print(len(list(list_files(lake, "episodes"))), flush=True)
if os.fork() == 0:
    try:
        list(list_files(lake, "episodes"))
    except RuntimeError as error:
        print(type(error).__name__, flush=True)
    os._exit(0)
os.wait()
"""


def test_a_child_that_was_forked_before_the_store_was_used_may_use_it(lake: Lake) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST, lake.uri], cwd=REPO, capture_output=True, text=True, timeout=120, env=os.environ
    )
    assert done.stdout.split("\n")[:3] == [f"['{KEY}']", "1", "ForkedError"], done.stderr

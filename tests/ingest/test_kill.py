"""Killed at any step, or run twice at once, an ingest leaves the same rows, each exactly once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megahour.ingest.pending import pending_batches
from megahour.settings import Settings
from megahour.storage import Lake
from tests.ingest.recordings import contents, discovered, landing, make_lake, truncate, write_recording

REPO = Path(__file__).parents[2]
PARTS = 4


def make_batch(tmp_path: Path) -> tuple[Lake, Settings, str]:
    """A planned batch of five good recordings, two of one content, and a truncated one."""
    lake, settings = make_lake(tmp_path)
    for seed in range(4):
        write_recording(landing(lake) / f"toys/{seed}.hdf5", seed)
    write_recording(landing(lake) / "toys/twin.hdf5", 0)
    truncate(write_recording(landing(lake) / "toys/3-cut.hdf5", 9))
    (batch,) = discovered(lake, settings)
    return lake, settings, batch.key


def start(lake: Lake, settings: Settings, batch: str, die_at: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.ingest.victim", lake.uri, str(settings.scratch), batch]
    return subprocess.Popen(
        [*command, "--die-at", str(die_at)], cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return out


def told(lake: Lake) -> dict[str, list[dict]]:
    """All rows, without etags: a local file's etag holds its inode."""
    return {
        table: [{name: value for name, value in row.items() if name != "etag"} for row in rows]
        for table, rows in contents(lake).items()
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[dict]], int]:
    """The rows of a run that nobody killed, and how many steps it took."""
    lake, settings, batch = make_batch(tmp_path_factory.mktemp("undisturbed"))
    steps = int(finish(start(lake, settings, batch)))
    rows = told(lake)
    counts = [len(rows[table]) for table in ("recordings", "episodes", "quarantine", "episode_quality")]
    assert counts == [5, 4, 1, 4]
    return rows, steps


@pytest.mark.parametrize("part", range(PARTS))
def test_killed_at_a_step_and_run_again(
    tmp_path: Path, undisturbed: tuple[dict[str, list[dict]], int], part: int
) -> None:
    rows, steps = undisturbed
    lake, settings, batch = make_batch(tmp_path)
    victim = start(lake, settings, batch, die_at=1 + (steps - 1) * (2 * part + 1) // (2 * PARTS))
    victim.communicate(timeout=120)
    assert victim.returncode == -signal.SIGKILL
    assert pending_batches(lake) == [batch]
    finish(start(lake, settings, batch))
    assert told(lake) == rows
    assert pending_batches(lake) == []
    assert list((settings.scratch / "ingest").iterdir()) == []


def test_killed_again_and_again_at_random_moments(
    tmp_path: Path, undisturbed: tuple[dict[str, list[dict]], int]
) -> None:
    lake, settings, batch = make_batch(tmp_path)
    moments = random.Random(5)
    for _ in range(4):
        victim = start(lake, settings, batch)
        time.sleep(moments.uniform(0.6, 2.5))
        victim.kill()
        victim.communicate()
    finish(start(lake, settings, batch))
    assert told(lake) == undisturbed[0]


def test_two_at_once_give_each_row_once(tmp_path: Path, undisturbed: tuple[dict[str, list[dict]], int]) -> None:
    lake, settings, batch = make_batch(tmp_path)
    both = [start(lake, settings, batch) for _ in range(2)]
    for process in both:
        finish(process)
    assert told(lake) == undisturbed[0]

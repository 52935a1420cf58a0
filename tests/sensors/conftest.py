from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from megahour.settings import Settings
from resources.clusters.protocol import JobState
from tests.sensors.world import CLUSTER


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    (tmp_path / "recipes").mkdir()
    for name, value in {
        "LAKE": tmp_path / "lake",
        "SCRATCH": tmp_path / "scratch",
        "RECIPES": tmp_path / "recipes",
        "TRAIN_ATTEMPTS": 2,
        "SETTLE_S": 0,
    }.items():
        monkeypatch.setenv(f"MEGAHOUR_{name}", str(value))
    CLUSTER.states.clear()
    CLUSTER.default = JobState.RUNNING
    return Settings()


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance

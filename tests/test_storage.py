"""Storage: files appear whole, once and for ever, and are read by range."""

import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import pytest

from megahour import storage
from megahour.files import make_folders
from megahour.runs import Intent, write_intent
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
    read_ranges,
    read_tail,
    sha256,
    stage,
    write_once,
)

NO_KEYS = (
    *("", "a/", ".", "..", "../out.txt", "a/../../out.txt", "/a", "a//b.txt", "./a", "a/./b"),
    *("a\0b", "a\nb", "a\udcff", "a#1", "a" * 201, "é" * 101, "a/" * 500 + "a"),
)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return open_lake((tmp_path / "the lake").as_uri())


@pytest.fixture
def root(lake: Lake, tmp_path: Path) -> Path:
    return tmp_path / "the lake"


def test_a_file_is_written_once(lake: Lake) -> None:
    first = write_once(lake, "a/b.bin", b"one")
    assert (first.key, first.size_bytes, read_bytes(lake, "a/b.bin")) == ("a/b.bin", 3, b"one")
    assert first.modified_at.tzinfo is not None
    assert write_once(lake, "a/b.bin", b"one") == first
    with pytest.raises(FileExistsError, match="other content"):
        write_once(lake, "a/b.bin", b"two")
    assert read_bytes(lake, "a/b.bin") == b"one"


def test_of_many_writers_one_wins_and_readers_see_all_of_it(lake: Lake, root: Path) -> None:
    contents = [bytes([i]) * 300_000 for i in range(16)]

    def write(content: bytes) -> bool:
        try:
            write_once(lake, "raced", content)
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(16) as threads:
        won = list(threads.map(write, contents))
    assert sum(won) == 1
    assert read_bytes(lake, "raced") == contents[won.index(True)]
    assert [path.name for path in root.rglob("*") if path.is_file()] == ["raced"]


def test_a_writer_that_dies_leaves_no_file(lake: Lake, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        write_once(lake, "a", b"one")
    assert head(lake, "a") is None
    assert list(root.iterdir()) == []


def test_a_file_on_disk_is_copied(lake: Lake, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(100_000))
    ref = put_file(lake, "copy.bin", source)
    assert read_bytes(lake, "copy.bin") == source.read_bytes()
    assert put_file(lake, "copy.bin", source) == ref
    content = bytearray(source.read_bytes())
    content[50_000] ^= 1
    source.write_bytes(content)
    with pytest.raises(FileExistsError, match="other content"):
        put_file(lake, "copy.bin", source)


def test_ranges_are_exact_or_an_error(lake: Lake) -> None:
    write_once(lake, "r", bytes(range(100)))
    assert read_range(lake, "r", 10, 20) == bytes(range(10, 20))
    assert read_ranges(lake, "r", [90, 5, 5], [100, 6, 5]) == [bytes(range(90, 100)), b"\x05", b""]
    assert read_range(lake, "r", 7, 7) == b""
    for start in (95, 100, 150):
        with pytest.raises(EOFError, match="cut short"):
            read_range(lake, "r", start, 200)
    with pytest.raises(FileNotFoundError):
        read_range(lake, "none", 0, 1)
    with pytest.raises(FileNotFoundError):
        read_bytes(lake, "none")


def test_a_listing_is_sorted_by_key_and_leaves_out_what_is_being_written(lake: Lake, root: Path) -> None:
    for key in ("l/b/x", "l/a/x", "l/a.b", "l/ä b#c", "l/.hidden", "l/.dir/x", "l/y.tmp", "l/z.tmp/x", "lb/x"):
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1")
    keys = [ref.key for ref in list_files(lake, "l/")]
    assert keys == ["l/a.b", "l/a/x", "l/b/x", "l/ä b#c"]
    assert [ref.key for ref in list_files(lake, "nowhere")] == []
    for i in range(5):
        write_once(lake, f"flat/{i}", b"")
    assert [ref.key for ref in list_files(lake, "flat", after="flat/2")] == ["flat/3", "flat/4"]


def test_a_change_of_a_file_changes_its_etag(lake: Lake) -> None:
    before = write_once(lake, "f", b"one")
    assert head(lake, "f") == before
    after = overwrite(lake, "f", b"two")
    assert after.etag != before.etag
    assert read_bytes(lake, "f") == b"two"


def test_a_lake_travels_between_processes(lake: Lake) -> None:
    write_once(lake, "f", b"one")
    assert read_bytes(pickle.loads(pickle.dumps(lake)), "f") == b"one"


def test_staging_a_local_file_is_the_file(lake: Lake, tmp_path: Path) -> None:
    write_once(lake, "a/f", b"one")
    assert stage(lake, "a/f", tmp_path / "scratch") == lake.local_path("a/f")
    with pytest.raises(FileNotFoundError):
        stage(lake, "a/g", tmp_path / "scratch")


def test_a_staged_download_is_whole_verified_and_made_once(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(1_000_000)
    write_once(lake, "a/f.arrow", content)
    # The same bytes seen as a remote lake, in ranges far smaller than the file.
    monkeypatch.setattr(Lake, "local_path", lambda self, key: None)
    monkeypatch.setattr(storage, "STAGE_RANGE_BYTES", 70_001)
    with pytest.raises(OSError, match="sha256"):
        stage(lake, "a/f.arrow", tmp_path / "scratch", sha256="0" * 64)
    assert not list((tmp_path / "scratch").rglob("f.arrow"))
    with ThreadPoolExecutor(4) as threads:
        paths = set(threads.map(lambda _: stage(lake, "a/f.arrow", tmp_path / "scratch"), range(4)))
    (path,) = paths
    assert path.name == "f.arrow"
    assert path.read_bytes() == content
    inode = path.stat().st_ino
    assert stage(lake, "a/f.arrow", tmp_path / "scratch").stat().st_ino == inode


@pytest.mark.parametrize(
    "uri", ["/plain/path", "http://host/x", "s3:///x", "file:///tmp/a%25b", "file:///tmp/a%5B1%5D"]
)
def test_only_roots_that_every_reader_understands_are_taken(uri: str) -> None:
    with pytest.raises(ValueError, match="lake"):
        open_lake(uri)


@pytest.mark.parametrize("name", [b"new\nline.hdf5", b"not utf-8 \xff.hdf5"])
def test_a_name_that_is_no_key_hides_no_other_file(
    lake: Lake, root: Path, name: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    keys = ["landing/lab/a.hdf5", "landing/lab/b.hdf5", "landing/lab/inner/.hidden", "landing/lab/inner/c.hdf5"]
    written = {key: write_once(lake, key, key.encode()) for key in keys if "hidden" not in key}
    (root / "landing/lab/inner/.hidden").touch()
    before = list(list_files(lake, "landing"))
    (root / "landing/lab" / os.fsdecode(name)).touch()
    (root / "landing/lab/back").symlink_to(root / "landing")
    assert list(list_files(lake, "landing")) == before == list(written.values())
    assert [file.key for file in list_files(lake, "landing/lab", after=keys[0])] == [keys[1], keys[3]]
    assert "is passed over: its name cannot be kept" in caplog.text


def test_a_link_to_itself_hides_no_other_file(lake: Lake, root: Path) -> None:
    write_once(lake, "landing/lab/a.hdf5", b"a")
    (root / "landing/lab/loop.hdf5").symlink_to("loop.hdf5")
    assert [file.key for file in list_files(lake, "landing")] == ["landing/lab/a.hdf5"]


def every_call(lake: Lake, key: str, scratch: Path) -> list[Callable[[], object]]:
    """A call of each function that takes a key."""
    source = scratch / "source"
    source.write_bytes(b"one")
    return [
        lambda: head(lake, key),
        lambda: read_bytes(lake, key),
        lambda: read_range(lake, key, 0, 1),
        lambda: read_tail(lake, key, 1),
        lambda: sha256(lake, key),
        lambda: stage(lake, key, scratch / "staged"),
        lambda: write_once(lake, key, b"one"),
        lambda: put_file(lake, key, source),
        lambda: overwrite(lake, key, b"one"),
    ]


@pytest.mark.parametrize("key", NO_KEYS)
def test_what_is_no_key_is_refused_before_anything_is_touched(tmp_path: Path, key: str) -> None:
    lake = open_lake((tmp_path / "outer/lake").as_uri())
    calls = every_call(lake, key, tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for call in [*calls, lambda: lake.local_path(key)]:
        with pytest.raises(ValueError, match="cannot be a key"):
            call()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("prefix", [key for key in NO_KEYS if key not in ("", "a/")])
def test_what_can_be_no_folder_of_a_lake_is_not_listed(lake: Lake, prefix: str) -> None:
    with pytest.raises(ValueError, match="cannot be a key"):
        list(list_files(lake, prefix))


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files and folders that were made to last, in their order."""
    found: list[Path] = []
    fsync = os.fsync

    def recorded(fd: int) -> None:
        found.append(Path(f"/proc/self/fd/{fd}").readlink())
        fsync(fd)

    monkeypatch.setattr(os, "fsync", recorded)
    return found


@pytest.mark.parametrize("write", [write_once, overwrite])
def test_new_folders_last_through_a_power_cut_too(
    lake: Lake, root: Path, synced: list[Path], write: Callable[[Lake, str, bytes], object]
) -> None:
    write(lake, "a/b/c", b"one")
    assert [path for path in synced if path.is_dir()] == [root, root / "a", root / "a/b"]
    synced.clear()
    write(lake, "a/b/d", b"one")
    assert [path for path in synced if path.is_dir()] == [root / "a/b"]


def test_new_roots_and_runs_last_through_a_power_cut_too(tmp_path: Path, synced: list[Path]) -> None:
    open_lake((tmp_path / "new/lake").as_uri())
    assert synced == [tmp_path, tmp_path / "new"]
    synced.clear()
    write_intent(tmp_path / "runs", Intent("key", "demo", "file:///l", "m", "digest", {}, {}, "code", 0, "2026-01-01"))
    assert [path for path in synced if path.is_dir()] == [tmp_path, tmp_path / "runs", tmp_path / "runs/key"]


def test_folders_are_made_where_others_make_them_too(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: make_folders(tmp_path / "a/b/c/d"), range(64)))
    assert (tmp_path / "a/b/c/d").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_folders(tmp_path / "file/a")


def test_a_file_that_changes_while_it_is_staged_is_told_so(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = write_once(lake, "f", b"one")
    overwrite(lake, "f", b"two")
    monkeypatch.setattr(Lake, "local_path", lambda self, key: None)
    monkeypatch.setattr(storage, "head", lambda lake, key: before)
    with pytest.raises(OSError, match="f changed while it was read: read it again"):
        stage(lake, "f", tmp_path / "scratch")
    assert not list((tmp_path / "scratch").rglob("f"))


def test_a_disk_that_fails_is_told_as_an_error_of_the_system(lake: Lake, root: Path) -> None:
    write_once(lake, "a", b"one")
    with pytest.raises(StoreError, match=r"The lake failed on .*/a/b: .*Not a directory.* try again"):
        read_bytes(lake, "a/b")


def test_a_write_that_meets_another_is_to_be_tried_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def conflict(*_: object, **__: object) -> None:
        raise obstore.exceptions.AlreadyExistsError("409 ConditionalRequestConflict")

    monkeypatch.setattr(Lake, "local_path", lambda self, key: None)
    monkeypatch.setattr(obstore, "put", conflict)
    with pytest.raises(StoreError, match=r"Another is writing .*: try again"):
        write_once(lake, "a", b"one")


def test_a_lake_that_cannot_be_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="cannot be made: a file is there"):
        open_lake((tmp_path / "file").as_uri())
    with pytest.raises(ValueError, match="is none of them"):
        open_lake("file://relative/lake")

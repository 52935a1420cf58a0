"""A folder appears whole or not at all, and never over another."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from megahour.export.folder import appearing_folder
from megahour.export.model import ExportError


def write(folder: Path, name: str = "a/b") -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")


def test_it_appears_at_the_end(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    with appearing_folder(out) as folder:
        write(folder)
        assert not out.exists()
    assert (out / "a/b").read_text() == "x"
    assert [path.name for path in out.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), appearing_folder(tmp_path / "out") as folder:
        write(folder)
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught, appearing_folder(tmp_path / "out") as folder:
        write(folder)
        raise OSError(errno.ENOSPC, "No space left on device")
    assert str(caught.value) == (
        f"{tmp_path / 'out'} was not written: No space left on device. Nothing of it is left: make room, or choose "
        "another disk"
    )
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_refused_and_an_empty_folder_is_not(tmp_path: Path) -> None:
    write(tmp_path, "out/kept")
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("out", "file", "link"):
        with pytest.raises(ExportError, match="is not an empty folder") as caught, appearing_folder(tmp_path / name):
            pytest.fail("entered")
        assert caught.value.reason == "exists"
    assert (tmp_path / "out/kept").exists()
    (tmp_path / "empty").mkdir()
    with appearing_folder(tmp_path / "empty") as folder:
        write(folder)
    assert (tmp_path / "empty/a/b").exists()


def test_what_appeared_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    with pytest.raises(ExportError), appearing_folder(tmp_path / "out") as folder:
        write(folder)
        write(tmp_path / "out", "theirs")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["theirs"]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from megahour.export.folder import appearing_folder\n"
        "with appearing_folder(Path(sys.argv[1])) as folder: (folder / 'half').touch(); os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "out")])
    assert done.returncode == 9
    assert [path.name for path in tmp_path.iterdir()] == [".out.tmp"]
    with appearing_folder(tmp_path / "out") as folder:
        write(folder)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "a", "b"]


def test_two_at_once_do_not_mix(tmp_path: Path) -> None:
    with appearing_folder(tmp_path / "out") as folder:
        write(folder)
        with pytest.raises(ExportError, match="Another export") as caught, appearing_folder(tmp_path / "out"):
            pytest.fail("entered")
        assert caught.value.reason == "busy"
    assert (tmp_path / "out/a/b").exists()

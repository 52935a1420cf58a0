"""Landing: data before the file that announces it, no hidden or half-written files, nothing that landed changes."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import IO

import pytest

from megahour.landing import LandingError, land, plan_landing
from megahour.storage import list_files, open_lake, read_bytes


def dataset(root: Path) -> Path:
    folder = root / "g1"
    for name in ("meta/info.json", "meta/tasks.jsonl", "data/chunk-000/a.parquet", "videos/v.mp4", ".cache/x", "b.tmp"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def test_the_file_that_announces_a_dataset_lands_last(tmp_path: Path) -> None:
    keys = [arrival.key for arrival in plan_landing(dataset(tmp_path))]
    assert keys == [
        "landing/g1/data/chunk-000/a.parquet",
        "landing/g1/meta/tasks.jsonl",
        "landing/g1/videos/v.mp4",
        "landing/g1/meta/info.json",
    ]


def test_a_source_holds_many_folders(tmp_path: Path) -> None:
    assert plan_landing(dataset(tmp_path), "lab")[0].key == "landing/lab/g1/data/chunk-000/a.parquet"
    assert plan_landing(tmp_path / "g1" / "b.tmp".replace("b.tmp", "videos/v.mp4"), "lab")[0].key == "landing/lab/v.mp4"
    assert plan_landing(tmp_path / "g1/videos/v.mp4")[0].key == "landing/videos/v.mp4"


def test_files_are_copies_and_landing_again_touches_nothing(tmp_path: Path) -> None:
    lake = open_lake((tmp_path / "lake").as_uri())
    arrivals = plan_landing(dataset(tmp_path))
    assert all(arrival.copied for arrival in land(lake, arrivals))
    before = {file.key: (file.etag, file.modified_at) for file in list_files(lake, "landing")}
    (tmp_path / "g1/videos/v.mp4").touch()
    assert not any(arrival.copied for arrival in land(lake, plan_landing(tmp_path / "g1")))
    assert {file.key: (file.etag, file.modified_at) for file in list_files(lake, "landing")} == before
    with (tmp_path / "g1/videos/v.mp4").open("a") as video:
        video.write("changed in place")
    assert read_bytes(lake, "landing/g1/videos/v.mp4") == b"videos/v.mp4"
    with pytest.raises(LandingError, match=r"v\.mp4 differs from what landed before"):
        list(land(lake, plan_landing(tmp_path / "g1")))


def test_what_cannot_land_is_named(tmp_path: Path) -> None:
    with pytest.raises(LandingError, match="nothing at"):
        plan_landing(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(LandingError, match="no files"):
        plan_landing(tmp_path / "empty")
    with pytest.raises(LandingError, match="cannot be a source"):
        plan_landing(dataset(tmp_path), "../elsewhere")


@pytest.mark.parametrize("name", ["new\nline.hdf5", "not utf-8 \udcff.hdf5", "take#12"])
def test_a_name_that_cannot_be_kept_is_refused_before_anything_lands(tmp_path: Path, name: str) -> None:
    (dataset(tmp_path) / name).touch()
    with pytest.raises(LandingError, match=r"Nothing was copied: .*Rename it"):
        plan_landing(tmp_path / "g1")


def test_what_the_pipeline_would_pass_over_does_not_land(tmp_path: Path) -> None:
    with pytest.raises(LandingError, match="cannot be a source"):
        plan_landing(dataset(tmp_path), "lab.tmp")
    (tmp_path / "g1").rename(tmp_path / ".g1")
    with pytest.raises(LandingError, match="would be passed over: rename it"):
        plan_landing(tmp_path / ".g1", "lab")


def test_a_link_lands_under_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs/7f3a").write_text("content")
    (tmp_path / "demos").mkdir()
    (tmp_path / "demos/a.hdf5").symlink_to(tmp_path / "blobs/7f3a")
    (tmp_path / "latest").symlink_to(tmp_path / "demos")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert [each.key for each in plan_landing(tmp_path / "demos/a.hdf5")] == ["landing/demos/a.hdf5"]
    assert [each.key for each in plan_landing(tmp_path / "latest")] == ["landing/latest/a.hdf5"]
    assert [each.key for each in plan_landing(tmp_path / "demos/../demos")] == ["landing/demos/a.hdf5"]
    with pytest.raises(LandingError, match="nothing at"):
        plan_landing(tmp_path / "loop")


def test_a_full_disk_names_the_file_and_keeps_what_landed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = open_lake((tmp_path / "lake").as_uri())
    arrivals = plan_landing(dataset(tmp_path))
    whole = shutil.copyfileobj

    def full(source: IO[bytes], out: IO[bytes], length: int) -> None:
        if "v.mp4" in str(out.name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole(source, out, length)

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(LandingError, match=r"v\.mp4 could not be copied to .*: No space left on device"):
        list(land(lake, arrivals))
    assert [file.key for file in list_files(lake, "landing")] == [each.key for each in arrivals[:2]]


def test_what_says_how_to_read_a_source_lands_first(tmp_path: Path) -> None:
    folder = dataset(tmp_path)
    (folder / "source.yaml").write_text("robot: arm")
    keys = [arrival.key for arrival in plan_landing(folder)]
    assert (keys[0], keys[-1]) == ("landing/g1/source.yaml", "landing/g1/meta/info.json")


def test_a_source_yaml_that_nobody_would_read_does_not_land(tmp_path: Path) -> None:
    folder = dataset(tmp_path)
    (folder / "source.yaml").write_text("robot: arm")
    with pytest.raises(LandingError, match=r"as landing/franka/g1/source\.yaml, .* landing/franka/source\.yaml alone"):
        plan_landing(folder, "franka")
    assert [each.key for each in plan_landing(folder / "source.yaml", "franka")] == ["landing/franka/source.yaml"]
    (folder / "source.yaml").rename(folder / "meta/source.yaml")
    with pytest.raises(LandingError, match=r"--source g1`, then move it out of the folder"):
        plan_landing(folder)

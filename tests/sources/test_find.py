"""Recordings are found among landed files, whatever lies beside them."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from megahour.sources import Recording, SourceError, find_recordings, ids_of, read_recording, recording_id
from megahour.storage import list_files, open_lake, read_bytes
from tests.samples import copy_g1, write_aloha


def find(root: Path) -> list[Recording]:
    lake = open_lake(root.as_uri())
    return find_recordings(list_files(lake, "landing"), lambda key: read_bytes(lake, key))


def test_two_sources_in_one_landing_zone(tmp_path: Path) -> None:
    copy_g1(tmp_path / "landing/unitree/bottle", [2, 4])
    write_aloha(tmp_path / "landing/sim/press/episode_0.hdf5")
    write_aloha(tmp_path / "landing/sim/press/.episode_1.hdf5.tmp")
    (tmp_path / "landing/sim/README.md").write_text("two episodes")
    found = find(tmp_path)
    assert [(r.uri, r.format, r.source, len(r.files), r.missing) for r in found] == [
        ("landing/sim/press/episode_0.hdf5", "hdf5", "sim", 1, ()),
        ("landing/unitree/bottle#episode=2", "lerobot_v21", "unitree", 2, ()),
        ("landing/unitree/bottle#episode=4", "lerobot_v21", "unitree", 2, ()),
    ]
    assert found[0].size_bytes == (tmp_path / found[0].uri).stat().st_size
    assert find_recordings([], lambda key: b"") == []


def test_a_dataset_whose_metadata_has_not_come_yet_is_passed_over(tmp_path: Path) -> None:
    copy_g1(tmp_path / "landing/g1", [0])
    (tmp_path / "landing/g1/meta/info.json").unlink()
    assert find(tmp_path) == []


def test_identity_is_the_content(tmp_path: Path) -> None:
    first = write_aloha(tmp_path / "landing/sim/a.hdf5", seed=1)
    (tmp_path / "landing/other").mkdir()
    shutil.copyfile(first, tmp_path / "landing/other/b.hdf5")
    write_aloha(tmp_path / "landing/sim/c.hdf5", seed=2)
    local = tmp_path.joinpath
    ids = {recording.uri.rsplit("/", 1)[1]: recording_id(recording, local) for recording in find(tmp_path)}
    assert ids["a.hdf5"] == ids["b.hdf5"] != ids["c.hdf5"]
    assert all(len(name) == 32 and int(name, 16) >= 0 for name in ids.values())


def test_identity_of_an_episode_of_a_dataset(tmp_path: Path) -> None:
    copy_g1(tmp_path / "landing/g1", [0, 1])
    copy_g1(tmp_path / "landing/elsewhere/again", [0])
    local = tmp_path.joinpath
    again, first, second = find(tmp_path)
    before = recording_id(first, local)
    assert recording_id(again, local) == before != recording_id(second, local)
    meta = tmp_path / "landing/g1/meta/episodes.jsonl"
    meta.write_text(meta.read_text().replace("yellow", "green"))
    assert recording_id(find(tmp_path)[1], local) != before, "another task is another episode"


def test_fingerprint_follows_the_files(tmp_path: Path) -> None:
    copy_g1(tmp_path / "landing/g1", [0])
    (before,) = find(tmp_path)
    assert before.fingerprint == find(tmp_path)[0].fingerprint
    (tmp_path / before.files[1].key).unlink()
    (after,) = find(tmp_path)
    assert after.missing == (before.files[1].key,)
    assert after.fingerprint != before.fingerprint


@pytest.mark.parametrize(
    ("info", "reason", "words"),
    [
        ("{", "unreadable", "metadata of landing/g1 cannot be used"),
        ('{"codebase_version": "v4.0"}', "unknown_format", "version v4.0"),
        ('{"codebase_version": "v2.1"}', "unreadable", "KeyError"),
        (None, "unreadable", "KeyError: 'data_path'"),
        ({"chunks_size": 0}, "unreadable", "ZeroDivisionError"),
        ({"chunks_size": math.inf}, "unreadable", "OverflowError"),
        ({"fps": math.nan}, "feature_mismatch", "fps nan: it must be a positive number"),
        ({"fps": math.inf}, "feature_mismatch", "fps inf: it must be a positive number"),
        ("[" * 100_000, "unreadable", "RecursionError"),
    ],
)
def test_a_dataset_with_broken_metadata_is_held_with_a_reason(
    tmp_path: Path, info: str | dict[str, float] | None, reason: str, words: str
) -> None:
    copy_g1(tmp_path / "landing/g1", [0])
    path = tmp_path / "landing/g1/meta/info.json"
    if info is None:
        kept = json.loads(path.read_text())
        del kept["data_path"]
        info = json.dumps(kept)
    if isinstance(info, dict):
        info = json.dumps(json.loads(path.read_text()) | info)
    path.write_text(info)
    (recording,) = find(tmp_path)
    assert recording.uri == "landing/g1"
    with pytest.raises(SourceError, match=words) as caught:
        list(read_recording(recording, tmp_path.joinpath))
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("talk.mcap", "unreadable"),
        ("x.tfrecord-00000-of-00001", "missing_file"),
        ("old.bag", "unknown_format"),
        ("old.db3", "unknown_format"),
    ],
)
def test_what_cannot_be_read_is_held_not_lost(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "landing/ros").mkdir(parents=True)
    (tmp_path / "landing/ros" / name).write_bytes(b"bytes")
    (recording,) = find(tmp_path)
    with pytest.raises(SourceError) as caught:
        list(read_recording(recording, tmp_path.joinpath))
    assert caught.value.reason == reason
    assert recording_id(recording, tmp_path.joinpath)


def test_other_words_about_a_recording_are_another_reading_of_one_content(tmp_path: Path) -> None:
    copy_g1(tmp_path / "landing/g1", [0])
    local = tmp_path.joinpath
    before = ids_of(find(tmp_path)[0], local)
    info = tmp_path / "landing/g1/meta/info.json"
    plain = info.read_text()
    seen = {before.recording_id}
    for old, new in (("Unitree_G1_Inspire", "franka"), ("kLeftElbow", "left_elbow"), ('"fps": 30', '"fps": 25')):
        assert old in plain
        info.write_text(plain.replace(old, new))
        after = ids_of(find(tmp_path)[0], local)
        assert after.content_id == before.content_id
        seen.add(after.recording_id)
    (tmp_path / "landing/g1/source.yaml").write_text("task: fold")
    info.write_text(plain)
    after = ids_of(find(tmp_path)[0], local)
    assert after.content_id == before.content_id
    assert len({*seen, after.recording_id}) == 5

"""A LeRobot dataset holds what the episodes hold: values bit for bit, and the very pictures that our reader decodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow.parquet as pq
import pytest

from megahour.episode.model import Camera, Coded, ExtraMessage, ExtraTopic, RawEpisode, Series
from megahour.episode.profile import MIXED, Rendition
from megahour.episode.reader import open_episode
from megahour.export import lerobot, survey
from megahour.export.choose import of_recipe, of_rows
from megahour.export.files import Limits
from megahour.export.lerobot import export_lerobot
from megahour.export.model import ExportError, Wanted
from megahour.export.statistics import QUANTILES
from megahour.export.survey import Candidate, agree, examine
from megahour.manifest.build import build_manifest
from megahour.manifest.recipe import Recipe
from megahour.sources import find_recordings, read_recording
from megahour.storage import Lake, list_files, read_bytes
from megahour.warehouse.tables import append
from tests.export.lakes import decoded, export_all, put_episode, read_dataset
from tests.lake import Row, make_lake
from tests.manifest.test_build import a_recipe
from tests.samples import camera, pictures, raw_episode, series

Put = Callable[..., Row]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return make_lake(tmp_path / "lake")


@pytest.fixture
def put(lake: Lake, tmp_path: Path) -> Put:
    def put(number: int, episode: RawEpisode, **more: object) -> Row:
        return put_episode(lake, tmp_path, number, episode, **more)  # type: ignore[arg-type]

    return put


Topic = TypeVar("Topic", Camera, Series)


def delayed(topic: Topic, by_ns: int) -> Topic:
    return replace(topic, times_ns=topic.times_ns + by_ns)


def test_values_pictures_and_tasks_come_back(lake: Lake, put: Put, tmp_path: Path) -> None:
    raws = [replace(raw_episode(frames=n), task=task) for n, task in ((24, "press"), (31, "Öffne sie"), (7, "press"))]
    rows = [put(i, raw) for i, raw in enumerate(raws)]
    done = export_all(tmp_path / "out", lake, rows)
    assert [(each.episode_id, each.frames) for each in done] == [("e00000", 24), ("e00001", 31), ("e00002", 7)]

    dataset = read_dataset(tmp_path / "out")
    assert dataset.rows["index"].to_pylist() == list(range(62))
    assert [row["tasks"] for row in dataset.episodes] == [["press"], ["Öffne sie"], ["press"]]
    assert dataset.rows["task_index"].to_pylist() == [0] * 24 + [1] * 31 + [0] * 7
    for i, (raw, row) in enumerate(zip(raws, rows, strict=True)):
        reader = open_episode(lake, row["uri"])
        for topic in raw.series:
            feature = "action" if topic.name == "action" else f"observation.{topic.name}"
            assert dataset.values(feature, i).tobytes() == topic.values.tobytes()
            assert dataset.info["features"][feature]["names"] == list(topic.names)
        frames = len(raw.cameras[0].times_ns)
        assert dataset.values("frame_index", i)[:, 0].tolist() == list(range(frames))
        assert dataset.values("timestamp", i)[:, 0].tolist() == (np.arange(frames) / 30).astype(np.float32).tolist()
        for each in raw.cameras:
            assert np.array_equal(dataset.frames(each.name, i), decoded(reader, each.name))
    info = dataset.info
    totals = [info[f"total_{name}"] for name in ("episodes", "frames", "tasks")]
    assert (totals, info["fps"], info["robot_type"], info["splits"]) == ([3, 62, 2], 30, "sawyer", {"train": "0:3"})
    assert info["features"]["observation.images.front"]["shape"] == [48, 64, 3]
    assert info["features"]["observation.images.front"]["info"]["video.pix_fmt"] == "yuv420p"
    assert "megahour.time_s" not in info["features"]
    stats = json.loads((tmp_path / "out/meta/stats.json").read_text())
    assert list(stats) == list(info["features"])
    assert stats["action"]["min"] == np.concatenate([raw.series[1].values for raw in raws]).min(axis=0).tolist()


def test_what_it_came_from_is_in_the_dataset(lake: Lake, put: Put, tmp_path: Path) -> None:
    rows = [put(i, replace(raw_episode(), success=i % 4 != 0)) for i in range(12)]
    append(lake, "episodes", rows, once="a")
    manifest = build_manifest(lake, replace_cameras(a_recipe("success", validation_share=0.3), "wrist"))
    ids = {split: manifest.rows(split)["episode_id"].to_pylist() for split in ("train", "validation")}
    assert len(ids["train"]) + len(ids["validation"]) == 9 and ids["validation"]
    for split, expected in (*ids.items(), ("all", ids["train"] + ids["validation"])):
        choice = of_recipe(lake, "demo", split, tmp_path)  # type: ignore[arg-type]
        assert choice.cameras == ("wrist",)
        export_all(tmp_path / split, lake, choice, Wanted(cameras=choice.cameras))
        details = json.loads((tmp_path / split / "meta/megahour.json").read_text())
        assert [each["episode_id"] for each in details["episodes"]] == expected
        assert {each["sha256"] for each in details["episodes"]} <= {row["sha256"] for row in rows}
        assert (details["recipe"], details["manifest"]) == ("demo", manifest.header.digest)
        assert details["left_out"] == {"front": len(expected)}
        info = read_dataset(tmp_path / split).info
        assert info["megahour"]["manifest"] == manifest.header.digest
        assert [name for name in info["features"] if "images" in name] == ["observation.images.wrist"]
    assert info["splits"] == {"train": f"0:{len(ids['train'])}", "validation": f"{len(ids['train'])}:9"}
    with pytest.raises(ExportError, match="no manifest of other; recipes with manifests: demo"):
        of_recipe(lake, "other", "all", tmp_path)


def test_our_own_importer_reads_it(lake: Lake, put: Put, tmp_path: Path) -> None:
    raws = [replace(raw_episode(frames=n), task=task) for n, task in ((24, "press"), (31, "Öffne sie"))]
    export_all(tmp_path / "lake/landing/again", lake, [put(i, raw) for i, raw in enumerate(raws)])
    recordings = find_recordings(list_files(lake, "landing"), lambda key: read_bytes(lake, key))
    found = [each for one in recordings for each in read_recording(one, lambda key: tmp_path / "lake" / key)]
    assert [(each.task, each.robot, each.rate_hz) for each in found] == [(raw.task, "sawyer", 30.0) for raw in raws]
    for raw, again in zip(raws, found, strict=True):
        series = {each.name: each for each in again.series}
        for topic in raw.series:
            assert series[topic.name].values.tobytes() == topic.values.tobytes()
            assert series[topic.name].names == topic.names
        assert {each.name: len(each.times_ns) for each in again.cameras} == dict.fromkeys(
            ("front", "wrist"), len(raw.cameras[0].times_ns)
        )


def replace_cameras(recipe: Recipe, *cameras: str) -> Recipe:
    return recipe.model_copy(update={"observation": recipe.observation.model_copy(update={"cameras": cameras})})


def test_series_of_other_rates_have_the_row_nearest_in_time(lake: Lake, put: Put, tmp_path: Path) -> None:
    fast = series("state", 240, 4, rate_hz=100.0, dtype=np.float64)
    slow = series("torque", 12, 1, rate_hz=5.0)
    raw = replace(raw_episode(frames=60), series=(fast, slow))
    export_all(tmp_path / "out", lake, [put(0, raw)])
    dataset = read_dataset(tmp_path / "out")
    times = raw.cameras[0].times_ns
    for topic in (fast, slow):
        expected = topic.values[np.abs(topic.times_ns[None] - times[:, None]).argmin(axis=1)]
        assert dataset.values(f"observation.{topic.name}", 0).tobytes() == expected.tobytes()
    assert dataset.info["features"]["observation.torque"]["shape"] == [1]
    assert str(dataset.rows.schema.field("observation.torque").type) == "float"


def test_times_off_the_grid_are_kept_beside_it(lake: Lake, put: Put, tmp_path: Path) -> None:
    times = np.cumsum(np.random.default_rng(0).integers(31_000_000, 36_000_000, 40)) + 1_700_000_000 * 10**9
    shaky = camera("front", pictures(40, 32, 32))
    raw = replace(raw_episode(), cameras=(replace(shaky, times_ns=times),), series=(series("state", 40, 2),))
    steady = replace(raw, cameras=(shaky,))
    export_all(tmp_path / "out", lake, [put(0, raw), put(1, steady)])
    dataset = read_dataset(tmp_path / "out")
    assert np.abs(dataset.values("megahour.time_s", 0)[:, 0] * 1e9 - (times - times[0])).max() < 1
    assert dataset.values("megahour.time_s", 1)[:, 0] == pytest.approx((np.arange(40) / 30).tolist())
    for i in range(2):
        assert dataset.values("timestamp", i)[:, 0].tolist() == (np.arange(40) / 30).astype(np.float32).tolist()
        assert dataset.frames("front", i).shape[0] == 40
    details = json.loads((tmp_path / "out/meta/megahour.json").read_text())["episodes"]
    assert [(each["on_grid"], each["start_ns"]) for each in details] == [(False, int(times[0])), (True, 0)]


def test_a_camera_that_began_earlier_is_cut_at_the_first_row(
    lake: Lake, put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first pictures stay in the video, for the later ones are coded after them, and belong to no row."""
    monkeypatch.setattr(lerobot, "BLOCK_PICTURES", 7)
    early, late = camera("early", pictures(37, 32, 32, 1)), camera("late", pictures(24, 32, 32, 2))
    raw = replace(raw_episode(), cameras=(early, delayed(late, int(early.times_ns[13]))), series=())
    raw = replace(raw, series=(delayed(series("state", 24, 2), int(early.times_ns[13])),))
    row = put(0, raw)
    export_all(tmp_path / "out", lake, [row, {**row, "episode_id": "again"}])
    dataset, reader = read_dataset(tmp_path / "out"), open_episode(lake, row["uri"])
    for i in range(2):
        assert np.array_equal(dataset.frames("early", i), decoded(reader, "early")[13:])
        assert np.array_equal(dataset.frames("late", i), decoded(reader, "late"))
        assert dataset.values("observation.state", i).tobytes() == raw.series[0].values.tobytes()
    assert dataset.episodes[0]["videos/observation.images.early/from_timestamp"] == pytest.approx(3 / 30)


def test_an_episode_whose_pictures_would_not_be_found_is_refused(
    lake: Lake, put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early, late = camera("early", pictures(37, 32, 32, 1)), camera("late", pictures(24, 32, 32, 2))
    row = put(0, replace(raw_episode(), cameras=(early, delayed(late, int(early.times_ns[13])))))
    assert examined(lake, row).refusal == "", "its rows end at 27/30 s of the video"
    monkeypatch.setattr(survey, "MOST_VIDEO_S", 0.9)
    assert examined(lake, row).refusal == ""
    monkeypatch.setattr(survey, "MOST_VIDEO_S", 0.8)
    assert examined(lake, row).refusal.startswith(
        "too_long: its rows end at 1 s of the video of 'early', which begins 3"
    )
    assert refusal(lake, [row]).reason == "unfit"
    assert examined(lake, put(1, raw_episode(frames=60))).refusal == "", "its rows begin with its videos"


def test_an_episode_without_a_value_of_a_column_leaves_the_datasets_statistics_alone(
    lake: Lake, put: Put, tmp_path: Path
) -> None:
    def episode(value: float) -> RawEpisode:
        plain = series("torque", 24, 1)
        return replace(raw_episode(), series=(replace(plain, values=np.full((24, 1), value, np.float32)),))

    export_all(tmp_path / "out", lake, [put(0, episode(10)), put(1, episode(np.nan))])
    found = json.loads((tmp_path / "out/meta/stats.json").read_text())["observation.torque"]
    assert found == {"count": [48], "std": [0.0]} | {key: [10.0] for key in ("min", "max", "mean", *QUANTILES)}


def test_odd_pictures_have_the_size_that_they_decode_to(lake: Lake, put: Put, tmp_path: Path) -> None:
    raw = replace(raw_episode(), cameras=(camera("front", pictures(9, 33, 47)),), series=(series("state", 9, 2),))
    row = put(0, raw)
    export_all(tmp_path / "out", lake, [row])
    dataset = read_dataset(tmp_path / "out")
    assert dataset.info["features"]["observation.images.front"]["shape"] == [34, 48, 3]
    found = dataset.frames("front", 0)
    assert found.shape == (9, 34, 48, 3)
    assert np.array_equal(found, decoded(open_episode(lake, row["uri"]), "front"))


def test_full_files_are_followed_by_others(lake: Lake, put: Put, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (30, 96, 96, 3), np.uint8)
    values = series("state", 30, 2000)
    raw = replace(raw_episode(), cameras=(camera("front", noise),), series=(values,))
    rows = [{**put(0, raw), "episode_id": f"e{i}"} for i in range(14)]
    export_all(tmp_path / "out", lake, rows, limits=Limits(data_mib=1, video_mib=1, files_per_chunk=2))
    dataset = read_dataset(tmp_path / "out")
    names = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("chunk-*/*.mp4"))
    assert len(names) > 2 and names[2] == "videos/observation.images.front/chunk-001/file-000.mp4"
    assert len(list((tmp_path / "out/data").rglob("*.parquet"))) > 1
    expected = decoded(open_episode(lake, rows[0]["uri"]), "front")
    for i in (0, 1, 6, 13):
        assert np.array_equal(dataset.frames("front", i), expected)
        assert dataset.values("observation.state", i).tobytes() == values.values.tobytes()
        place = (dataset.episodes[i]["data/chunk_index"], dataset.episodes[i]["data/file_index"])
        path = tmp_path / "out" / dataset.info["data_path"].format(chunk_index=place[0], file_index=place[1])
        assert i in pq.read_table(path)["episode_index"].to_pylist()


def test_smaller_renditions_and_other_topics_stay_behind(lake: Lake, put: Put, tmp_path: Path) -> None:
    topic = ExtraTopic("gripper_open", "json", "state", "jsonschema", b"{}")
    raw = replace(
        raw_episode(size=(64, 96)),
        extras=(topic,),
        extra_messages=lambda: iter([ExtraMessage("gripper_open", 5, b'{"open": true}')]),
    )
    row = put(0, raw, profile=replace(MIXED, rendition=Rendition(32, 48)))
    assert open_episode(lake, row["uri"]).cameras["front"].renditions
    export_all(tmp_path / "out", lake, [row])
    features = read_dataset(tmp_path / "out").info["features"]
    assert features["observation.images.front"]["shape"] == [64, 96, 3]
    assert len([name for name in features if "images" in name]) == 2
    assert json.loads((tmp_path / "out/meta/megahour.json").read_text())["left_out"] == {"gripper_open": 1}


def test_names_with_slashes_lose_them_and_may_not_meet(lake: Lake, put: Put, tmp_path: Path) -> None:
    one, other = camera("head/left", pictures(5, 32, 32)), camera("head.left", pictures(5, 32, 32))
    raw = replace(raw_episode(), cameras=(one,), series=(series("state", 5, 2),))
    export_all(tmp_path / "out", lake, [put(0, raw)])
    assert "observation.images.head.left" in read_dataset(tmp_path / "out").info["features"]
    with pytest.raises(ExportError, match=r"both be called observation\.images\.head\.left"):
        export_all(tmp_path / "two", lake, [put(1, replace(raw, cameras=(one, other)))])
    assert not (tmp_path / "two").exists()


def test_episodes_without_cameras_are_tables(lake: Lake, put: Put, tmp_path: Path) -> None:
    raw = replace(raw_episode(), cameras=(), rate_hz=30.0)
    export_all(tmp_path / "out", lake, [put(0, raw)])
    dataset = read_dataset(tmp_path / "out")
    assert dataset.info["video_path"] is None
    assert dataset.values("action", 0).tobytes() == raw.series[1].values.tobytes()


def examined(lake: Lake, row: Row) -> Candidate:
    (chosen,) = of_rows([row])
    return examine(lake, chosen, Wanted())


def refusal(lake: Lake, rows: list[Row], wanted: Wanted | None = None) -> ExportError:
    with pytest.raises(ExportError) as caught:
        agree(examine(lake, each, wanted or Wanted()) for each in of_rows(rows))
    return caught.value


def test_episodes_that_differ_are_named_with_what_differs(lake: Lake, put: Put) -> None:
    alike = [put(i, raw_episode()) for i in range(5)]
    small = put(5, raw_episode(size=(32, 32)))
    slow = put(
        6, replace(raw_episode(), cameras=tuple(camera(c, pictures(24, 48, 64), 10) for c in ("front", "wrist")))
    )
    wide = put(7, replace(raw_episode(), series=(series("state", 24, 9), series("action", 24, 3))))
    one_eyed = put(8, raw_episode(cameras=("front",)))
    named = put(
        9,
        replace(
            raw_episode(), series=tuple(replace(each, names=("x", *each.names[1:])) for each in raw_episode().series)
        ),
    )
    five = "e00000, e00001, e00002, ..."
    for row, said in (
        (small, f"camera 'front' is 64x48 in 5 ({five}), 32x32 in 1 (e00005)"),
        (slow, f"fps is 30 in 5 ({five}), 10 in 1 (e00006)"),
        (wide, f"series 'state' is 4 float32 in 5 ({five}), 9 float32 in 1 (e00007)"),
        (one_eyed, f"camera 'wrist' is 64x48 in 5 ({five}), none in 1 (e00008)"),
        (named, f"column 0 of 'action' is 'action_0' in 5 ({five}), 'x' in 1 (e00009). Choose"),
    ):
        error = refusal(lake, [*alike, row])
        assert error.reason == "mixed" and said in str(error) and "recipe's filter" in str(error)
    assert (
        agree(examine(lake, each, Wanted(cameras=("front",))) for each in of_rows([alike[0], one_eyed])).off_grid == 0
    )
    assert agree(examine(lake, each, Wanted(fps=30)) for each in of_rows([alike[0], slow])).off_grid == 1


def test_episodes_that_cannot_be_exported_are_named_with_the_reason(lake: Lake, put: Put, tmp_path: Path) -> None:
    good = put(0, raw_episode())
    fast = put(1, replace(raw_episode(), cameras=(camera("fast", pictures(72, 32, 32), 90), raw_episode().cameras[0])))
    damaged = put(2, raw_episode())
    (tmp_path / "lake" / damaged["uri"]).write_bytes(b"nothing")
    error = refusal(lake, [good, fast, damaged])
    assert error.reason == "unfit"
    assert str(error).startswith("2 of 3 episodes cannot be exported: e00001: unaligned: the camera 'fast' has 72")
    assert "e00002: truncated: " in str(error) and "--camera" in str(error)
    assert "no camera 'rear', only front, wrist" in str(refusal(lake, [good], Wanted(cameras=("rear",))))
    assert "no series 'torque', only state, action" in str(refusal(lake, [good], Wanted(series=("torque",))))
    assert refusal(lake, []).reason == "empty"
    many = [Candidate(f"e{i}", refusal="too dark") for i in range(100)]
    with pytest.raises(ExportError, match=r"^100 of 100 episodes .*e4: too dark; \.\.\.\. Choose"):
        agree(many)


def test_pictures_stored_as_jpeg_are_no_video(lake: Lake, put: Put) -> None:
    import io

    from PIL import Image

    def jpeg(picture: np.ndarray) -> bytes:
        out = io.BytesIO()
        Image.fromarray(picture).save(out, "JPEG")
        return out.getvalue()

    units = [jpeg(picture) for picture in pictures(6, 32, 32)]
    coded = replace(camera("front", pictures(6, 32, 32)), coded=Coded("jpeg", lambda: iter(units)))
    raw = replace(raw_episode(), cameras=(coded,), series=(series("state", 6, 2),))
    error = refusal(lake, [put(0, raw, profile=replace(MIXED, name="as_it_came", pictures="as_coded"))])
    assert "not_video: its profile 'as_it_came' stores the camera 'front' as single JPEG pictures" in str(error)


def test_an_episode_of_another_shape_than_was_agreed_ends_the_export(lake: Lake, put: Put, tmp_path: Path) -> None:
    agreed = agree(examine(lake, each, Wanted()) for each in of_rows([put(0, raw_episode())]))
    other = of_rows([put(1, raw_episode(size=(32, 32)))])
    with pytest.raises(ExportError, match="e00001 is not what it was"):
        list(export_lerobot(tmp_path / "out", lake, other, agreed))
    assert not (tmp_path / "out").exists()


def test_an_export_that_ends_early_leaves_nothing(lake: Lake, put: Put, tmp_path: Path) -> None:
    rows = [put(i, raw_episode()) for i in range(3)]
    choice = of_rows(rows)
    agreed = agree(examine(lake, each, Wanted()) for each in choice)
    before = sorted(path.name for path in tmp_path.iterdir())
    written = export_lerobot(tmp_path / "out", lake, choice, agreed)
    next(written)
    assert not (tmp_path / "out").exists()
    written.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == before

    path = tmp_path / "lake" / rows[2]["uri"]
    good = path.read_bytes()
    path.write_bytes(good[:3000] + bytes(64) + good[3064:])
    with pytest.raises(Exception, match="e00002"):
        export_all(tmp_path / "out", lake, choice)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    with pytest.raises(ExportError, match="is not an empty folder"):
        export_all(tmp_path / "lake", lake, of_rows(rows[:2]))

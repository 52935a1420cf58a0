"""A profile is data: groups, lengths and settings, from a name or a file; what cannot be is refused with a reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megahour.episode.model import EpisodeError, RawEpisode
from megahour.episode.profile import MIXED, PROFILES, WORLD, Profile, ProfileError, Rendition, load_profile
from megahour.episode.ranges import FileBytes
from megahour.episode.reader import EpisodeReader, open_episode_file
from megahour.episode.sample import Query, SeriesQuery
from megahour.episode.writer import write_episode
from tests.samples import FACTS, CountingBytes, camera, number_of, numbered, random_series, raw_episode, series

MS = 1_000_000


def profile_file(folder: Path, text: str) -> str:
    path = folder / "lab.toml"
    path.write_text(text)
    return str(path)


def test_profiles_by_name() -> None:
    for name, profile in PROFILES.items():
        assert load_profile(name) == profile
        assert profile.name == name
    with pytest.raises(
        ProfileError, match=r"no profile 'tiny': choose vla, mixed, world.*, or a file that ends in \.toml"
    ):
        load_profile("tiny")


def test_a_file_says_what_differs_from_mixed(tmp_path: Path) -> None:
    assert load_profile(profile_file(tmp_path, "")) == replace(MIXED, name="lab")
    said = """
        gop = 12
        crf = 17.5
        preset = "fast"
        x264 = "aq-mode=0"
        chunk_bytes = 4096
        pictures = "as_coded"
        rendition = { height = 96, width = 128 }

        [groups]
        eyes = ["/camera/head*"]
        hands = ["/camera/*"]
        small = ["/rendition/*"]
        rest = ["*"]
    """
    assert load_profile(profile_file(tmp_path, said)) == Profile(
        name="lab",
        gop=12,
        crf=17.5,
        preset="fast",
        x264="aq-mode=0",
        chunk_bytes=4096,
        groups={
            "eyes": ("/camera/head*",),
            "hands": ("/camera/*",),
            "small": ("/rendition/*",),
            "rest": ("*",),
        },
        pictures="as_coded",
        rendition=Rendition(96, 128, 20.0),
    )


def test_a_file_may_have_another_base(tmp_path: Path) -> None:
    said = 'base = "world"\ncrf = 14\nrendition = { height = 96, width = 128, crf = 30 }'
    expected = replace(WORLD, name="lab", crf=14, rendition=Rendition(96, 128, 30))
    assert load_profile(profile_file(tmp_path, said)) == expected


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("gop = ", "cannot be read"),
        ('base = "fast"', "base is 'fast', and must be one of vla, mixed, world"),
        ("base = 3", "base is 3"),
        ('name = "x"', "says name; a profile may say base, chunk_bytes, crf"),
        ("gopp = 3\ncfr = 1", "says cfr, gopp;"),
        ("gop = 0", "gop must be a number from 1 to 10000, and is 0"),
        ("gop = 2.5", "gop must be a number"),
        ("gop = true", "gop must be a number from 1 to 10000, and is True"),
        ('gop = "3"', "gop must be a number"),
        ("gop = 10001", "gop must be a number"),
        ("crf = 52", "crf must be a number from 0 to 51, and is 52"),
        ("crf = -0.5", "crf must be a number"),
        ("crf = nan", "crf must be a number"),
        ("chunk_bytes = 1023", "chunk_bytes must be a number from 1024"),
        ("preset = 3", "preset must be text"),
        ("x264 = ['aq-mode=0']", "x264 must be text"),
        ('pictures = "jpeg"', "pictures must be 'h264' or 'as_coded', and is 'jpeg'"),
        ("rendition = 3", "rendition must be a table of height, width and, if wanted, crf"),
        ("rendition = { height = 96 }", "rendition must be a table"),
        ("rendition = { height = 96, width = 128, gop = 3 }", "rendition must be a table"),
        ("rendition = { height = 14, width = 128 }", "height must be a number from 16 to 8192, and is 14"),
        ("rendition = { height = 96, width = 9000 }", "width must be a number"),
        ("rendition = { height = 97, width = 128 }", "the rendition's height must be even, and is 97"),
        ("rendition = { height = 96, width = 128, crf = 60 }", "crf must be a number from 0 to 51, and is 60"),
        ("groups = 3", "groups must be a table of patterns by group"),
        ('groups = { messages = ["*"] }', "none of them called 'messages'"),
        ('groups = { all = "*" }', "the group all must be a list of patterns of topics, such as '/camera/\\*'"),
        ("groups = { all = [1] }", "the group all must be a list"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, said: str, reason: str) -> None:
    with pytest.raises(ProfileError, match=rf"lab\.toml.*{reason}"):
        load_profile(profile_file(tmp_path, said))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"none\.toml cannot be read: .*No such file"):
        load_profile(str(tmp_path / "none.toml"))
    (tmp_path / "lab.toml").write_bytes(b"gop = \xff")
    with pytest.raises(ProfileError, match="cannot be read"):
        load_profile(str(tmp_path / "lab.toml"))


def an_episode() -> RawEpisode:
    return replace(
        raw_episode(),
        cameras=tuple(camera(name, numbered(60)) for name in ("head", "left", "right")),
        series=(
            random_series("state", 200, 60),
            random_series("action", 200, 60, seed=1),
            random_series("force", 200, 60, seed=2),
        ),
    )


PER_CAMERA = {"head": ("/camera/head",), "left": ("/camera/left",), "right": ("/camera/right",), "values": ("*",)}
HANDS = {"eyes": ("/camera/h*",), "hands": ("/camera/*",), "touch": ("/f?rce",), "robot": ("/state", "/action")}


def test_a_topic_belongs_to_the_first_group_that_takes_it() -> None:
    profile = replace(MIXED, groups=HANDS)
    topics = ("/camera/head", "/camera/left", "/force", "/state")
    assert [profile.group_of(topic) for topic in topics] == ["eyes", "hands", "touch", "robot"]
    with pytest.raises(ProfileError, match=r"No group of the profile 'mixed' takes the topic /speed: end with a group"):
        profile.group_of("/speed")


@pytest.mark.parametrize(
    ("groups", "query", "reads"),
    [
        (PER_CAMERA, Query({"left": (0,)}), 1),
        (PER_CAMERA, Query({"head": (0,), "left": (0,), "right": (0,)}), 3),
        (PER_CAMERA, Query({"head": (0,)}, series={"state": SeriesQuery((0,)), "force": SeriesQuery((0,))}), 2),
        (HANDS, Query({"left": (0,), "right": (0,)}, series={"force": SeriesQuery((0,))}), 2),
        (HANDS, Query({"head": (0,), "right": (0,)}, series={n: SeriesQuery((0,)) for n in ("state", "force")}), 4),
    ],
)
def test_groups_of_one_own_decide_what_is_read_together(
    tmp_path: Path, groups: dict[str, tuple[str, ...]], query: Query, reads: int
) -> None:
    write_episode(tmp_path / "e", an_episode(), FACTS, replace(MIXED, groups=groups))
    source = CountingBytes(FileBytes(tmp_path / "e"))
    found = EpisodeReader(source).sample(500 * MS, query)
    assert [len(call) for call in source.reads] == [reads]
    assert {number_of(each.frames[0]) for each in found.pictures.values()} == {15}
    for name, rows in found.series.items():
        topic = next(each for each in an_episode().series if each.name == name)
        assert rows.values.tobytes() == topic.values[50].tobytes()


def test_a_camera_alone_in_its_group_brings_no_other(tmp_path: Path) -> None:
    write_episode(tmp_path / "e", an_episode(), FACTS, replace(MIXED, groups=PER_CAMERA))
    source = CountingBytes(FileBytes(tmp_path / "e"))
    reader = EpisodeReader(source)
    reader.frames("left", range(60))
    ((start, end),) = source.reads[0]
    stored = {each.name: each for each in reader.index.cameras}["left"]
    assert (start, end) == (stored.offsets[0], stored.offsets[-1] + stored.lengths[-1])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"groups": {"all": ("*",)}}, "puts cameras and series together into 'all'"),
        ({"groups": {"eyes": ("/camera/head", "/state"), "rest": ("*",)}}, "puts cameras and series together into"),
        (
            {"groups": {"pictures": ("/camera/*", "/rendition/*"), "rest": ("*",)}, "rendition": Rendition(16, 16)},
            "puts cameras and renditions together into 'pictures'",
        ),
        (
            {"groups": {"cameras": ("/camera/*",), "rest": ("*",)}, "rendition": Rendition(16, 16)},
            "puts renditions and series together into 'rest'",
        ),
        ({"groups": {"cameras": ("/camera/*",), "control": ("/state",)}}, "takes the topic /action"),
        ({"groups": {"cameras": ("/camera/head",)}}, "takes the topic /camera/left"),
    ],
)
def test_groups_that_do_not_fit_the_topics_are_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(EpisodeError, match=reason) as caught:
        write_episode(tmp_path / "e", an_episode(), FACTS, replace(MIXED, **changes))
    assert caught.value.reason == "invalid"
    assert list(tmp_path.iterdir()) == []


def test_one_group_for_all_serves_where_there_is_only_one_kind(tmp_path: Path) -> None:
    together = replace(MIXED, groups={"all": ("*",)})
    write_episode(tmp_path / "e", replace(an_episode(), series=()), FACTS, together)
    assert [number_of(each) for each in open_episode_file(tmp_path / "e").frames("right", [0, 59])] == [0, 59]
    only_rows = (series("speed", 20, 2),)
    write_episode(tmp_path / "e", replace(an_episode(), cameras=(), series=only_rows), FACTS, together)
    reader = open_episode_file(tmp_path / "e")
    assert (reader.cameras, reader.series_names) == ({}, ("speed",))
    assert reader.series("speed").values.tobytes() == only_rows[0].values.tobytes()


@pytest.mark.parametrize(
    "changes",
    [{"preset": "quickly"}, {"x264": "novalue"}, {"x264": "nosuch=3"}, {"x264": "subme=high"}, {"x264": "cqm='"}],
)
def test_settings_that_x264_does_not_know_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(EpisodeError, match="x264 refuses") as caught:
        write_episode(tmp_path / "e", an_episode(), FACTS, replace(MIXED, **changes))
    assert caught.value.reason == "invalid"
    assert list(tmp_path.iterdir()) == []

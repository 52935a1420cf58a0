"""What `source.yaml` says is taken as it is meant, and whatever cannot be meant is refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megahour.sources import SourceError, find_recordings, read_recording, recording_id
from megahour.sources.options import Options, canonical, parse_options
from megahour.storage import list_files, open_lake, read_bytes
from tests.sources.mcap_files import land, robot_bag, write_bag

KEY = "landing/lab/source.yaml"


def parsed(text: str) -> Options:
    return parse_options(text.encode(), KEY)


def test_what_it_says() -> None:
    assert parsed("") == parsed("# nothing yet\n") == parsed("{}") == Options()
    said = parsed("robot: franka\ntask: '2024-01-31'\nrate_hz: 20\njpeg_order: rgb\ntopics: {/a: skip}\n")
    assert said == Options("franka", "2024-01-31", 20, "rgb", {"/a": "skip"})


def test_what_stands_for_something_said_before() -> None:
    said = parsed("topics:\n  /l: &arm {series: l, time: stamp}\n  /r: {<<: *arm, series: r}\n  /x: *arm\n")
    assert said.topics == {
        "/l": {"series": "l", "time": "stamp"},
        "/r": {"series": "r", "time": "stamp"},
        "/x": {"series": "l", "time": "stamp"},
    }


BOMB = "topics:\n  a: &a [x, x, x, x]\n" + "".join(
    f"  {new}: &{new} [*{old}, *{old}, *{old}, *{old}]\n" for old, new in zip("abcdefghij", "bcdefghijk", strict=True)
)
MISTAKES = {
    "no table": ("- a", "must be a table of names and values, and is a list"),
    "a word": ("franka", "must be a table of names and values, and is a str"),
    "a truth": ("false", "must be a table of names and values, and is a bool"),
    "unknown names": ("{" + ", ".join(f"n{i}{200 * 'x'}: 1" for i in range(99)) + "}", "says n0xx"),
    "an unknown name": ("robots: a", "says robots; it may say jpeg_order, rate_hz, robot, task, topics"),
    "a number as a name": ("1: a", "a name is no text, but a int: write it in quotes (line 1)"),
    "a truth as a name": ("topics:\n  on: skip", "a name is no text, but a bool: write it in quotes (line 2)"),
    "names of two kinds": ("topics: {1: skip, /a: skip}", "a name is no text, but a int"),
    "a list as a name": ("topics: {[a, b]: skip}", "a name is no text, but a seq"),
    "nothing as a name": ("topics: {~: skip}", "a name is no text, but a null"),
    "a name twice": ("robot: a\ntask: b\nrobot: c", "the name robot is there twice (line 3)"),
    "a topic twice": ("topics:\n  /a: skip\n  /a: extra", "the name /a is there twice (line 3)"),
    "a date": ("task: 2024-01-31", "there is a timestamp: write it in quotes"),
    "a date that is none": ("task: 2024-13-45", "there is a timestamp: write it in quotes"),
    "bytes": ("task: !!binary aGk=", "there is a binary"),
    "a set": ("topics: !!set {a, b}", "there is a set"),
    "an object": ("task: !!python/object/apply:os.getcwd []", "there is a python/object/apply:os.getcwd"),
    "a tag that does not fit": ("rate_hz: !!int fast", "cannot be read as YAML"),
    "a truth that is none": ("robot: !!bool fast", "cannot be read as YAML"),
    "a list that is none": ("topics: !!seq fast", "cannot be read as YAML"),
    "a merge of nothing": ("topics: {<<: 1}", "cannot be read as YAML"),
    "half a character": ('task: "\\ud800"', "cannot be read as YAML"),
    "no character": ('task: "\\UFFFFFFFF"', "cannot be read as YAML"),
    "a number without end": ("rate_hz: 0x" + "f" * 5000, "there is a number of 5002 digits"),
    "an alias of nothing": ("robot: *a", "found undefined alias"),
    "an alias of itself": ("topics: &a {/x: *a}", "its aliases come to more than 65536 characters"),
    "aliases of aliases": (BOMB, "its aliases come to more than 65536 characters"),
    "too deep": ("topics: " + "[" * 9000, "cannot be read as YAML"),
    "deep": ("topics: " + "[" * 9000 + "]" * 9000, "cannot be read as YAML"),
    "too long": ("#" * 70_000, "has 70000 bytes, and may have 65536"),
    "two documents": ("robot: a\n---\nrobot: b", "expected a single document"),
    "no YAML": ("robot: [", "cannot be read as YAML"),
    "no robot": ("robot:", "robot must be text, and is None"),
    "a number for a text": ("task: 7", "task must be text, and is 7"),
    "a long value for a text": (f"task: [{'x, ' * 999}]", "'x', 'x', "),
    "colours": ("jpeg_order: grb", "jpeg_order must be rgb or bgr, and is 'grb'"),
    "no rate": ("rate_hz: .nan", "rate_hz must be a number from 0.001 to 1000000, and is nan"),
    "a rate in words": ("rate_hz: 1e999", "rate_hz must be a number from 0.001 to 1000000, and is '1e999'"),
    "no topics": ("topics:", "topics must be a table of topics, and is None"),
    "a list of topics": ("topics: [/a]", "topics must be a table of topics, and is ['/a']"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused_in_a_sentence(name: str) -> None:
    text, words = MISTAKES[name]
    with pytest.raises(SourceError) as caught:
        parsed(text)
    assert caught.value.reason == "options"
    assert str(caught.value).startswith(KEY) and words in str(caught.value)
    assert len(str(caught.value)) < 500
    assert canonical(text.encode()), "a recording has an identity all the same"


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(SourceError, match="cannot be read as YAML") as caught:
        parse_options("robot: ä".encode("latin-1"), KEY)
    assert caught.value.reason == "options"


def test_the_same_options_are_the_same_however_they_are_written() -> None:
    one, other = b"robot: a\ntopics: {/x: skip, /y: extra}\n", b"topics:\n  /y: extra\n  /x: skip\nrobot: 'a'\n"
    assert canonical(one) == canonical(other) != canonical(b"robot: b\n")


# fmt: off
SCALARS = (
    "skip", "extra", "x", "''", "1", "-1", "1.5", ".inf", ".nan", "~", "on", "2024-01-31", "2024-13-45", "12:30:59",
    "stamp", "log", "'data[0:2]'", "'data[1]'", f"'data[{'9' * 5000}]'", "position", "'a b'", "!!int x", '"\\0"',
    "*a", "&a x", "/joint_states", "/status", "series", "camera", "fields", "time", "!!set {a}", "9" * 60,
)
# fmt: on
NAMES = st.sampled_from(["series", "camera", "fields", "time", "<<", "/status"])
ODD = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda each: f"[{', '.join(each)}]"),
        st.lists(st.tuples(st.one_of(NAMES, inner), inner), max_size=3).map(
            lambda each: "{" + ", ".join(f"? {name} : {value}" for name, value in each) + "}"
        ),
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bag")
    write_bag(land(root), robot_bag(4))
    return root


@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from(["robot", "task", "rate_hz", "jpeg_order", "topics", "other"]),
    topic=st.sampled_from([None, "/joint_states", "/status", "/wrist_cam/image_raw", "/gone"]),
    value=ODD,
)
def test_odd_values_are_taken_or_refused(bag: Path, name: str, topic: str | None, value: str) -> None:
    """Whatever stands there, reading the recording says what is wrong, and of nothing else."""
    text = f"topics:\n  {topic}: {value}\n" if topic else f"{name}: {value}\n"
    (bag / KEY).write_text(text)
    lake = open_lake(bag.as_uri())
    (recording,) = find_recordings(list_files(lake, "landing"), lambda key: read_bytes(lake, key))
    assert recording_id(recording, bag.joinpath)
    try:
        list(read_recording(recording, bag.joinpath))
    except SourceError as error:
        assert error.reason in ("options", "missing_feature", "feature_mismatch", "times"), text

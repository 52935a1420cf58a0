"""What becomes of each topic: a camera, series, an extra topic, or nothing; as `source.yaml` says, else as guessed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from megahour.episode.model import Note
from megahour.sources.mcap.decode import Step
from megahour.sources.mcap.series import JOINT_FIELDS
from megahour.sources.model import SourceError
from megahour.sources.options import shown

Kind = Literal["still", "raw", "video", "joints", "other"]
KINDS: Mapping[str, Kind] = {
    "sensor_msgs/CompressedImage": "still",
    "foxglove/CompressedImage": "still",
    "sensor_msgs/Image": "raw",
    "foxglove/RawImage": "raw",
    "foxglove/CompressedVideo": "video",
    "sensor_msgs/JointState": "joints",
    "foxglove/JointStates": "joints",
}
PICTURES = ("still", "raw", "video")

ALLOWED = (
    "skip, extra, {camera: NAME}, {series: NAME}, {series: NAME, fields: [FIELD, ...]} or a list of series; "
    "camera and series may add `time: stamp`"
)
NAME = re.compile(r"[A-Za-z0-9_.\-]+")
FIELD = re.compile(r"[A-Za-z_]\w*(\[\d{1,9}\])*(\.[A-Za-z_]\w*(\[\d{1,9}\])*)*(\[\d{1,9}:\d{1,9}\])?")
STEP = re.compile(r"(\w+)|\[(\d+)\]|\[(\d+):(\d+)\]")

# fmt: off
PLAIN_WORDS = frozenset(
    (
        "camera", "cameras", "cam", "image", "images", "img", "image_raw", "image_rect", "image_rect_raw",
        "image_color", "image_rect_color", "image_mono", "color", "colour", "rgb", "raw", "rect", "compressed",
        "compressed_video", "compressed_image", "video", "h264", "h265", "ffmpeg", "stream", "sensors", "sensor",
    )
)
# fmt: on
"""Parts of a topic that say that there are pictures, not which."""
# fmt: off
STATE_WORDS = frozenset(
    (
        "joint_states", "joint_state", "joints", "state", "states", "follower", "followers", "measured",
        "observation",
    )
)
# fmt: on
# fmt: off
ACTION_WORDS = frozenset(
    (
        "action", "actions", "command", "commands", "cmd", "leader", "leaders", "target", "targets", "joint_command",
        "joint_commands", "desired", "goal", "setpoint", "control",
    )
)
# fmt: on


@dataclass(frozen=True)
class Topic:
    """A topic of a file: the ids of its channels, what its messages are, and how many there are.

    `dtype` is set where Megahour wrote it as a series: that of its values.
    """

    name: str
    channels: tuple[int, ...]
    schema: str
    messages: int
    dtype: str = ""

    @property
    def kind(self) -> Kind:
        """What its messages are."""
        return kind_of(self.schema)


@dataclass(frozen=True)
class ToCamera:
    """The topic's pictures are the camera `name`."""

    name: str


@dataclass(frozen=True)
class ToSeries:
    """Numbers of the topic's messages are the series `name`.

    `joints` are fields with a number for each joint, `fields` the paths to any others; with neither, all numbers. It
    may be `optional`: no error where no message has them.
    """

    name: str
    joints: tuple[str, ...] = ()
    fields: tuple[tuple[Step, ...], ...] = ()
    optional: bool = False


@dataclass(frozen=True)
class Rule:
    """What becomes of a topic. `by_stamp`: its times are those in its messages. `said`: by `source.yaml`."""

    topic: Topic
    targets: tuple[ToCamera | ToSeries, ...]
    by_stamp: bool = False
    said: bool = False


@dataclass(frozen=True)
class Plan:
    """Rules for topics that become cameras and series, topics to keep as they came, and what is to be said of it."""

    rules: tuple[Rule, ...]
    extras: tuple[Topic, ...]
    notes: tuple[Note, ...]


def kind_of(schema: str) -> Kind:
    """What messages of this schema are, by its name in ROS 2 or Foxglove."""
    package, _, name = schema.replace("::", "/").replace("/msg/", "/").replace(".", "/").rpartition("/")
    package = package.removesuffix("/msg").removesuffix("/Msg")
    return KINDS.get(f"{package.removesuffix('_msgs') if package == 'foxglove_msgs' else package}/{name}", "other")


def plan(topics: Sequence[Topic], said: Mapping[Any, Any], file: str, key: str, own: bool) -> Plan:
    """Decide about all topics of a file with messages.

    Args:
        said: `topics:` of the `source.yaml` called `file`; it decides about the topics it names alone.
        key: the recording's file, for messages.
        own: Megahour wrote it: its topics are named by what they are.

    Raises:
        SourceError: `options` when `said` holds what cannot be, `missing_feature` when it maps a topic that is not
            there.
    """
    rules, kept, notes, named = [], [], [], set()
    by_name = {topic.name: topic for topic in topics} | {topic.name.lstrip("/"): topic for topic in topics}
    for name, value in said.items():
        where = f"{file}: topics: {name}"
        parsed = _parse(value, where)
        topic = by_name.get(name) or by_name.get(str(name).lstrip("/"))
        if topic is None:
            if isinstance(parsed, str):
                continue
            there = ", ".join(topic.name for topic in topics)
            raise SourceError("missing_feature", f"{key} has no messages of {name}, which {file} maps; it has {there}")
        if topic in named:
            raise SourceError("options", f"{where} is mapped twice")
        named.add(topic)
        if parsed == "skip":
            notes.append(Note("left_out", f"{topic.name} left out, {topic.messages} messages: {file} says skip"))
        elif isinstance(parsed, str):
            kept.append(topic)
        else:
            rules.append(_ruled(topic, *parsed, where))
    _refuse_repeated(rules, file)
    taken = {target.name for rule in rules for target in rule.targets}
    others = [topic for topic in topics if topic not in named]
    if own:
        guessed, left = _as_written(others)
    else:
        guessed, left = _guess(others, taken)
        notes += _guess_notes(guessed, not rules)
    order = {topic.name: i for i, topic in enumerate(topics)}
    return Plan(
        rules=tuple(sorted((*rules, *guessed), key=lambda rule: order[rule.topic.name])),
        extras=tuple(sorted((*kept, *left), key=lambda topic: order[topic.name])),
        notes=tuple(notes),
    )


Parsed = tuple[list[ToCamera | ToSeries], bool]


def _parse(value: Any, where: str) -> Parsed | Literal["skip", "extra"]:
    if value in ("skip", "extra"):
        return "skip" if value == "skip" else "extra"
    entries = value if isinstance(value, list) else [value]
    if not entries or not all(isinstance(each, dict) for each in entries):
        raise SourceError("options", f"{where} is {shown(value)}; it may be {ALLOWED}")
    targets = [_target(each, where) for each in entries]
    if len(targets) > 1 and not all(isinstance(target, ToSeries) for target in targets):
        raise SourceError("options", f"{where} lists a camera: only series come several from one topic")
    first, *others = (each.get("time", "log") for each in entries)
    if first not in ("log", "stamp") or any(other != first for other in others):
        told = " and ".join(dict.fromkeys(map(shown, (first, *others))))
        raise SourceError("options", f"{where}: time may be log or stamp, one for the topic; it is {told}")
    return targets, first == "stamp"


def _target(said: dict[Any, Any], where: str) -> ToCamera | ToSeries:
    known = {"camera", "series", "fields", "time"}
    if unknown := [name for name in said if name not in known]:
        raise SourceError("options", f"{where} says {shown(unknown[0])}; it may be {ALLOWED}")
    if ("camera" in said) == ("series" in said) or ("camera" in said and "fields" in said):
        raise SourceError("options", f"{where} is {shown(said)}; it may be {ALLOWED}")
    name = said.get("camera", said.get("series"))
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise SourceError("options", f"{where} is named {shown(name)}; a name is letters, digits, and _ . - alone")
    if "camera" in said:
        return ToCamera(name)
    fields = said.get("fields", [])
    fields = [fields] if isinstance(fields, str) else fields
    if not isinstance(fields, list) or ("fields" in said and not fields):
        raise SourceError("options", f"{where}: fields must be a list of fields, and is {shown(said['fields'])}")
    return ToSeries(name, fields=tuple(_path(field, where) for field in fields))


def _path(text: Any, where: str) -> tuple[Step, ...]:
    if not isinstance(text, str) or not FIELD.fullmatch(text):
        example = "position, pose.position.x, data[3] or data[0:7]"
        raise SourceError("options", f"{where}: {shown(text)} is no field; fields are written {example}")
    path: list[Step] = []
    for name, place, first, end in STEP.findall(text):
        path.append(name if name else int(place) if place else slice(int(first), int(end)))
    return tuple(path)


def _ruled(topic: Topic, targets: Sequence[ToCamera | ToSeries], by_stamp: bool, where: str) -> Rule:
    found: list[ToCamera | ToSeries] = []
    for target in targets:
        if isinstance(target, ToCamera) and topic.kind not in PICTURES:
            shown = ", ".join(name for name, kind in KINDS.items() if kind in PICTURES)
            raise SourceError("options", f"{where} is a camera, but its messages are {topic.schema}, none of {shown}")
        if isinstance(target, ToSeries) and topic.kind == "joints":
            flat = [path[0] for path in target.fields if len(path) == 1 and path[0] in JOINT_FIELDS]
            if not target.fields:
                found += _joint_series(target.name, set())
                continue
            if len(flat) == len(target.fields):
                target = ToSeries(target.name, joints=tuple(str(name) for name in flat))
        found.append(target)
    return Rule(topic, tuple(found), by_stamp, said=True)


def _joint_series(name: str, taken: set[str]) -> list[ToSeries]:
    """Positions are what policies read; the rest of a message of joints lies beside them, in series of its own."""
    first = ToSeries(name, joints=JOINT_FIELDS[:1], optional=True)
    others = [ToSeries(_free(f"{name}_{field}", taken), joints=(field,), optional=True) for field in JOINT_FIELDS[1:]]
    return [first, *others]


def _refuse_repeated(rules: Sequence[Rule], file: str) -> None:
    names = Counter(target.name for rule in rules for target in rule.targets)
    for name, count in names.items():
        if count > 1:
            topics = [rule.topic.name for rule in rules if name in {target.name for target in rule.targets}]
            both = " and ".join(dict.fromkeys(topics))
            raise SourceError("options", f"{file}: topics: {both} give the name '{name}' {count} times; names are once")


def _as_written(topics: Iterable[Topic]) -> tuple[list[Rule], list[Topic]]:
    """An episode's own topics: `/camera/NAME` with pictures, and series, of which Megahour notes the dtype."""
    rules, left = [], []
    for topic in topics:
        camera = topic.name.removeprefix("/camera/")
        if topic.name.startswith("/rendition/"):
            continue
        if camera != topic.name and topic.kind in ("still", "video"):
            rules.append(Rule(topic, (ToCamera(camera),)))
        elif topic.dtype and topic.kind == "joints":
            rules.append(Rule(topic, (ToSeries(topic.name.removeprefix("/"), joints=("position",)),)))
        else:
            left.append(topic)
    return rules, left


def _guess(topics: Sequence[Topic], taken: set[str]) -> tuple[list[Rule], list[Topic]]:
    pictured = [topic for topic in topics if topic.kind in PICTURES]
    joints = [topic for topic in topics if topic.kind == "joints"]
    taken = set(taken)
    names = dict(zip([t.name for t in pictured], _short_names([t.name for t in pictured], taken), strict=True))
    rules = [Rule(topic, (ToCamera(names[topic.name]),)) for topic in pictured]
    taken |= set(names.values())
    names = _joint_names([topic.name for topic in joints], taken)
    for topic in joints:
        rules.append(Rule(topic, tuple(_joint_series(names[topic.name], taken))))
    return rules, [topic for topic in topics if topic.kind == "other"]


def _joint_names(topics: Sequence[str], taken: set[str]) -> dict[str, str]:
    """Names of series of joints: `action` and `state` where just one topic is called like it."""
    found: dict[str, str] = {}
    for name, words, others in (("action", ACTION_WORDS, frozenset()), ("state", STATE_WORDS, ACTION_WORDS)):
        alike = [t for t in topics if _words(t) & words and not _words(t) & others]
        exact = [topic for topic in alike if topic.strip("/") in words]
        chosen = alike if len(alike) == 1 else exact
        if len(chosen) == 1 and name not in taken:
            found[chosen[0]] = name
            taken.add(name)
    for topic in topics:
        if topic not in found:
            found[topic] = _free(_plain(topic), taken)
    return found


def _words(topic: str) -> frozenset[str]:
    parts = [part.lower() for part in topic.strip("/").split("/")]
    return frozenset(parts) | frozenset(word for part in parts for word in part.split("_"))


def _short_names(topics: Sequence[str], taken: set[str]) -> list[str]:
    """Names of cameras out of their topics: `/camera/front/image_raw/compressed` is `front`."""
    short = [_plain("/".join(p for p in topic.split("/") if p.lower() not in PLAIN_WORDS)) for topic in topics]
    short = [name if name != "_" else "camera" for name in short]
    often = Counter(short)
    taken = set(taken)
    result = []
    for name, topic in zip(short, topics, strict=True):
        if often[name] > 1 or name in taken:
            name = _plain(topic)
        result.append(_free(name, taken))
    return result


def _plain(topic: str) -> str:
    """A topic as a name."""
    return re.sub(r"[^A-Za-z0-9]+", "_", topic).strip("_") or "_"


def _free(name: str, taken: set[str]) -> str:
    """The name, numbered if it is taken; it is taken from now on."""
    free, number = name, 2
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    taken.add(free)
    return free


def _guess_notes(rules: Sequence[Rule], alone: bool) -> list[Note]:
    if not rules and not alone:
        return []
    told = ". `topics` in source.yaml can say otherwise"
    if not rules:
        return [Note("mapping_guessed", f"no topic has pictures or joints: all are kept as they came{told}")]
    pairs = [f"{rule.topic.name} as {_called(rule.targets[0])}" for rule in rules]
    names = {target.name for rule in rules for target in rule.targets}
    joints = [rule.topic.name for rule in rules if rule.topic.kind == "joints"]
    unsure = (
        f"; which of {', '.join(joints)} is the state is not clear" if len(joints) > 1 and "state" not in names else ""
    )
    return [Note("mapping_guessed", f"taken by their names: {', '.join(pairs)}{unsure}{told}")]


def _called(target: ToCamera | ToSeries) -> str:
    return f"camera {target.name}" if isinstance(target, ToCamera) else f"series {target.name}"

"""MCAP recordings of ROS 2 and Foxglove, and Megahour's own episodes: every file is one episode."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from megahour.episode.model import ExtraMessage, ExtraTopic, Note, RawEpisode
from megahour.sources.mcap import times
from megahour.sources.mcap.beside import Said, name_of, notes_on, said_of
from megahour.sources.mcap.fetch import payloads
from megahour.sources.mcap.gather import Gathered, gather, in_order
from megahour.sources.mcap.mapping import Plan, Topic, kind_of, plan
from megahour.sources.mcap.scan import Scan, scan
from megahour.sources.model import Identity, Recording
from megahour.sources.one_file import find_by_suffix
from megahour.sources.options import NAME, Options, read_options
from megahour.sources.steps import MOST_ATTRIBUTE_CHARS, RATES_HZ, success_of

if TYPE_CHECKING:
    from megahour.storage import FileRef

FORMATS: tuple[str, ...] = ("mcap",)
OWN_METADATA, OWN_INDEX = "megahour.episode", "megahour.index"
TANGLED = "streams of video at the same time"
"""Channels of one topic that no decoder can take together."""


def find(files: Mapping[str, FileRef], read: Callable[[str], bytes]) -> list[Recording]:
    """Every MCAP file is a recording."""
    return find_by_suffix(files, FORMATS[0], (".mcap",))


def read(recording: Recording, local: Callable[[str], Path]) -> Iterator[RawEpisode]:
    """The one episode of a file.

    `topics` in the source's `source.yaml` says what becomes of topics (`megahour.sources.mcap.mapping`). Of the others,
    those with pictures become cameras and those with joint states become series, by their names; all that is left is
    kept as it came, as extra topics.

    Raises:
        SourceError: `truncated`, `corrupt`, `unreadable`, `empty`, `times`, `options`, `missing_feature` or
            `feature_mismatch`.
    """
    options = read_options(recording, local)
    key = recording.files[0].key
    found = scan(local(key), key)
    facts = _facts(found, options, key)
    where = recording.options.key if recording.options else NAME
    planned = plan(_topics(found), options.topics, where, key, facts.own)
    gathered = gather(found, planned.rules)
    attributes, texts = _kept(facts, () if facts.own else (*said_of(found), *gathered.frame_ids))
    extras = _extras(found, planned, gathered, texts)
    rate_hz, guessed = _rate_hz(facts, gathered)
    yield RawEpisode(
        index=0,
        robot=facts.robot,
        task=facts.task,
        rate_hz=rate_hz,
        success=facts.success,
        cameras=gathered.cameras,
        series=gathered.series,
        attributes=attributes,
        notes=(*facts.notes, *found.notes, *notes_on(found), *planned.notes, *gathered.notes, *extras.notes, *guessed),
        extras=extras.topics,
        extra_messages=extras.messages,
    )


def identity(recording: Recording, local: Callable[[str], Path]) -> Identity | None:
    """The bytes of the file."""
    return None


def _topics(found: Scan) -> list[Topic]:
    """The topics with messages, by name. Channels of one topic are together."""
    counts = dict(zip(*(part.tolist() for part in np.unique(found.channel, return_counts=True)), strict=True))
    channels: dict[str, list[int]] = {}
    for number in sorted(counts):
        channels.setdefault(found.channels[number].topic, []).append(number)
    topics = []
    for name, members in sorted(channels.items()):
        first = found.channels[members[0]]
        schemas = {s.name if (s := found.schemas.get(found.channels[n].schema_id)) else "" for n in members}
        # Channels that are of different kinds have no common meaning: they are kept as they came.
        schema = schemas.pop() if len(schemas) == 1 else ""
        if kind_of(schema) == "video" and _overlap(found, members):
            schema = TANGLED
        dtype = first.metadata.get("dtype", "")
        messages = sum(counts[number] for number in members)
        topics.append(Topic(name, tuple(members), schema, messages, dtype if dtype in ("float32", "float64") else ""))
    return topics


def _overlap(found: Scan, channels: Sequence[int]) -> bool:
    """Whether channels have messages at the same time."""
    times_ns = [found.time_ns[found.channel == number] for number in channels]
    spans = sorted((int(own.min()), int(own.max())) for own in times_ns)
    return any(start <= end for (_, end), (start, _) in pairwise(spans))


@dataclass(frozen=True)
class _Facts:
    """What is said about an episode. `attributes` are those that Megahour wrote, `said` is what others did."""

    robot: str
    task: str
    rate_hz: float | None
    success: bool | None
    attributes: dict[str, str]
    said: tuple[Said, ...]
    notes: tuple[Note, ...]
    own: bool


def _facts(found: Scan, options: Options, key: str) -> _Facts:
    said: dict[str, str] = {}
    attributes: dict[str, str] = {}
    others: list[Said] = []
    notes: list[Note] = []
    own = False
    for record in found.metadata:
        if record.name == OWN_METADATA and (read := _own(record.metadata)):
            own, said = True, {**said, **record.metadata}
            attributes |= read[0]
            notes += read[1]
            continue
        for name, text in record.metadata.items():
            if name in ("robot", "task", "success", "rate_hz"):
                said.setdefault(name, text)
            others.append((f"{record.name}.{name}", text))
    for name, size in found.attachments:
        if not (own and name == OWN_INDEX):
            notes.append(Note("left_out", f"attachment '{name}' left out, {size} bytes"))
    return _Facts(
        robot=said.get("robot") or options.robot or "unknown",
        task=said.get("task") or options.task or Path(key).parent.name,
        rate_hz=_number(said.get("rate_hz", "")) or options.rate_hz,
        success=success_of(said.get("success")),
        attributes=attributes,
        said=tuple(others),
        notes=tuple(notes),
        own=own,
    )


def _kept(facts: _Facts, beside: Sequence[Said]) -> tuple[dict[str, str], dict[str, str]]:
    """Attributes, and the texts that are too long for them. What is called the same and is not is numbered."""
    attributes, texts = dict(facts.attributes), dict[str, str]()
    for called, text in (*facts.said, *beside):
        name, number = called, 2
        kept = attributes if len(text) <= MOST_ATTRIBUTE_CHARS else texts
        while kept.get(name, text) != text:
            name, number = f"{called}_{number}", number + 1
        kept[name] = text
    return attributes, texts


def _own(metadata: Mapping[str, str]) -> tuple[dict[str, str], list[Note]] | None:
    """Attributes and notes of an episode that Megahour wrote before; None when its metadata cannot be used."""
    try:
        attributes = {str(name): str(value) for name, value in json.loads(metadata["attributes"]).items()}
        notes = [Note(str(code), str(text)) for code, text in json.loads(metadata["notes"])]
        before = {f"megahour.{name}": metadata[name] for name in ("episode_id", "source", "format", "profile")}
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
    return {**attributes, **before}, notes


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    low, high = RATES_HZ
    return value if low <= value <= high else None


def _rate_hz(facts: _Facts, gathered: Gathered) -> tuple[float, list[Note]]:
    """The rate that is said, else the median one of the state, the first camera or the first series."""
    if facts.rate_hz:
        return facts.rate_hz, []
    cameras = [(camera.name, camera.times_ns) for camera in gathered.cameras]
    series = [(series.name, series.times_ns) for series in gathered.series]
    states = [each for each in series if each[0] == "state"]
    for name, times_ns in (*states, *cameras, *series):
        if rate_hz := times.rate_hz(times_ns):
            return rate_hz, [Note("rate_guessed", f"no rate is said: {rate_hz:g} Hz taken, the median of {name}")]
    return 1.0, [Note("rate_guessed", "no rate is said, and nothing shows one: 1 Hz taken")]


@dataclass(frozen=True)
class _Extras:
    topics: tuple[ExtraTopic, ...]
    messages: Callable[[], Iterator[ExtraMessage]]
    notes: tuple[Note, ...]


def _extras(found: Scan, planned: Plan, gathered: Gathered, texts: Mapping[str, str]) -> _Extras:
    """Topics that are kept as they came, under their own names without the slash in front."""
    from megahour.sources.extra import json_messages, json_topic, merged

    taken = {series.name for series in gathered.series} | {f"camera/{camera.name}" for camera in gathered.cameras}
    topics: list[ExtraTopic] = []
    notes: list[Note] = []
    names: dict[int, str] = {}
    for topic in (*planned.extras, *gathered.left):
        if topic.schema == TANGLED:
            notes.append(Note("undecoded", f"{topic.name} is kept as it came: it has {TANGLED}"))
        kinds: dict[ExtraTopic, list[int]] = {}
        for number in topic.channels:
            kinds.setdefault(_extra(found, number), []).append(number)
        for kind, members in kinds.items():
            name = kind.name or "topic"
            while name in taken or name in {each.name for each in topics}:
                name += "_extra"
            if name != kind.name:
                notes.append(Note("renamed", f"{topic.name or 'a topic without name'} is kept as /{name}"))
            topics.append(replace(kind, name=name))
            names |= dict.fromkeys(members, name)
        if len(topic.channels) > len(kinds):
            notes.append(Note("merged", f"{topic.name} has {len(topic.channels)} channels: merged by time"))
        if in_order(found, topic.channels)[1]:
            notes.append(Note("sorted", f"{topic.name}: its messages were not in order of their times"))
    wanted, _ = in_order(found, list(names))

    def kept() -> Iterator[ExtraMessage]:
        for message, data in zip(wanted.tolist(), payloads(found, wanted), strict=True):
            yield ExtraMessage(names[int(found.channel[message])], int(found.time_ns[message]), data)

    passes: list[Callable[[], Iterator[ExtraMessage]]] = [kept]
    first_ns = found.time_ns.min(keepdims=True)
    for path, text in texts.items():
        name = f"metadata/{path}"
        topics.append(json_topic(name))
        passes.append(lambda name=name, text=text: json_messages(name, first_ns, [text]))  # type: ignore[misc]
    return _Extras(tuple(topics), merged(passes), tuple(notes))


def _extra(found: Scan, number: int) -> ExtraTopic:
    channel = found.channels[number]
    schema = found.schemas.get(channel.schema_id)
    name = name_of(channel.topic)
    if schema is None:
        return ExtraTopic(name, channel.message_encoding, "", "", b"")
    return ExtraTopic(name, channel.message_encoding, schema.name, schema.encoding, schema.data)

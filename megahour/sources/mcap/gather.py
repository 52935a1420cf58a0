"""The first pass over messages: numbers are kept and pictures tried, so that times and shapes are known."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from megahour.episode.model import Camera, Coded, Frames, Note, Series
from megahour.sources.mcap import pictures, times, video
from megahour.sources.mcap.beside import Said, name_of
from megahour.sources.mcap.decode import (
    Decode,
    NoFieldError,
    UndecodableError,
    decoder,
    frame_id,
    names_of,
    stamp_ns,
)
from megahour.sources.mcap.fetch import payloads
from megahour.sources.mcap.mapping import Rule, ToCamera, Topic, ToSeries
from megahour.sources.mcap.scan import LAST_NS, Scan
from megahour.sources.mcap.series import Rows, joints_row, path_text, row_of
from megahour.sources.model import SourceError

ALWAYS_LEFT = frozenset(("header", "timestamp", "name", "joints", "layout"))
"""Fields of mapped messages that are no values: when, and how the values are called."""
MOST_FRAME_IDS = 8

T = TypeVar("T")


@dataclass(frozen=True)
class Gathered:
    """What mapped topics became, and those that turned out to be neither camera nor series.

    `frame_ids` are the frames of reference of those that became something, as attributes.
    """

    cameras: tuple[Camera, ...]
    series: tuple[Series, ...]
    frame_ids: tuple[Said, ...]
    left: tuple[Topic, ...]
    notes: tuple[Note, ...]


def in_order(scan: Scan, channels: Sequence[int]) -> tuple[NDArray[np.int64], bool]:
    """The messages of these channels by their log times, and whether the file has them in another order."""
    found = np.flatnonzero(np.isin(scan.channel, channels))
    log_ns = scan.time_ns[found]
    return found[np.argsort(log_ns, kind="stable")], bool((np.diff(log_ns) < 0).any())


def gather(scan: Scan, rules: Sequence[Rule]) -> Gathered:
    """Read all messages of the mapped topics once, in order of their log times.

    Raises:
        SourceError: `unreadable`, `feature_mismatch`, `missing_feature` or `times` when a topic is not what
            `source.yaml` maps it to, or when no picture of a video decodes.
    """
    topics = [_Topic(scan, rule) for rule in rules]
    turns = np.concatenate([np.arange(len(topic.messages)) for topic in topics] or [np.zeros(0, np.int64)])
    owners = np.repeat(np.arange(len(topics)), [len(topic.messages) for topic in topics])
    wanted = np.concatenate([topic.messages for topic in topics] or [np.zeros(0, np.int64)])
    order = np.argsort(scan.time_ns[wanted], kind="stable")
    for place, payload in zip(order.tolist(), payloads(scan, wanted[order]), strict=True):
        topics[owners[place]].add(int(turns[place]), payload)
    cameras: list[Camera] = []
    series: list[Series] = []
    left: list[Topic] = []
    notes: list[Note] = []
    lags: list[str] = []
    frame_ids: list[Said] = []
    for topic in topics:
        found = topic.end()
        notes += topic.notes
        if not found:
            left.append(topic.rule.topic)
        lags += [lag] if found and (lag := topic.lag()) else []
        frame_ids += topic.frame_ids if found else []
        cameras += [each for each in found if isinstance(each, Camera)]
        series += [each for each in found if isinstance(each, Series)]
    if lags:
        text = "messages that became pictures and numbers have one time. From stamp to log time: "
        notes.append(Note("left_out", text + ", ".join(lags)))
    return Gathered(tuple(cameras), tuple(series), tuple(frame_ids), tuple(left), tuple(notes))


class _Topic:
    """A mapped topic on its way. A turn is a message's place among `messages`."""

    def __init__(self, scan: Scan, rule: Rule) -> None:
        self.scan, self.rule = scan, rule
        self.messages, self._is_moved = in_order(scan, rule.topic.channels)
        self.notes: list[Note] = []
        self.dropped: Counter[str] = Counter()
        self._decoders = {number: self._decoder(number) for number in rule.topic.channels}
        self._targets = [_target(self, target) for target in rule.targets]
        self._stamps: array[int] = array("q")
        self._last: tuple[int, bytes] = (-1, b"")
        self._repeated = 0
        self._fields: frozenset[str] = frozenset()
        self._lags: set[int] = set()
        self._frame_ids: dict[str, None] = {}
        self.is_depth = False

    def _decoder(self, number: int) -> Decode:
        channel = self.scan.channels[number]
        try:
            return decoder(channel, self.scan.schemas.get(channel.schema_id))
        except UndecodableError as error:
            text = str(error)

            def never(_: bytes) -> Any:
                raise UndecodableError(text)

            return never

    def message(self, turn: int, payload: bytes) -> Any:
        """A decoded message.

        Raises:
            UndecodableError: it cannot be.
        """
        return self._decoders[int(self.scan.channel[self.messages[turn]])](payload)

    def add(self, turn: int, payload: bytes) -> None:
        time_ns = int(self.scan.time_ns[self.messages[turn]])
        stamp = time_ns
        if (time_ns, payload) == self._last:
            self._repeated += 1
        else:
            self._last = time_ns, payload
            try:
                message = self.message(turn, payload)
                found = stamp_ns(message)
                if self.rule.by_stamp:
                    stamp = _usable(found)
                if found is not None and found != time_ns:
                    self._lags = {min(self._lags | {time_ns - found}), max(self._lags | {time_ns - found})}
                if len(self._frame_ids) <= MOST_FRAME_IDS and (frame := frame_id(message)):
                    self._frame_ids[frame] = None
                self._fields = self._fields or frozenset(names_of(message) or ())
            except UndecodableError as error:
                self.dropped[str(error)] += 1
            else:
                for target in self._targets:
                    target.add(turn, message)
        self._stamps.append(stamp)

    def end(self) -> list[Camera | Series]:
        """What the topic became; nothing where it is to be kept as it is."""
        found = [made for target in self._targets if (made := target.end()) is not None]
        name = self.rule.topic.name
        if not found:
            self._nothing()
            return []
        if self._is_moved:
            self.note("sorted", f"{name}: its messages were not in order of their times")
        if self._repeated:
            self.note("duplicate_times", f"{name}: {self._repeated} messages left out that came twice, all the same")
        if len(self.rule.topic.channels) > 1:
            self.note("merged", f"{name} has {len(self.rule.topic.channels)} channels: merged by time")
        if self.dropped:
            (first, _), others = self.dropped.most_common(1)[0], len(self.dropped) - 1
            text = f"{self.dropped.total()} of {len(self.messages)} messages left out: {first}"
            self.note("dropped", f"{name}: {text}" + (f"; and for {others} other reasons" if others else ""))
        if len(self._frame_ids) > 1:
            shown = ", ".join(list(self._frame_ids)[:MOST_FRAME_IDS])
            more = " and others" if len(self._frame_ids) > MOST_FRAME_IDS else ""
            self.note("left_out", f"{name}: which of its messages are of the frame_ids {shown}{more} is left out")
        if unused := self._unused():
            self.note("left_out", f"{name}: {', '.join(unused)} left out: source.yaml maps other fields")
        return found

    def _nothing(self) -> None:
        name = self.rule.topic.name
        text, _ = self.dropped.most_common(1)[0] if self.dropped else ("it holds no value", 0)
        code, text = ("depth", "its pictures are depth or 16 bits of grey") if self.is_depth else ("undecoded", text)
        if self.rule.said:
            text = f"{self.scan.key}: nothing of {name} can be used as source.yaml maps it: {text}. Map it to `extra`"
            raise SourceError("feature_mismatch", text)
        self.note(code, f"{name} is kept as it came: {text}")

    def lag(self) -> str | None:
        """How much later than the stamps of its messages their log times are; None where they are the same."""
        if not self._lags:
            return None
        return f"{self.rule.topic.name} {min(self._lags) / 1e6:.3f} to {max(self._lags) / 1e6:.3f} ms"

    @property
    def frame_ids(self) -> list[Said]:
        """The one frame_id of its messages, as an attribute; nothing where they have several, or none."""
        ids = list(self._frame_ids)
        return [(f"{name_of(self.rule.topic.name)}.frame_id", ids[0])] if len(ids) == 1 else []

    def _unused(self) -> list[str]:
        used: set[str] = set()
        for target in self.rule.targets:
            if isinstance(target, ToCamera) or not (target.joints or target.fields):
                return []
            used |= {*target.joints, *(str(path[0]) for path in target.fields)}
        is_whole = self.rule.topic.kind == "joints" and "joints" in self._fields
        return [] if is_whole else sorted(self._fields - used - ALWAYS_LEFT)

    def note(self, code: str, text: str) -> None:
        self.notes.append(Note(code, text))

    def arranged(self, name: str, turns: NDArray[np.int64]) -> times.Arranged:
        """The times of these messages, which `name` has.

        Raises:
            SourceError: `times` when there is but one.
        """
        own = np.frombuffer(self._stamps, np.int64)[turns]
        if len(own) > 2 and own[0] == own[-1] and (own == own[0]).all():
            kind = "stamp" if self.rule.by_stamp else "log time"
            text = f"{self.scan.key}: all {len(own)} messages of {self.rule.topic.name} have the {kind} {own[0]}"
            raise SourceError("times", f"{text}: when they were is not known")
        found = times.arrange(own)
        if found.nudged:
            self.note("duplicate_times", f"{name}: {found.nudged} times moved by some ns: messages had the same time")
        if found.is_moved and self.rule.by_stamp:
            self.note("sorted", f"{name}: its messages were not in order of their stamps")
        if gap := times.gap(found.times_ns):
            self.note("gap", f"{name}: {gap}")
        return found


def _usable(stamp: int | None) -> int:
    if stamp is None or not 0 <= stamp <= LAST_NS:
        raise UndecodableError("a message has no stamp" if stamp is None else f"a message has the stamp {stamp}")
    return stamp


def _target(topic: _Topic, target: ToCamera | ToSeries) -> _Numbers | _Stills | _Video:
    if isinstance(target, ToSeries):
        return _Numbers(topic, target)
    return _Video(topic, target.name) if topic.rule.topic.kind == "video" else _Stills(topic, target.name)


class _Numbers:
    """A series on its way."""

    def __init__(self, topic: _Topic, target: ToSeries) -> None:
        self._topic, self._target = topic, target
        self._rows, self._turns = Rows(), array("q")

    def add(self, turn: int, message: Any) -> None:
        target = self._target
        try:
            row = joints_row(message, target.joints) if target.joints else row_of(message, target.fields)
        except NoFieldError as error:
            self._topic.dropped[str(error)] += 1
            return
        # JSON may hold anything where numbers and names are expected.
        except (TypeError, ValueError, OverflowError) as error:
            self._topic.dropped[f"a message holds no such numbers: {error}"] += 1
            return
        if row:
            self._rows.add(row)
            self._turns.append(turn)

    def end(self) -> Series | None:
        name, topic = self._target.name, self._topic
        if not len(self._rows):
            self._missing()
            return None
        table, lacking = self._rows.table()
        arranged = topic.arranged(name, np.frombuffer(self._turns, np.int64))
        values = table[arranged.order].astype(np.dtype(topic.rule.topic.dtype or np.float64))
        self._note_nan(values, {column: count for column, count in lacking.items() if count})
        return Series(name, arranged.times_ns, values, tuple(lacking))

    def _missing(self) -> None:
        topic, target = self._topic, self._target
        if topic.rule.said and not target.optional:
            text, _ = topic.dropped.most_common(1)[0] if topic.dropped else ("no message has a number there", 0)
            asked = ", ".join(target.joints or map(path_text, target.fields)) or "its numbers"
            raise SourceError(
                "missing_feature",
                f"{topic.scan.key}: {asked} of {topic.rule.topic.name} cannot be the series '{target.name}': {text}",
            )

    def _note_nan(self, values: NDArray[np.floating], lacking: dict[str, int]) -> None:
        name, count = self._target.name, len(values)
        if lacking:
            shown = ", ".join(f"{column} in {missing}" for column, missing in list(lacking.items())[:4])
            more = f" and {len(lacking) - 4} more" if len(lacking) > 4 else ""
            self._topic.note("nan", f"{name}: of {count} messages some lack {shown}{more}: NaN there")
        bad = int((~np.isfinite(values)).any(axis=1).sum())
        if bad and not lacking:
            self._topic.note("nan", f"{name} has values that are not finite in {bad} of {count} rows")


@dataclass
class _Sizes:
    """Pictures that are good: the turns of their messages, in the order of presentation, and their sizes."""

    turns: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))

    def add(self, turn: int, width: int, height: int) -> None:
        self.turns.append(turn)
        self.sizes.append(width << 32 | height)

    def usual(self) -> tuple[int, int, NDArray[np.int64], int]:
        """The most frequent width and height, the turns of that size, and how many have another."""
        counts = Counter(self.sizes.tolist())
        usual = counts.most_common(1)[0][0]
        turns = np.frombuffer(self.turns, np.int64)[np.frombuffer(self.sizes, np.int64) == usual]
        return usual >> 32, usual & 0xFFFFFFFF, turns, len(self.turns) - len(turns)


class _Stills:
    """A camera of pictures that stand alone: files, or raw pixels."""

    def __init__(self, topic: _Topic, name: str) -> None:
        self._topic, self._name = topic, name
        self._is_raw = topic.rule.topic.kind == "raw"
        self._look = pictures.raw_look if self._is_raw else pictures.Files().look
        self._good, self._has_depth = _Sizes(), False
        self._converted: Counter[str] = Counter()
        self._is_jpeg = not self._is_raw

    def add(self, turn: int, message: Any) -> None:
        try:
            shape = self._look(message)
        except pictures.DepthError:
            self._has_depth = True
        except UndecodableError as error:
            self._topic.dropped[str(error)] += 1
        else:
            self._good.add(turn, shape.width, shape.height)
            self._is_jpeg &= shape.kind == "jpeg" and shape.mode == "RGB"
            if shape.note:
                self._converted[shape.note] += 1

    def end(self) -> Camera | None:
        topic, name, scan = self._topic, self._name, self._topic.scan
        if self._has_depth:
            topic.is_depth = True
            return None
        if not len(self._good.turns):
            return None
        width, height, turns, others = self._good.usual()
        _note_others(topic, name, others, width, height)
        for text in self._converted:
            topic.note("converted", f"camera {name} {text}")
        arranged = topic.arranged(name, turns)
        chosen = turns[arranged.order]

        def messages() -> Iterator[Any]:
            for turn, payload in zip(chosen.tolist(), payloads(scan, topic.messages[chosen]), strict=True):
                yield topic.message(turn, payload)

        def frames() -> Iterator[Frames]:
            for message in messages():
                yield pictures.raw_rgb(message) if self._is_raw else pictures.file_rgb(message, scan.key)

        files = _again(lambda: map(pictures.file_of, messages()), scan.key)
        coded = Coded("jpeg", files) if self._is_jpeg else None
        return Camera(name, width, height, arranged.times_ns, _again(frames, scan.key), coded)


class _Video:
    """A camera of coded video."""

    def __init__(self, topic: _Topic, name: str) -> None:
        self._topic, self._name = topic, name
        self._decoder: video.Decoder | None = None
        self._pushed, self._good = array("q"), _Sizes()
        self._seen: set[int] = set()
        self._first = b""
        self._bits = 8
        self._is_storable = True

    def add(self, turn: int, message: Any) -> None:
        try:
            name, data = video.unit_of(message)
            if self._decoder is not None and name != self._decoder.name:
                raise UndecodableError(f"its format changes from {self._decoder.name} to {name}")
        except UndecodableError as error:
            self._topic.dropped[str(error)] += 1
            return
        if self._decoder is None:
            self._decoder = video.Decoder(name)
        if not self._good.turns:
            self._first = max(self._first, data[:4096], key=len)
        self._pushed.append(turn)
        found = self._decoder.push(turn, data)
        keyframe = video.is_storable(data) if self._is_storable and video.CODECS[name] == "h264" else None
        self._is_storable &= keyframe is not None and len(found) == 1 and found[0][0] == turn
        self._take(found)

    def _take(self, found: list[video.Decoded]) -> None:
        for turn, frame in found:
            if turn in self._seen:
                continue
            self._seen.add(turn)
            self._good.add(turn, frame.width, frame.height)
            self._bits = max(self._bits, *(component.bits for component in frame.format.components))
            self._is_storable &= video.is_plain(frame)

    def end(self) -> Camera | None:
        topic, name, scan = self._topic, self._name, self._topic.scan
        if self._decoder is None:
            return None
        self._take(self._decoder.end())
        if not self._good.turns:
            why = video.why_nothing(self._decoder.name, self._first)
            text = (
                f"{scan.key}: no picture of the video {topic.rule.topic.name} decodes: {why}. Record it with keyframes"
            )
            raise SourceError("unreadable", f"{text} that stand alone")
        width, height, turns, others = self._good.usual()
        self._note_dropped()
        _note_others(topic, name, others, width, height)
        if self._bits > 8:
            topic.note("converted", f"camera {name} has {self._bits} bits per value: stored with 8")
        arranged = topic.arranged(name, turns)
        if arranged.is_moved:
            # With B-frames the coded order is not the shown one, and log times follow the coded one.
            topic.note("reordered", f"camera {name} has B-frames: its pictures have the messages' times in their order")
        codec, pushed, kept = self._decoder.name, np.frombuffer(self._pushed, np.int64), frozenset(turns.tolist())

        def units() -> Iterator[tuple[int, bytes]]:
            for turn, payload in zip(pushed.tolist(), payloads(scan, topic.messages[pushed]), strict=True):
                yield turn, video.unit_of(topic.message(turn, payload))[1]

        def frames() -> Iterator[Frames]:
            left, to_rgb = set(kept), video.ToRgb()
            for turn, frame in _decode(codec, units()):
                if turn in left:
                    left.remove(turn)
                    yield to_rgb(frame)
            if left:
                text = f"{scan.key}: {len(left)} pictures of {topic.rule.topic.name} decoded at first and do no more"
                raise SourceError("unreadable", text)

        stored = self._is_storable and not others
        bare = _again(lambda: (data for _, data in units()), scan.key)
        coded = Coded("h264", bare) if stored else None
        return Camera(name, width, height, arranged.times_ns, _again(frames, scan.key), coded)

    def _note_dropped(self) -> None:
        pushed = np.frombuffer(self._pushed, np.int64)
        lost = pushed[~np.isin(pushed, np.fromiter(self._seen, np.int64))]
        before = int((lost < min(self._seen)).sum())
        name = self._name
        if before:
            self._topic.note("dropped", f"camera {name}: {before} pictures before its first keyframe left out")
        if len(lost) - before:
            text = f"{len(lost) - before} pictures left out that are damaged, or lack one before them"
            self._topic.note("dropped", f"camera {name}: {text}")


def _decode(codec: str, units: Iterator[tuple[int, bytes]]) -> Iterator[video.Decoded]:
    decoder = video.Decoder(codec)
    for turn, data in units:
        yield from decoder.push(turn, data)
    yield from decoder.end()


def _note_others(topic: _Topic, name: str, others: int, width: int, height: int) -> None:
    if others:
        topic.note("dropped", f"camera {name}: {others} pictures left out that are not {width}x{height} as the most")


def _again(passes: Callable[[], Iterator[T]], key: str) -> Callable[[], Iterator[T]]:
    """The same passes; what was read at first and is not any more has changed."""

    def again() -> Iterator[T]:
        try:
            yield from passes()
        except (UndecodableError, NoFieldError, pictures.DepthError) as error:
            raise SourceError("unreadable", f"{key} changed while it was read: {error}") from error

    return again

"""The timeline that windows count in: one rule for whoever counts and whoever reads, said by the rows themselves."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from megahour.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from megahour.episode.model import TimesNs
    from megahour.episode.reader import EpisodeReader

KEY = b"megahour.timeline"


class TimelineError(DataError):
    """Windows were counted on another timeline than is read; the text says what to do."""


@dataclass(frozen=True)
class Timeline:
    """The times of the slowest of `cameras`: the one with the fewest pictures, of several the one named first.

    Where no camera is named these are the times of the slowest of `series`, and where no series is either, of the
    slowest of all cameras. Window i of a row starts at time number `start + i * stride`.
    """

    cameras: tuple[str, ...]
    stride: int = 1
    series: tuple[str, ...] = ()

    def times(self, reader: EpisodeReader, end: int | None = None) -> TimesNs:
        """The timeline of an episode, `(frames,)` nanoseconds; `end` is how many frames its row says there are.

        Raises:
            TimelineError: `no_topic` when the episode lacks a topic, `frames` when it has not `end` frames.
            EpisodeError: the episode is damaged.
        """
        if self.series and not self.cameras:
            topics = {name: reader.series(name).times_ns for name in self.series}
        else:
            topics = {name: camera.times_ns for name, camera in reader.cameras.items()}
        lacks = [name for name in self.cameras if name not in topics]
        if lacks or not topics:
            raise TimelineError(
                "no_topic",
                f"Windows count in the pictures of {', '.join(lacks) or 'a camera'}, and the episode "
                f"{reader.facts.episode_id} has {', '.join(topics) or 'none'}: leave it out, or name other cameras",
            )
        name = min(self.cameras or topics, key=lambda each: len(topics[each]))
        times = topics[name]
        if end is not None and len(times) != end:
            raise TimelineError(
                "frames",
                f"The windows of the episode {reader.facts.episode_id} were counted over {end} frames, and {name}, the "
                f"slowest topic that they are read by, has {len(times)}. Rows of episodes that were ingested before "
                "each camera's pictures were counted say the fewest of all cameras: let the recipe observe all of "
                "them, or leave such episodes out (camera_frames IS NOT NULL), and build the manifest again",
            )
        return times

    def put_on(self, rows: pa.Table) -> pa.Table:
        """The same rows, which now say that they count in this timeline."""
        return rows.replace_schema_metadata({**(rows.schema.metadata or {}), KEY: json.dumps(asdict(self)).encode()})


def timeline_of(rows: pa.Table) -> Timeline:
    """The timeline that rows say they count in.

    Raises:
        ValueError: they do not say.
    """
    said = (rows.schema.metadata or {}).get(KEY)
    if said is None:
        raise ValueError(
            "These rows do not say which timeline their windows count in: take them from a manifest, make them by "
            "trainer.dataset.rows_of, or say it with megahour.manifest.timeline.Timeline(...).put_on(rows)"
        )
    fields = json.loads(said)
    return Timeline(tuple(fields["cameras"]), fields["stride"], tuple(fields["series"]))

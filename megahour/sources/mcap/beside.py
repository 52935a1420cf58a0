"""What an MCAP file says beside what its messages hold: of itself, of its channels, and of when messages were sent."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from megahour.episode.model import Note
from megahour.sources.mcap.scan import Scan

Said = tuple[str, str]
"""The name of an attribute, and its text."""


def said_of(found: Scan) -> Iterator[Said]:
    """The header's texts as `mcap.<name>`, and those of channels (units, quality of service) as `<topic>.<name>`."""
    for name, text in found.header.items():
        if text:
            yield f"mcap.{name}", text
    for number in np.unique(found.channel).tolist():
        channel = found.channels[number]
        for name, text in channel.metadata.items():
            yield f"{name_of(channel.topic)}.{name}", text


def name_of(topic: str) -> str:
    """A topic's name without the slashes around it."""
    return topic.strip("/")


def notes_on(found: Scan) -> list[Note]:
    """What an episode has no place for: when messages were sent, their numbers, topics on which nothing was said."""
    order = np.argsort(found.channel, kind="stable")
    numbers, starts = np.unique(found.channel[order], return_index=True)
    members = dict(zip(numbers.tolist(), np.split(order, starts[1:]), strict=True))
    topics = {number: found.channels[number].topic for number in members}
    silent = {channel.topic for channel in found.channels.values()} - set(topics.values())
    lags = [f"{topics[n]} {lag}" for n, own in members.items() if (lag := _lag(found, own))]
    gaps = [f"{topics[n]} {gap}" for n, own in members.items() if (gap := _gap(found.sequence[own]))]
    notes = []
    if silent:
        notes.append(Note("left_out", f"topics without messages left out: {', '.join(sorted(silent))}"))
    if lags:
        text = f"the times when messages were sent are left out. From there to log time: {', '.join(lags)}"
        notes.append(Note("left_out", text))
    # Numbers that count the messages of all topics together are missing in each of them.
    if gaps and _gap(found.sequence):
        text = (
            f"numbers of messages, which are not kept: {', '.join(gaps)}. Some may have been lost before the recording"
        )
        notes.append(Note("sequence", text))
    return notes


def _lag(found: Scan, own: NDArray[np.int64]) -> str:
    """How much later than they were sent messages were logged; empty where they were at once, or it is not said."""
    said = own[found.publish_ns[own] > 0]
    lags_ns = found.time_ns[said] - found.publish_ns[said]
    return f"{lags_ns.min() / 1e6:.3f} to {lags_ns.max() / 1e6:.3f} ms" if lags_ns.any() else ""


def _gap(numbers: NDArray[np.int64]) -> str:
    """How many numbers are missing or repeated; empty where none are, or they do not count."""
    there = np.unique(numbers)
    missing, repeated = int(there[-1] - there[0]) + 1 - len(there), len(numbers) - len(there)
    if len(there) == 1:
        return ""
    return " and ".join([f"{missing} missing"] * bool(missing) + [f"{repeated} there again"] * bool(repeated))

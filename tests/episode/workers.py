"""Processes that read episodes, started in any way, and what they saw."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from typing import Any, Literal

from megahour.episode.episodes import Episodes
from megahour.episode.reader import EpisodeReader
from megahour.episode.sample import Query
from tests.samples import number_of

WAIT_S = 120
Start = Literal["fork", "spawn", "forkserver"]
Source = EpisodeReader | tuple[Episodes, str]


def shown(source: Source, moments_ns: Sequence[int], query: Query) -> list[int]:
    """The numbers that the pictures of these samples show, camera by camera."""
    samples = (
        source.samples(moments_ns, query)
        if isinstance(source, EpisodeReader)
        else source[0].samples(source[1], moments_ns, query)
    )
    return [number_of(frame) for sample in samples for found in sample.pictures.values() for frame in found.frames]


def in_workers(start: Start, source: Source, moments_ns: Sequence[Sequence[int]], query: Query) -> list[Any]:
    """`shown` in as many processes at once as there are lists of moments: what each saw, or its error as text."""
    context: Any = multiprocessing.get_context(start)
    workers = []
    for moments in moments_ns:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_answer, args=(theirs, source, moments, query), daemon=True)
        process.start()
        theirs.close()
        workers.append((process, ours))
    answers = []
    for process, ours in workers:
        answers.append(ours.recv() if ours.poll(WAIT_S) else "it hangs")
        process.kill()
        process.join()
    return answers


def _answer(connection: Any, source: Source, moments_ns: Sequence[int], query: Query) -> None:
    try:
        connection.send(shown(source, moments_ns, query))
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}")

"""A lake of small episodes to export, and a plain look at what came out."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from megahour.episode.model import RawEpisode
from megahour.episode.profile import MIXED, Profile
from megahour.episode.reader import EpisodeReader
from megahour.episode.writer import write_episode
from megahour.export.choose import Choice, of_rows
from megahour.export.files import Limits
from megahour.export.lerobot import Exported, export_lerobot
from megahour.export.model import Wanted
from megahour.export.survey import agree, examine
from megahour.storage import Lake, put_file
from tests.lake import Row, episode_row, stats_of
from tests.samples import FACTS, rgb


def put_episode(lake: Lake, scratch: Path, number: int, episode: RawEpisode, profile: Profile = MIXED) -> Row:
    """Write an episode to the lake; returns its row for the table `episodes`."""
    path = scratch / "episode.mcap"
    facts = replace(
        FACTS,
        episode_id=f"e{number:05d}",
        task=episode.task,
        robot=episode.robot,
        rate_hz=episode.rate_hz,
        success=episode.success,
    )
    frames = write_episode(path, episode, facts, profile).frames
    key = f"episodes/2026-01-02/{facts.episode_id}.mcap"
    ref = put_file(lake, key, path)
    values = {series.name: series.values for series in episode.series}
    return episode_row(
        number,
        uri=key,
        etag=ref.etag,
        size_bytes=ref.size_bytes,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        task=episode.task,
        robot=episode.robot,
        success=episode.success,
        # The other columns of a row cannot be made from none.
        frames=max(1, frames),
        cameras=[camera.name for camera in episode.cameras],
        **{f"{name}_dim": values[name].shape[1] for name in ("state", "action") if name in values},
        **{f"{name}_stats": stats_of(values[name].astype(float)) for name in ("state", "action") if name in values},
    )


def decoded(reader: EpisodeReader, camera: str, first: int = 0, end: int | None = None) -> NDArray[np.uint8]:
    """Pictures of an episode as FFmpeg decodes and converts them by itself: what a copy of them must equal."""
    keyframes = next(each.keyframes for each in reader.index.cameras if each.name == camera)
    start = int(np.flatnonzero(keyframes[: first + 1])[-1])
    codec = av.CodecContext.create("h264", "r")
    units = reader.coded(camera, start, reader.cameras[camera].frames if end is None else end)
    frames = [frame for unit in units for frame in codec.decode(av.Packet(unit))]
    return np.stack([rgb(frame) for frame in (*frames, *codec.decode(None))][first - start :])


def export_all(
    out: Path, lake: Lake, choice: Choice | list[Row], wanted: Wanted | None = None, limits: Limits | None = None
) -> list[Exported]:
    """Look at the episodes, and write them."""
    chosen = of_rows(choice) if isinstance(choice, list) else choice
    agreed = agree(examine(lake, each, wanted or Wanted()) for each in chosen)
    return list(export_lerobot(out, lake, chosen, agreed, limits))


@dataclass(frozen=True)
class Dataset:
    """A dataset on disk, read with nothing of Megahour: `rows` of all data files, `episodes` of `meta/episodes`."""

    root: Path
    info: dict[str, Any]
    rows: pa.Table
    episodes: list[dict[str, Any]]

    def values(self, feature: str, episode: int) -> NDArray[Any]:
        """A feature's rows of an episode, `(frames, d)`."""
        column = self.rows.slice(*self._span(episode))[feature].combine_chunks()
        flat = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
        return np.asarray(flat.to_numpy()).reshape(len(column), -1)

    def frames(self, camera: str, episode: int) -> NDArray[np.uint8]:
        """An episode's pictures, found by their times in the video."""
        key = f"videos/observation.images.{camera}"
        row = self.episodes[episode]
        place = {"chunk_index": row[f"{key}/chunk_index"], "file_index": row[f"{key}/file_index"]}
        path = self.root / self.info["video_path"].format(video_key=f"observation.images.{camera}", **place)
        with av.open(str(path)) as container:
            times, pictures = zip(*((f.time, rgb(f)) for f in container.decode(video=0)), strict=True)
        wanted = row[f"{key}/from_timestamp"] + np.arange(row["length"]) / self.info["fps"]
        found = [int(np.argmin(np.abs(np.array(times) - each))) for each in wanted]
        assert np.abs(np.array(times)[found] - wanted).max() < 1e-6
        assert abs(row[f"{key}/to_timestamp"] - row[f"{key}/from_timestamp"] - row["length"] / self.info["fps"]) < 1e-9
        return np.stack([pictures[i] for i in found])

    def _span(self, episode: int) -> tuple[int, int]:
        row = self.episodes[episode]
        return row["dataset_from_index"], row["dataset_to_index"] - row["dataset_from_index"]


def read_dataset(root: Path) -> Dataset:
    """Read a dataset's metadata and rows."""

    def rows(folder: str) -> pa.Table:
        return pa.concat_tables([pq.read_table(path) for path in sorted((root / folder).rglob("*.parquet"))])

    info = json.loads((root / "meta/info.json").read_text())
    return Dataset(root, info, rows("data"), rows("meta/episodes").to_pylist())

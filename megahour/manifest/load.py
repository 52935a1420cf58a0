"""Manifests in use: the header, and the rows memory-mapped from a file of this node."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megahour.errors import DataError
from megahour.manifest.timeline import Timeline
from megahour.storage import Lake, list_files, read_bytes, stage

if TYPE_CHECKING:
    import pyarrow as pa

SPLITS = ("train", "validation")

BATCH_ROWS = 131_072
"""Rows of a record batch: a rank opens only its own batches."""


class ManifestError(DataError):
    """A manifest cannot be built or read. `reason` is for machines, the message for the person who must act."""


@dataclass(frozen=True)
class ManifestHeader:
    """What is said about a manifest beside its rows, `manifests/<recipe>/<digest>.json`.

    `recipe` is the part of the recipe that the digest covers (`name`, `mixture`, `validation_share`, `observation`,
    `windows`), `recipe_text` the same as YAML. `normalization` maps `state` and `action` to `mean`, `std`, `min` and
    `max`, lists of `state_dim` and `action_dim` numbers, of the train rows alone. `table_versions` are those of the
    first build; later versions that select the same rows give the same manifest. `sha256` and `size_bytes` are the
    `.arrow` file's.
    """

    recipe: dict[str, Any]
    recipe_text: str
    digest: str
    rows: int
    rows_by_split: dict[str, int]
    windows_by_split: dict[str, int]
    rows_by_component: dict[str, int]
    too_short: int
    state_dim: int
    action_dim: int
    robots: list[str]
    normalization: dict[str, dict[str, list[float]]]
    table_versions: dict[str, int]
    created_at: str
    sha256: str
    size_bytes: int

    def to_json(self) -> bytes:
        """The header as it is stored."""
        return json.dumps(asdict(self), indent=2, sort_keys=True).encode()


@dataclass(frozen=True)
class Manifest:
    """A manifest on this node: `key` is the lake's `.arrow` file, `path` where its bytes lie here.

    Rows are one episode each, train first and then validation, by `key` within: `key` int64, `episode_id`, `uri`,
    `etag` string, `bytes` int64, `sha256` string, `start`, `end`, `windows` int32, `weight` float64, `split`,
    `component`, `recording_id` string. `end` is the number of frames of the episode's timeline, the slowest of the
    cameras that the recipe observes; window i starts at `start + i * stride` on it. Every window of a row is drawn in
    proportion to the row's `weight`. `uri` and `etag` are where the file lay in this lake at the first build, and no
    part of the digest; `sha256` names the bytes that are meant.
    """

    key: str
    path: Path
    header: ManifestHeader

    def table(self) -> pa.Table:
        """All rows, memory-mapped: nothing is read before it is used. Their schema names their windows' timeline."""
        import pyarrow as pa

        recipe = self.header.recipe
        timeline = Timeline(tuple(recipe["observation"]["cameras"]), recipe["windows"]["stride"])
        with pa.memory_map(str(self.path)) as source:
            return timeline.put_on(pa.ipc.open_file(source).read_all())

    def rows(self, split: str) -> pa.Table:
        """The rows of `train` or `validation`, memory-mapped."""
        if split not in SPLITS:
            raise ValueError(f"A manifest has the splits {' and '.join(SPLITS)}, not {split!r}")
        train = self.header.rows_by_split["train"]
        return self.table().slice(0, train) if split == "train" else self.table().slice(train)


def load_manifest(lake: Lake, key: str, scratch: Path | None = None) -> Manifest:
    """The manifest `manifests/<recipe>/<digest>.arrow`, downloaded to `scratch` once per node where the lake is remote.

    Raises:
        ManifestError: there is none, or its file is not the one that was written.
    """
    header = read_header(lake, key)
    try:
        path = stage(lake, key, scratch or Path(tempfile.gettempdir()) / "megahour-manifests", header.sha256)
    except FileNotFoundError as error:
        raise ManifestError(
            "missing", f"{lake.url(key)} is gone, and its header is not: delete that and build it again"
        ) from error
    if path.stat().st_size != header.size_bytes:
        raise ManifestError(
            "truncated",
            f"{path} has {path.stat().st_size} bytes, and its header says {header.size_bytes}: "
            "delete both and build the manifest again",
        )
    return Manifest(key, path, header)


def read_header(lake: Lake, key: str) -> ManifestHeader:
    """The header of the manifest whose `.arrow` file has this key, without its rows.

    Raises:
        ManifestError: there is no such manifest.
    """
    try:
        return ManifestHeader(**json.loads(read_bytes(lake, key.removesuffix(".arrow") + ".json")))
    except FileNotFoundError as error:
        raise ManifestError("missing", f"There is no manifest {lake.url(key)}: build it first") from error


def latest_key(lake: Lake, recipe_name: str) -> str | None:
    """The key of the manifest that was built last from a recipe, or None before the first."""
    try:
        digest = read_bytes(lake, f"manifests/{recipe_name}/latest").decode()
    except FileNotFoundError:
        return None
    return f"manifests/{recipe_name}/{digest}.arrow"


def latest_manifest(lake: Lake, recipe_name: str, scratch: Path | None = None) -> Manifest | None:
    """The manifest that was built last from a recipe, or None before the first."""
    key = latest_key(lake, recipe_name)
    return None if key is None else load_manifest(lake, key, scratch)


def manifest_keys(lake: Lake) -> list[str]:
    """The keys of all manifests of all recipes."""
    refs = list_files(lake, "manifests")
    return [ref.key.removesuffix(".json") + ".arrow" for ref in refs if ref.key.endswith(".json")]

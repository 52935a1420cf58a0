"""Which episodes to export: those of a recipe's latest manifest, or single ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from megahour.export.model import ExportError
from megahour.manifest.load import latest_manifest, manifest_keys
from megahour.storage import Lake

if TYPE_CHECKING:
    import pyarrow as pa

Split = Literal["train", "validation", "all"]
BATCH_ROWS = 1024


@dataclass(frozen=True)
class Chosen:
    """An episode of the lake. `split` is empty where no manifest chose it."""

    episode_id: str
    uri: str
    size_bytes: int
    sha256: str
    split: str


@dataclass(frozen=True)
class Choice:
    """The chosen episodes in their order, and what chose them: a recipe's manifest, or nobody.

    `cameras` are those that the recipe reads, None where there is no recipe. Rows stay where they are: of a manifest
    they are memory-mapped.
    """

    rows: pa.Table
    recipe: str = ""
    manifest: str = ""
    cameras: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def __iter__(self) -> Iterator[Chosen]:
        for batch in self.rows.to_batches(max_chunksize=BATCH_ROWS):
            for row in batch.to_pylist():
                yield Chosen(row["episode_id"], row["uri"], row["bytes"], row["sha256"], row["split"])


def of_recipe(lake: Lake, recipe: str, split: Split, scratch: Path) -> Choice:
    """The episodes of a recipe's latest manifest, train first.

    Raises:
        ExportError: `no_manifest`, or `empty`.
    """
    manifest = latest_manifest(lake, recipe, scratch)
    if manifest is None:
        known = ", ".join(sorted({key.split("/")[1] for key in manifest_keys(lake)})) or "none"
        raise ExportError("no_manifest", f"There is no manifest of {recipe}; recipes with manifests: {known}")
    rows = manifest.table() if split == "all" else manifest.rows(split)
    if not rows.num_rows:
        raise ExportError("empty", f"The manifest of {recipe} has no {split} episodes: {manifest.header.rows_by_split}")
    columns = ["episode_id", "uri", "bytes", "sha256", "split"]
    cameras = tuple(manifest.header.recipe["observation"]["cameras"])
    return Choice(rows.select(columns), recipe, manifest.header.digest, cameras)


def of_rows(rows: Sequence[Mapping[str, Any]]) -> Choice:
    """Episodes from their rows in the table `episodes`, each once."""
    import pyarrow as pa

    unique = list({row["episode_id"]: row for row in rows}.values())
    return Choice(
        pa.table(
            {
                "episode_id": [row["episode_id"] for row in unique],
                "uri": [row["uri"] for row in unique],
                "bytes": pa.array([row["size_bytes"] for row in unique], pa.int64()),
                "sha256": [row["sha256"] for row in unique],
                "split": [""] * len(unique),
            }
        )
    )

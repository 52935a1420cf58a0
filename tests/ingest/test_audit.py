"""An audit sees what a batch lost and what is stored twice."""

from pathlib import Path

from megahour.ingest.audit import audit_batches, episodes_of
from megahour.storage import open_lake
from megahour.warehouse.overview import overview
from megahour.warehouse.tables import append


def episode(name: str, recording: str, **more: object) -> dict[str, object]:
    return {"episode_id": name, "recording_id": recording, "uri": f"episodes/{name}", "index": 0, "revision": 1} | more


def test_lost_recordings_and_duplicates_are_found(tmp_path: Path) -> None:
    lake = open_lake(tmp_path.as_uri())
    assert audit_batches(lake, ["b"]).recordings == 0
    landed = [{"recording_id": f"r{i}", "uri": f"landing/{i}", "batch": "b", "revision": 1} for i in range(3)]
    append(lake, "recordings", landed, once="landed")
    append(lake, "episodes", [episode("e0", "r0", batch="b"), episode("e9", "r9", batch="other")], once="first")
    held = {"recording_id": "r1", "uri": "landing/1", "batch": "b", "state": "held", "revision": 1}
    append(lake, "quarantine", [held], once="held")
    found = audit_batches(lake, ["b"])
    assert (found.recordings, found.episodes, found.quarantined) == (3, 1, 1)
    assert (found.lost, found.duplicates) == (("landing/2",), ())

    append(lake, "episodes", [episode("e0", "r0", batch="b"), episode("e2", "r2", batch="b")], once="again")
    found = audit_batches(lake, ["b"])
    assert (found.lost, found.duplicates) == ((), ("e0",))
    append(lake, "episodes", [episode("e2 again", "r2", batch="b")], once="two ids")
    assert len(audit_batches(lake, ["b"]).duplicates) == 2
    assert set(episodes_of(lake, ["b"], 9)) == {"episodes/e0", "episodes/e2", "episodes/e2 again"}
    assert len(episodes_of(lake, ["b"], 1)) == 1


def test_an_overview_counts_by_kind(tmp_path: Path) -> None:
    lake = open_lake(tmp_path.as_uri())
    assert overview(lake).kinds == ()
    arm = {"source": "s", "robot": "arm", "task": "t", "duration_s": 1800.0, "frames": 10, "success": True}
    rows = [episode(f"a{i}", f"a{i}", **arm) for i in range(4)] + [episode("h", "h", robot="hand")]
    append(lake, "episodes", rows, once="x")
    found = overview(lake, examples=2)
    assert [(kind.robot, kind.episodes, kind.hours, kind.succeeded) for kind in found.kinds] == [
        ("arm", 4, 2.0, 4),
        ("hand", 1, 0.0, 0),
    ]
    assert len(found.durations_s) == 4
    assert len(found.examples) == 3
    append(lake, "episodes", [episode("later", "later", robot="hand", batch="b2")], once="y")
    assert [(kind.robot, kind.episodes) for kind in overview(lake, batches=["b2"]).kinds] == [("hand", 1)]


def test_a_recording_that_is_live_in_two_readings_is_found(tmp_path: Path) -> None:
    lake = open_lake(tmp_path.as_uri())
    landed = [{"recording_id": f"r{i}", "uri": f"landing/{i}", "batch": f"b{i}", "revision": 1} for i in range(2)]
    append(lake, "recordings", landed, once="landed")
    rows = [episode(f"e{i}", f"r{i}", content_id="c", batch=f"b{i}") for i in range(2)]
    append(lake, "episodes", [*rows, episode("e2", "r2", content_id="other")], once="both")
    assert audit_batches(lake, ["b0"]).duplicates == audit_batches(lake, ["b1"]).duplicates == ("e0",)
    append(lake, "episodes", [{**rows[0], "superseded_by": "r1", "revision": 2}], once="superseded")
    assert audit_batches(lake, ["b0"]).duplicates == ()
    assert overview(lake).kinds[0].episodes == 2

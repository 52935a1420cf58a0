"""The demonstration knows where it is, what heals by itself, and what does not."""

from dataclasses import replace
from pathlib import Path

import pytest

from infra.laptop.demo import Clock
from infra.laptop.facts import PHASES, Facts, RecipeFacts, phase, progress
from infra.laptop.instance import RunFacts, broken
from infra.laptop.report import demo_json
from infra.laptop.services import ServiceError, free_port, wanted_port

MAIN = RecipeFacts("main", selected=40, manifest="d1", fresh=True, run_key="r1", steps=300)
OTHER = RecipeFacts("other", selected=6, manifest="d2", fresh=True, run_key="r2", steps=60)
INGESTED = Facts(recordings=46, episodes=46, files=46, recipes=(MAIN, OTHER))


def with_main(**changes: object) -> Facts:
    return replace(INGESTED, recipes=(replace(MAIN, **changes), OTHER))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (Facts(recipes=(MAIN, OTHER)), "ingest"),
        (replace(INGESTED, waiting=1), "ingest"),
        (replace(INGESTED, undecided=1), "ingest"),
        (with_main(fresh=False), "manifest"),
        (with_main(step=299), "train"),
        (with_main(done=300), "evaluate"),
        (with_main(done=300, evaluated=True), "evaluate"),
        (
            replace(INGESTED, recipes=tuple(replace(each, done=1, evaluated=True) for each in (MAIN, OTHER))),
            "done",
        ),
    ],
)
def test_the_phase_follows_from_the_facts(facts: Facts, expected: str) -> None:
    assert phase(facts, "main") == expected


def test_an_old_manifest_is_not_done_even_when_its_run_was_evaluated() -> None:
    done = tuple(replace(each, done=1, evaluated=True) for each in (MAIN, OTHER))
    stale = replace(INGESTED, recipes=(replace(done[0], fresh=False), done[1]))
    assert phase(stale, "main") == "manifest"


def test_progress_counts_episode_files_before_their_rows() -> None:
    rows = progress(replace(INGESTED, undecided=46, episodes=0, files=12), "main", 0, 60)
    assert tuple(rows) == PHASES
    assert rows["ingest"][:2] == (12, 46)
    assert progress(with_main(done=300, step=300), "main", 21, 60)["evaluate"][:2] == (21, 60)


def failed(run_id: str, job: str = "ingest", retries: int = 0, *chain: str) -> RunFacts:
    return RunFacts(run_id, job, "p", True, retries, (chain,) if chain else (), "said")


@pytest.mark.parametrize(
    ("newest_first", "expected"),
    [
        ([failed("a", "ingest", 0, "IngestError")], ["a"]),
        ([failed("a", "ingest", 0)], []),
        ([failed("a", "ingest", 2)], ["a"]),
        ([failed("a", "ingest", 0, "IngestError", "OSError")], []),
        ([RunFacts("b", "ingest", "p", False), failed("a", "ingest", 0, "IngestError")], []),
        ([RunFacts("b", "train", "p", False), failed("a", "ingest", 0, "IngestError")], ["a"]),
    ],
    ids=["own fault", "its process died", "died too often", "transient cause", "started again", "another job"],
)
def test_only_a_failure_that_nobody_starts_again_ends_the_demonstration(
    newest_first: list[RunFacts], expected: list[str]
) -> None:
    assert [run.run_id for run in broken(newest_first)] == expected


def test_seconds_add_up_over_interruptions(tmp_path: Path) -> None:
    Clock(tmp_path / "seconds.json").add("train", 40)
    again = Clock(tmp_path / "seconds.json")
    again.add("train", 2)
    again.add("evaluate", 1)
    assert Clock(tmp_path / "seconds.json").seconds == {"train": 42, "evaluate": 1}


def test_demo_json_says_what_was_agreed() -> None:
    summary = {
        "success": {
            policy: {"k": k, "n": 20, "low": 0.0, "high": 1.0} for policy, k in (("trained", 19), ("blind", 6))
        },
        "video_db": {"model": 27.0, "copy_last": 20.5},
    }
    assert demo_json(INGESTED, MAIN, summary, {"record": 30.04}) == {
        "seconds": {"record": 30.0},
        "success": {"trained": {"k": 19, "n": 20}, "blind": {"k": 6, "n": 20}},
        "video_db": {"model": 27.0, "copy_last": 20.5},
        "episodes": 46,
        "manifest": "d1",
        "run": "r1",
    }


def test_a_port_is_taken_from_the_environment_or_any_free_one() -> None:
    assert wanted_port({}) == 0
    assert wanted_port({"MEGAHOUR_PORT": "3123"}) == 3123
    with pytest.raises(ServiceError, match="MEGAHOUR_PORT"):
        wanted_port({"MEGAHOUR_PORT": "http"})
    with pytest.raises(ServiceError, match="MEGAHOUR_PORT"):
        wanted_port({"MEGAHOUR_PORT": "²"})
    assert free_port() > 0

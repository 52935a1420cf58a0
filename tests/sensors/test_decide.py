"""The sensors' decisions, without sensors."""

import pytest

from megahour.manifest.peek import Selection
from resources.clusters.protocol import JobState
from sensors.decide import (
    Act,
    Quiet,
    Watch,
    act_on_job,
    metrics,
    metrics_at,
    points,
    rest,
    retry_of,
    stale_recipes,
    unreported,
    watched,
)


@pytest.mark.parametrize("state", list(JobState))
@pytest.mark.parametrize("seen_dead", [False, True])
def test_a_finished_run_is_never_started_again(state: JobState, seen_dead: bool) -> None:
    act = act_on_job(state, True, 1, 3, seen_dead)
    assert act is (Act.NOTHING if state.live or state is JobState.UNKNOWN else Act.FINISHED)


@pytest.mark.parametrize(
    ("state", "seen_dead", "attempts", "act"),
    [
        (JobState.PENDING, True, 1, Act.NOTHING),
        (JobState.RUNNING, True, 1, Act.NOTHING),
        (JobState.UNKNOWN, True, 1, Act.NOTHING),
        (JobState.CANCELLED, True, 1, Act.CANCELLED),
        (JobState.FAILED, False, 1, Act.CONFIRM),
        (JobState.FAILED, True, 1, Act.RESUBMIT),
        (JobState.SUCCEEDED, True, 1, Act.RESUBMIT),
        (JobState.GONE, True, 0, Act.RESUBMIT),
        (JobState.FAILED, True, 3, Act.GIVE_UP),
        (JobState.FAILED, False, 3, Act.CONFIRM),
    ],
)
def test_a_job_without_done(state: JobState, seen_dead: bool, attempts: int, act: Act) -> None:
    assert act_on_job(state, False, attempts, 3, seen_dead) is act


def test_a_watch_closes_with_the_run_and_remembers_a_death_for_one_look() -> None:
    assert watched(7, 3, Act.CONFIRM, 1) == Watch(7, 3, dead=True)
    assert watched(7, 3, Act.NOTHING, 1) == Watch(7, 3)
    assert watched(7, 3, Act.GIVE_UP, 3) == Watch(7, 3, closed=3)


def test_rest_starts_anew_with_every_change() -> None:
    quiet = rest(Quiet(), {"episodes": 1}, busy=False, now_s=10)
    assert quiet.since_s == 10
    assert rest(quiet, {"episodes": 1}, busy=False, now_s=20) == quiet
    assert rest(quiet, {"episodes": 1}, busy=True, now_s=20).since_s == 20
    assert rest(quiet, {"episodes": 2}, busy=False, now_s=20).since_s == 20


def test_only_recipes_that_select_something_else_are_stale() -> None:
    selected = {
        "same": Selection(3, "a"),
        "new": Selection(3, "b"),
        "changed": Selection(4, "c"),
        "none": Selection(0, "d"),
    }
    assert stale_recipes(selected, {"same": "a", "changed": "x"}) == ["changed", "new"]


@pytest.mark.parametrize("every", [1, 3, 7])
def test_points_are_the_same_wherever_the_log_is_cut(every: int) -> None:
    log = [(step * 10, {"kind": "step", "step": step, "loss": 1.0}) for step in range(every, 101, every)]
    log += [(1500 + step, {"kind": "step", "step": step}) for step in range(50, 101, every)]
    log += [(2000, {"kind": "failed", "step": 100, "error": "no"}), (2010, {"kind": "checkpoint", "step": 100})]
    whole, _ = points("r", 100, log, -1)
    first, past = points("r", 100, log[:11], -1)
    second, _ = points("r", 100, log[11:], past)
    assert whole == [*first, *second]
    assert 14 <= len(whole) <= 22
    assert whole[-1].event_id == "r.2000"


def test_metrics_keep_numbers_alone_and_name_validation_apart() -> None:
    nan = float("nan")
    assert metrics({"kind": "step", "step": 3, "loss": 0.5, "ok": True, "x": nan, "t": "now"}) == {
        "step": 3,
        "loss": 0.5,
    }
    log = [{"kind": "step", "step": s, "loss": s / 10} for s in (1, 2, 3)] + [
        {"kind": "validation", "step": 2, "loss": 9.0}
    ]
    assert metrics_at(2, log)["loss"] == 0.2
    assert metrics_at(2, log)["validation_loss"] == 9.0


def test_unreported_checkpoints_are_ascending() -> None:
    assert unreported([300, 100, 200], {200}) == [100, 300]


@pytest.mark.parametrize(
    ("errors", "retries", "again"),
    [
        ([], 0, True),
        ([], 2, False),
        ([("DagsterExecutionStepExecutionError", "ConnectionResetError")], 0, True),
        ([("DagsterExecutionStepExecutionError", "ManifestError")], 0, False),
        ([("ConnectionError",), ("ManifestError",)], 0, False),
    ],
)
def test_what_fails_for_its_input_is_not_retried(errors: list[tuple[str, ...]], retries: int, again: bool) -> None:
    assert retry_of(errors, retries) is again

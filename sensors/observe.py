"""What happens to runs on the cluster, told to Dagster once each: checkpoints, metrics, deaths, ends."""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import dagster as dg

from assets.metadata import picture, rounded
from assets.partitions import EVENT_TAG, RUN_TAG, STEP_TAG, runs
from jobs.asset_jobs import train_job
from jobs.requests import launch_request
from megahour.runs import Intent, committed_steps, find_runs, read_events
from megahour.settings import Settings
from resources.cluster import ClusterResource
from resources.clusters.protocol import Cluster, JobState
from resources.lake import LakeResource
from resources.training import done_step, read_attempts
from sensors.decide import Act, Point, Watch, act_on_job, metrics, metrics_at, points, unreported, watched
from sensors.reported import materialized, observed

AssetEvent = dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation
LOG_TAIL = 30


@dg.sensor(
    job=train_job,
    minimum_interval_seconds=Settings().sensor_interval_s,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description=(
        "Reads the runs' directories and asks the cluster: reports each checkpoint, metric and failure once, and "
        "starts the next attempt of a job that died."
    ),
)
def observe_training(
    context: dg.SensorEvaluationContext, lake: LakeResource, cluster: ClusterResource
) -> dg.SensorResult:
    settings = lake.settings
    deadline = time.monotonic() + settings.sensor_budget_s
    found = list(find_runs(settings.runs_dir))
    before = read_cursor(context.cursor)
    watches = {run_dir.name: before.get(run_dir.name, Watch()) for run_dir, _ in found}
    known = set(context.instance.get_dynamic_partitions(str(runs.name)))
    asset_events: list[AssetEvent] = []
    requests: list[dg.RunRequest] = []
    new = []
    for run_dir, intent in found:
        try:
            if isinstance(intent, Exception):
                raise intent
            run = look(run_dir, intent, watches[run_dir.name], cluster.open(), context.instance, settings)
        except Exception as error:
            context.log.error(f"The run {run_dir} cannot be observed: {type(error).__name__}: {error}")
            continue
        watches[run_dir.name] = run.watch
        asset_events += run.events
        requests += run.requests
        for line in run.log:
            context.log.warning(line)
        if run_dir.name not in known:
            new.append(run_dir.name)
        if time.monotonic() >= deadline:
            break
    return dg.SensorResult(
        asset_events=asset_events,
        run_requests=requests,
        dynamic_partitions_requests=[runs.build_add_request(new)] if new else [],
        cursor=json.dumps({name: list(asdict(watch).values()) for name, watch in watches.items()}),
    )


@dataclass(frozen=True)
class Look:
    """What one look at a run found."""

    watch: Watch
    events: tuple[AssetEvent, ...] = ()
    requests: tuple[dg.RunRequest, ...] = ()
    log: tuple[str, ...] = ()


def look(
    run_dir: Path, intent: Intent, before: Watch, cluster: Cluster, instance: dg.DagsterInstance, settings: Settings
) -> Look:
    """Look at one run. The job's state is read first, then `DONE`, then the log: each was written before the last."""
    attempts = read_attempts(run_dir)
    if before.closed == len(attempts):
        return Look(before)
    job_id = attempts[-1].job_id if attempts else cluster.find(intent.run_key)
    state = JobState.GONE if job_id is None else cluster.state(job_id)
    done = done_step(run_dir) is not None
    act = act_on_job(state, done, len(attempts), settings.train_attempts, before.dead)

    fresh = list(read_events(run_dir, before.offset))
    offset = fresh[-1][0] if fresh else before.offset
    found, past = points(intent.run_key, int(intent.config["train"]["steps"]), fresh, before.past)
    events: list[AssetEvent] = list(new_observations(intent, found, instance))
    events += new_checkpoints(run_dir, intent, instance)
    requests: tuple[dg.RunRequest, ...] = ()
    log: tuple[str, ...] = ()
    if act in (Act.RESUBMIT, Act.GIVE_UP, Act.FINISHED, Act.CANCELLED):
        tail = cluster.logs(job_id, LOG_TAIL) if job_id else ""
        events += turn(intent, act, state, len(attempts), tail, instance)
    if act is Act.RESUBMIT:
        requests = (launch_request(intent, len(attempts) + 1),)
        log = (f"Run {intent.run_key}: the job {job_id} is {state.value} without DONE, attempt {len(attempts) + 1}",)
    elif act is Act.GIVE_UP:
        log = (f"Run {intent.run_key} has failed: {len(attempts)} attempts died, see attempt_N.log in {run_dir}",)
    return Look(watched(offset, past, act, len(attempts)), tuple(events), requests, log)


def new_observations(intent: Intent, found: list[Point], instance: dg.DagsterInstance) -> Iterator[dg.AssetObservation]:
    """The points of the log that Dagster was not told yet."""
    if not found:
        return
    told = observed(instance, "training_run", intent.run_key, EVENT_TAG)
    for point in found:
        if point.event_id not in told:
            text = {"kind": point.kind, "error": str(point.event["error"])} if "error" in point.event else {}
            yield dg.AssetObservation(
                "training_run",
                partition=intent.run_key,
                description=f"{point.kind} at step {point.event.get('step')}",
                metadata={**rounded(metrics(point.event)), **text},
                tags={RUN_TAG: intent.run_key, EVENT_TAG: point.event_id},
            )


def new_checkpoints(run_dir: Path, intent: Intent, instance: dg.DagsterInstance) -> Iterator[dg.AssetMaterialization]:
    """Committed checkpoints that Dagster was not told yet, with the numbers and the curve up to their step."""
    committed = committed_steps(run_dir)
    if not committed:
        return
    told = {int(step) for step in materialized(instance, "checkpoint", intent.run_key, STEP_TAG)}
    steps = unreported(committed, told)
    if not steps:
        return
    from megahour.pictures import loss_curve

    log = [event for _, event in read_events(run_dir)]
    for step in steps:
        folder = run_dir / f"step_{step:06d}"
        until = [event for event in log if isinstance(event.get("step"), int) and event["step"] <= step]
        yield dg.AssetMaterialization(
            "checkpoint",
            partition=intent.run_key,
            description=f"{intent.recipe}, step {step}",
            metadata={
                "loss_curve": picture(loss_curve(until), "loss"),
                **rounded(metrics_at(step, until)),
                "size_bytes": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
                "recipe": intent.recipe,
                "manifest_digest": intent.manifest_digest,
                "table_versions": intent.table_versions,
                "folder": dg.MetadataValue.path(str(folder)),
            },
            tags={RUN_TAG: intent.run_key, STEP_TAG: str(step), "dagster/data_version": f"{intent.run_key}.{step}"},
        )


def turn(
    intent: Intent, act: Act, state: JobState, attempts: int, tail: str, instance: dg.DagsterInstance
) -> list[AssetEvent]:
    """The end of an attempt or of the run, as an observation, and as the verdict of the check `run_is_alive`."""
    event_id = f"{intent.run_key}.{act.value}.{attempts}"
    if event_id in observed(instance, "training_run", intent.run_key, EVENT_TAG):
        return []
    said = {
        Act.RESUBMIT: f"attempt {attempts} died, the next one starts from the last checkpoint",
        Act.GIVE_UP: f"{attempts} attempts died: the run has failed",
        Act.FINISHED: f"finished in {attempts} attempts",
        Act.CANCELLED: f"attempt {attempts} was cancelled",
    }[act]
    log = {"log": dg.MetadataValue.md(f"```\n{tail}\n```")} if act is not Act.FINISHED else {}
    observation = dg.AssetObservation(
        "training_run",
        partition=intent.run_key,
        description=said,
        metadata={"attempts": attempts, "state": state.value, **log},
        tags={RUN_TAG: intent.run_key, EVENT_TAG: event_id},
    )
    if act is Act.RESUBMIT:
        return [observation]
    verdict = dg.AssetCheckEvaluation(
        dg.AssetKey("training_run"),
        "run_is_alive",
        passed=act is Act.FINISHED,
        description=said,
        metadata={"attempts": attempts},
        severity=dg.AssetCheckSeverity.ERROR if act is Act.GIVE_UP else dg.AssetCheckSeverity.WARN,
        partition=intent.run_key,
    )
    return [observation, verdict]


def read_cursor(cursor: str | None) -> dict[str, Watch]:
    """What was remembered; a lost cursor makes every run be looked at from its first byte."""
    return {name: Watch(*values) for name, values in json.loads(cursor or "{}").items()}

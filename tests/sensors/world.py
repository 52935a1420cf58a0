"""A lake, a Dagster instance and runs on disk for sensor tests, and the daemon's part of a tick."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg

from megahour.runs import Intent, append_event, write_intent
from resources.clusters.protocol import JobSpec, JobState, Node
from resources.training import Attempt, record_attempt


def intent(run_key: str = "aaaaaaaaaaaaaaaa", digest: str = "d1", recipe: str = "r", created: int = 1) -> Intent:
    config = {"train": {"preset": "nano", "steps": 40, "seed": 0}, "evaluate": None}
    manifest = f"manifests/{recipe}/{digest}.arrow"
    created_at = f"2026-01-{created:02d}T00:00:00+00:00"
    return Intent(run_key, recipe, "file:///l", manifest, digest, {"episodes": 3}, config, "code", 0, created_at)


def make_run(runs_dir: Path, of: Intent | None = None, attempts: int = 1) -> Path:
    run_dir = write_intent(runs_dir, of or intent())
    for number in range(1, attempts + 1):
        record_attempt(run_dir, Attempt(number, f"{run_dir.name}.{number}", "fake", "now"))
    return run_dir


def commit(run_dir: Path, step: int) -> None:
    """What the trainer leaves at a checkpoint."""
    folder = run_dir / f"step_{step:06d}"
    folder.mkdir()
    (folder / "weights").write_bytes(b"12345")
    (folder / "manifest.json").write_text("{}")
    append_event(run_dir, "checkpoint", step=step, attempt="1.0", path=folder.name, size_bytes=5)


def train(run_dir: Path, first: int, last: int) -> None:
    for step in range(first, last + 1):
        append_event(run_dir, "step", step=step, attempt="1.0", loss=1 / step, step_s=0.1)


def finish(run_dir: Path, step: int) -> None:
    (run_dir / "DONE").write_text(json.dumps({"step": step}))


@dataclass
class FakeCluster:
    """A cluster whose jobs are in the states that a test says."""

    states: dict[str, JobState] = field(default_factory=dict)
    default: JobState = JobState.RUNNING

    def submit(self, spec: JobSpec) -> str:
        job_id = f"{spec.run_key}.{spec.attempt}"
        self.states.setdefault(job_id, JobState.RUNNING)
        return job_id

    def find(self, run_key: str) -> str | None:
        return next((job for job in self.states if job.startswith(run_key)), None)

    def state(self, job_id: str) -> JobState:
        return self.states.get(job_id, self.default)

    def logs(self, job_id: str, tail: int = 100) -> str:
        return f"the last words of {job_id}"

    def cancel(self, job_id: str) -> None:
        self.states[job_id] = JobState.CANCELLED

    def nodes(self) -> list[Node]:
        return []


class FakeClusterResource(dg.ConfigurableResource[None]):
    def open(self) -> FakeCluster:
        return CLUSTER


CLUSTER = FakeCluster()


def tick(
    sensor: dg.SensorDefinition, instance: dg.DagsterInstance, cursor: str | None, resources: dict[str, Any]
) -> dg.SensorResult:
    """Evaluate a sensor, and do what the daemon does up to the moment before it keeps the cursor."""
    context = dg.build_sensor_context(instance=instance, cursor=cursor, resources=resources)
    result = sensor(context)
    assert isinstance(result, dg.SensorResult)
    for event in result.asset_events or ():
        instance.report_runless_asset_event(event)
    for request in result.dynamic_partitions_requests or ():
        assert isinstance(request, dg.AddDynamicPartitionsRequest)
        instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
    return result

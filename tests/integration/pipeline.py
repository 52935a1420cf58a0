"""A real Dagster over a lake of its own: code server, daemon and webserver as processes that a test may kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg
import yaml
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.scheduler.instigation import TickStatus

from infra.laptop.services import CONFIG, HOST, MARK, ROOT, Home, answers, free_port, kill_all, listens
from megahour.runs import committed_steps, read_events
from megahour.settings import Settings
from megahour.storage import Lake, open_lake
from resources.clusters.processes import marked
from tests.trainer.toy import RECIPE, SHAPE

T = TypeVar("T")
ROLES = ("code-server", "daemon", "webserver")
"""In the order in which they start: the others look for the code location once a minute only."""

POLL_S = 0.25
LOG_TAIL = 15


class PipelineError(AssertionError):
    """The pipeline did not do what a test waits for; the message holds the ends of the logs."""


def toy_recipe(name: str = "toy", evaluate: Mapping[str, Any] | None = None, **train: Any) -> dict[str, Any]:
    """A recipe on the toy episodes that launches by itself and trains for seconds; `train` changes that section."""
    recipe = RECIPE.model_dump(mode="json", exclude_none=True) | {"name": name, "description": "Toy episodes"}
    recipe["train"] |= {"launch": True, "overrides": SHAPE} | train
    return recipe | ({"evaluate": dict(evaluate)} if evaluate else {})


@dataclass
class Pipeline:
    """A lake, its recipes, and the Dagster that works on them. Everything lies below `folder`.

    `settings` are those that the pipeline's processes have, `url` is the webserver's.
    """

    folder: Path
    changes: Mapping[str, str] = field(default_factory=dict)
    children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=lambda: {role: free_port() for role in ROLES})
    _instance: dg.DagsterInstance | None = None

    @property
    def home(self) -> Path:
        """`DAGSTER_HOME`."""
        return self.folder / "dagster"

    @property
    def recipes(self) -> Path:
        return self.folder / "recipes"

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.ports['webserver']}"

    @property
    def environment(self) -> dict[str, str]:
        """What the pipeline's processes are started with."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MEGAHOUR_", "DAGSTER_"))}
        if gl := os.environ.get("MEGAHOUR_MUJOCO_GL"):
            kept["MEGAHOUR_MUJOCO_GL"] = gl
        return {
            **kept,
            "DAGSTER_HOME": str(self.home),
            MARK: str(self.home),
            "MEGAHOUR_LAKE": str(self.folder / "lake"),
            "MEGAHOUR_SCRATCH": str(self.folder / "scratch"),
            "MEGAHOUR_RECIPES": str(self.recipes),
            "MEGAHOUR_SENSOR_INTERVAL_S": "1",
            "MEGAHOUR_SETTLE_S": "0.5",
            "OMP_NUM_THREADS": "1",
            **self.changes,
        }

    @cached_property
    def settings(self) -> Settings:
        named = {
            name.removeprefix("MEGAHOUR_").lower(): value
            for name, value in self.environment.items()
            if name.startswith("MEGAHOUR_") and name != MARK
        }
        return Settings.model_validate(named)

    @cached_property
    def lake(self) -> Lake:
        return open_lake(self.settings.lake_uri)

    @property
    def landing(self) -> Path:
        return self.folder / "lake" / "landing"

    @property
    def runs_dir(self) -> Path:
        return self.settings.runs_dir

    # The processes

    def start(self, *roles: str) -> None:
        """Start these roles, or those that do not run, and wait until they answer.

        Raises:
            PipelineError: one does not.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        self.recipes.mkdir(exist_ok=True)
        shutil.copyfile(CONFIG, self.home / "dagster.yaml")
        workspace = self.folder / "workspace.yaml"
        server = {"host": HOST, "port": self.ports["code-server"], "location_name": "megahour"}
        workspace.write_text(yaml.safe_dump({"load_from": [{"grpc_server": server}]}))
        for role in roles or [role for role in ROLES if role not in self.children]:
            port = str(self.ports[role])
            command = {
                "code-server": ["dagster", "api", "grpc", "-h", HOST, "-p", port, "-m", "definitions"],
                "daemon": ["dagster._daemon", "run", "-w", str(workspace)],
                "webserver": ["dagster_webserver", "-h", HOST, "-p", port, "-w", str(workspace)],
            }[role]
            if role == "code-server":
                command += ["--location-name", "megahour"]
            with self.log(role).open("ab") as log:
                self.children[role] = subprocess.Popen(
                    [sys.executable, "-m", *command],
                    cwd=ROOT,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            if role == "code-server":
                self.wait_for(lambda: listens(self.ports["code-server"]), "the code server listens")
        if "webserver" in self.children:
            self.wait_for(lambda: answers(f"{self.url}/server_info"), "the webserver answers")

    def kill(self, *roles: str) -> None:
        """`kill -9` these roles, or all of them. What they started is left to itself."""
        for role in roles or tuple(self.children):
            child = self.children.pop(role)
            child.kill()
            child.wait()

    def restart(self, *roles: str) -> None:
        """Kill these roles, or all, and start them again on the same ports."""
        roles = roles or tuple(role for role in ROLES if role in self.children)
        self.kill(*roles)
        self.start(*roles)

    def wipe(self) -> None:
        """Kill all of Dagster and delete all that it knows. Training jobs go on."""
        self.kill()
        kill_all(Home(self.home))
        self.forget_instance()
        shutil.rmtree(self.home)

    def processes(self) -> list[int]:
        """All living processes that descend from this pipeline, training jobs among them."""
        return [pid for pid in marked(MARK, str(self.home)) if pid != os.getpid()]

    def stop(self) -> None:
        """Kill whatever descends from this pipeline."""
        self.forget_instance()
        while alive := self.processes():
            for pid in alive:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for child in self.children.values():
                child.poll()
            time.sleep(0.05)
        for child in self.children.values():
            child.wait()
        self.children.clear()

    # What it is given

    def write_recipe(self, recipe: Mapping[str, Any]) -> None:
        """Put a recipe into the folder, whole or not at all."""
        self.recipes.mkdir(parents=True, exist_ok=True)
        partial = self.recipes / f".{recipe['name']}"
        partial.write_text(yaml.safe_dump(dict(recipe)))
        partial.replace(self.recipes / f"{recipe['name']}.yaml")

    # What it shows

    @property
    def instance(self) -> dg.DagsterInstance:
        """Dagster's storage, to read."""
        if self._instance is None:
            self._instance = dg.DagsterInstance.from_config(str(self.home))
        return self._instance

    def forget_instance(self) -> None:
        if self._instance is not None:
            self._instance.dispose()
            self._instance = None

    def materializations(self, asset: str, partition: str | None = None) -> list[dg.AssetMaterialization]:
        """All materializations of an asset, oldest first."""
        partitions = [partition] if partition is not None else None
        filters = dg.AssetRecordsFilter(asset_key=dg.AssetKey(asset), asset_partitions=partitions)
        page = self.instance.fetch_materializations(filters, limit=1000, ascending=True)
        return [found for record in page.records if (found := record.asset_materialization) is not None]

    def observations(self, asset: str, partition: str | None = None) -> list[dg.AssetObservation]:
        """All observations of an asset, oldest first."""
        partitions = [partition] if partition is not None else None
        filters = dg.AssetRecordsFilter(asset_key=dg.AssetKey(asset), asset_partitions=partitions)
        page = self.instance.fetch_observations(filters, limit=1000, ascending=True)
        return [
            record.event_log_entry.dagster_event.asset_observation_data.asset_observation  # type: ignore[union-attr]
            for record in page.records
        ]

    def checks(self) -> dict[tuple[str, str, str], dg.AssetCheckEvaluation]:
        """The latest verdict by asset, check and partition, `""` where there is none."""
        found: dict[tuple[str, str, str], dg.AssetCheckEvaluation] = {}
        for record in self.instance.get_event_records(
            dg.EventRecordsFilter(dg.DagsterEventType.ASSET_CHECK_EVALUATION), ascending=True
        ):
            event = record.event_log_entry.dagster_event
            verdict = event.event_specific_data if event is not None else None
            if isinstance(verdict, dg.AssetCheckEvaluation):
                key = (verdict.asset_key.to_user_string(), verdict.check_name, verdict.partition or "")
                found[key] = verdict
        return found

    def active_runs(self, job: str | None = None) -> list[dg.DagsterRun]:
        """Dagster runs that are queued or at work."""
        working = [status for status in dg.DagsterRunStatus if status.value not in ("SUCCESS", "FAILURE", "CANCELED")]
        return list(self.instance.get_runs(dg.RunsFilter(job_name=job, statuses=working)))

    def failed_runs(self) -> list[dg.DagsterRun]:
        return list(self.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE])))

    def run_dirs(self) -> list[Path]:
        """Directories of training runs."""
        return sorted(path.parent for path in self.runs_dir.glob("*/intent.json"))

    def cli(self, *arguments: str) -> Any:
        """What `megahour ... --json` prints."""
        done = subprocess.run(
            [sys.executable, "-c", "from megahour.cli import main; main()", *arguments, "--json"],
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    # Waiting

    def wait_for(self, condition: Callable[[], T], what: str, timeout_s: float = 120) -> T:
        """Look until the condition holds, and return what it gave.

        Raises:
            PipelineError: it took too long, or one of the processes ended.
        """
        deadline = time.monotonic() + timeout_s
        while not (found := condition()):
            for role, child in self.children.items():
                if child.poll() is not None:
                    raise PipelineError(f"The {role} ended with code {child.returncode}.\n{self.report()}")
            if time.monotonic() > deadline:
                raise PipelineError(f"Not within {timeout_s:.0f} s: {what}.\n{self.report()}")
            time.sleep(POLL_S)
        return found

    def wait_for_rest(self, timeout_s: float = 180) -> None:
        """Wait until Dagster does nothing, and every sensor has looked twice and found nothing to do.

        Raises:
            PipelineError: there is always something.
        """
        from definitions import defs

        sensors = [sensor.name for sensor in defs.sensors or []]
        since = [time.time()]

        def at_rest() -> bool:
            made = self.instance.get_run_records(limit=1)
            if self.active_runs() or (made and made[0].create_timestamp.timestamp() > since[0]):
                since[0] = time.time()
                return False
            looks = self.looks(since[0])
            return all(looks.get(sensor, 0) >= 2 for sensor in sensors)

        self.wait_for(at_rest, "Dagster is at rest", timeout_s)

    def looks(self, since_s: float) -> dict[str, int]:
        """How often each sensor began and ended a tick since that time."""
        found = {}
        for state in self.instance.all_instigator_state(instigator_type=InstigatorType.SENSOR):
            ticks = self.instance.get_ticks(state.instigator_origin_id, state.selector_id, after=since_s, limit=5)
            found[state.name] = sum(tick.status is not TickStatus.STARTED for tick in ticks)
        return found

    def log(self, role: str) -> Path:
        return self.folder / f"{role}.log"

    def report(self) -> str:
        """The ends of all logs, what failed in Dagster, and how far each training run is."""
        parts = []
        for path in [*sorted(self.folder.glob("*.log")), *sorted(self.runs_dir.glob("*/attempt_*.log"))]:
            parts.append(f"--- {path.relative_to(self.folder)}\n{tail(path)}")
        for run_dir in self.run_dirs():
            events = [event for _, event in read_events(run_dir)]
            done = "done" if (run_dir / "DONE").exists() else "not done"
            last = json.dumps(events[-1]) if events else "no event"
            parts.append(f"--- run {run_dir.name}: {done}, checkpoints {committed_steps(run_dir)}, {last}")
        if (self.home / "history").exists():
            for run in self.instance.get_runs(limit=30):
                parts.append(
                    f"--- Dagster run {run.job_name} {run.tags.get('dagster/partition', '')}: {run.status.value}"
                )
            parts += [f"--- failed: {text}" for run in self.failed_runs() for text in self.errors_of(run)]
        return "\n".join(parts)

    def errors_of(self, run: dg.DagsterRun) -> Iterator[str]:
        """What a failed Dagster run said."""
        for entry in self.instance.all_logs(run.run_id):
            event = entry.dagster_event
            error = getattr(event.event_specific_data, "error", None) if event is not None else None
            if error is not None:
                yield f"{run.job_name}: {error.to_string()[-2000:]}"


@contextmanager
def pipeline(folder: Path, roles: Sequence[str] = ROLES, **changes: str) -> Iterator[Pipeline]:
    """A running pipeline below `folder`; `changes` are environment variables. Nothing of it is left at the end."""
    made = Pipeline(folder, changes)
    try:
        made.start(*roles)
        yield made
    finally:
        made.stop()


def tail(path: Path, lines: int = LOG_TAIL) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError as error:
        return str(error)

"""Starting a run: its intent, and its job on the cluster, attempt by attempt."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from megahour.files import append_line, sync_directory
from megahour.manifest.recipe import Recipe
from megahour.runs import Intent, code_version, run_key
from megahour.storage import Lake
from resources.clusters.protocol import Cluster, JobSpec, JobState

MAX_RESTARTS = 3
"""How often torchrun restarts its ranks before the attempt has failed."""

TORCHRUN_ENVIRONMENT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""In the store that torchrun keeps over restarts, new ranks find the addresses of dead ones, and may use up all
restarts on them (pytorch/pytorch#135712): each restart gets a store of its own."""


@dataclass(frozen=True)
class Attempt:
    """One line of `attempts.jsonl`: a job that was submitted for the run."""

    attempt: int
    job_id: str
    cluster: str
    submitted_at: str


@dataclass(frozen=True)
class Launch:
    """What a launch came to. `started` is False when it attached to a job that was there, or the run was finished."""

    attempt: int
    job_id: str
    state: JobState
    started: bool


def intent_of(recipe: Recipe, lake_uri: str, manifest: str, digest: str, versions: dict[str, int]) -> Intent:
    """The run that a recipe's `train` section asks for on a manifest.

    Raises:
        ValueError: the recipe has no `train` section.
    """
    if recipe.train is None:
        raise ValueError(f"The recipe {recipe.name} has no `train` section: add one to train on its manifest")
    evaluate = None if recipe.evaluate is None else recipe.evaluate.model_dump(mode="json")
    config = {"train": recipe.train.model_dump(mode="json", exclude={"launch"}), "evaluate": evaluate}
    version = training_version()
    return Intent(
        run_key=run_key(digest, config, version, recipe.train.seed),
        recipe=recipe.name,
        lake=lake_uri,
        manifest=manifest,
        manifest_digest=digest,
        table_versions=versions,
        config=config,
        code_version=version,
        seed=recipe.train.seed,
        created_at=datetime.now(UTC).isoformat(),
    )


def latest_intents(lake: Lake, recipes: Mapping[str, Recipe]) -> tuple[list[Intent], list[str]]:
    """The runs that the latest manifests of recipes marked `launch: true` ask for, and what is wrong with others."""
    from megahour.manifest.load import latest_key, read_header

    found, problems = [], []
    for name, recipe in recipes.items():
        if recipe.train is None or not recipe.train.launch:
            continue
        try:
            if (key := latest_key(lake, name)) is not None:
                header = read_header(lake, key)
                found.append(intent_of(recipe, lake.uri, key, header.digest, header.table_versions))
        except Exception as error:
            problems.append(f"The latest manifest of the recipe {name} cannot be used: {error}")
    return found, problems


def new_runs(wanted: Iterable[Intent], existing: Iterable[Intent]) -> list[Intent]:
    """The wanted runs that nobody started: a new manifest or `train` section makes one, new code alone does not."""
    started = {identity(intent) for intent in existing}
    found = []
    for intent in wanted:
        if identity(intent) not in started:
            started.add(identity(intent))
            found.append(intent)
    return found


def identity(intent: Intent) -> tuple[str, str, int]:
    """What two runs share that are one to a sensor; the order in which a recipe names its overrides is no part."""
    return intent.manifest_digest, json.dumps(intent.config["train"], sort_keys=True), intent.seed


def training_version() -> str:
    """The version of the sources that a run executes, as they are now: a code server lives through many of them."""
    return code_version(*(source_of(package) for package in ("trainer", "megahour")))


def source_of(package: str) -> Path:
    """The folder of a package, found without importing it."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f"The package {package} is not installed here: run `make install`")
    return Path(found.submodule_search_locations[0])


def training_command(run_dir: Path, processes: int) -> tuple[str, ...]:
    """The command of one attempt: torchrun on this node, the trainer under it."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes))
    restarts = ("--max-restarts", str(MAX_RESTARTS))
    return (sys.executable, *torchrun, *restarts, "-m", "trainer.train", "--run-dir", str(run_dir))


def launch(cluster: Cluster, name: str, run_dir: Path, processes: int, up_to: int | None = None) -> Launch:
    """Make sure the run has a job: attach to a live one, or submit the next attempt.

    Killed after the submission and before `attempts.jsonl`, it submits the same attempt again, and that attaches.

    Args:
        name: the cluster's name, for the record.
        up_to: start no attempt beyond this one; None when a person asks.
    """
    attempts = read_attempts(run_dir)
    last = attempts[-1] if attempts else None
    if last is not None:
        state = cluster.state(last.job_id)
        finished = (run_dir / "DONE").exists()
        if finished or state.live or state is JobState.UNKNOWN or (up_to is not None and last.attempt >= up_to):
            return Launch(last.attempt, last.job_id, state, started=False)
    number = 1 if last is None else last.attempt + 1
    command = training_command(run_dir, processes)
    env = {**TORCHRUN_ENVIRONMENT, "MEGAHOUR_ATTEMPT": str(number)}
    job_id = cluster.submit(JobSpec(run_dir.name, number, command, run_dir, env, processes))
    record_attempt(run_dir, Attempt(number, job_id, name, datetime.now(UTC).isoformat()))
    return Launch(number, job_id, cluster.state(job_id), started=True)


def read_attempts(run_dir: Path) -> list[Attempt]:
    """The attempts submitted so far, the latest last."""
    path = run_dir / "attempts.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().splitlines()
    found = {}
    for line in lines:
        try:
            attempt = Attempt(**json.loads(line))
        except (ValueError, TypeError):
            continue
        found[attempt.attempt] = attempt
    return [found[number] for number in sorted(found)]


def record_attempt(run_dir: Path, attempt: Attempt) -> None:
    append_line(run_dir / "attempts.jsonl", json.dumps(asdict(attempt)))
    sync_directory(run_dir)


def done_step(run_dir: Path) -> int | None:
    """The step of the run's last checkpoint once it has finished, None before.

    Raises:
        ValueError: `DONE` says something else.
    """
    try:
        text = (run_dir / "DONE").read_text()
    except FileNotFoundError:
        return None
    try:
        return int(json.loads(text)["step"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{run_dir / 'DONE'} holds {text[:80]!r}, expected {{'step': N}}") from error

"""Training runs on shared storage: their key, their intent, their events. The one place that knows a run's files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from megahour.files import append_line, make_folders, write_atomically

Json = dict[str, Any]


@dataclass(frozen=True)
class Intent:
    """What a run is to do, fixed before it starts: `runs/<run_key>/intent.json`.

    `manifest` is the manifest's lake key (`manifests/<recipe>/<digest>.arrow`), `lake` the lake's URI, `config` the
    recipe's `train` and `evaluate` sections as written, `table_versions` those the manifest was built from.
    """

    run_key: str
    recipe: str
    lake: str
    manifest: str
    manifest_digest: str
    table_versions: dict[str, int]
    config: Json
    code_version: str
    seed: int
    created_at: str


def run_key(manifest_digest: str, config: Json, code_version: str, seed: int) -> str:
    """The name of a run: the same inputs give the same 16 hexadecimal digits."""
    text = json.dumps([manifest_digest, config, code_version, seed], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def code_version(*roots: Path) -> str:
    """A hash of the Python sources below `roots`: the version of code that was never released."""
    digest = hashlib.sha256()
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def write_intent(runs_dir: Path, intent: Intent) -> Path:
    """Write the intent once and return the run's directory. Writing the same run again changes nothing.

    Raises:
        ValueError: another intent is stored under this key.
    """
    run_dir = runs_dir / intent.run_key
    make_folders(run_dir)
    target = run_dir / "intent.json"
    if target.exists():
        stored = read_intent(run_dir)
        if (stored.manifest_digest, stored.config, stored.seed) != (intent.manifest_digest, intent.config, intent.seed):
            raise ValueError(
                f"{target} holds another run under the key {intent.run_key}: the directory was tampered with"
            )
        return run_dir
    write_atomically(target, json.dumps(asdict(intent), indent=2, sort_keys=True).encode())
    return run_dir


def read_intent(run_dir: Path) -> Intent:
    """The intent of a run.

    Raises:
        FileNotFoundError: there is no run in this directory.
    """
    return Intent(**json.loads((run_dir / "intent.json").read_text()))


def append_event(run_dir: Path, kind: str, **fields: Any) -> None:
    """Append one line to `events.jsonl`. Called by rank 0 alone, but for `failed`.

    Kinds: `started`, `resumed`, `step` (loss, dynamics_loss, action_loss, learning_rate, step_s), `validation`
    (loss, psnr_model_db, psnr_copy_db), `checkpoint` (path, size_bytes), `damaged` (error: a checkpoint that was set
    aside), `stopped` (a signal), `finished`, `failed` (rank, error). `step` is in all, and `attempt`.
    """
    line = json.dumps({"kind": kind, "time": datetime.now(UTC).isoformat(), **fields}, separators=(",", ":"))
    append_line(run_dir / "events.jsonl", line)


def read_events(run_dir: Path, offset: int = 0) -> Iterator[tuple[int, Json]]:
    """Whole events from byte `offset` on, each with the offset that follows it. Torn lines are passed over."""
    path = run_dir / "events.jsonl"
    if not path.exists():
        return
    with path.open("rb") as log:
        log.seek(offset)
        for line in log:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            try:
                event = json.loads(line)
            except ValueError:
                continue
            yield offset, event


def find_runs(runs_dir: Path) -> Iterator[tuple[Path, Intent | Exception]]:
    """Every run's directory with its intent, or with what is wrong with it; oldest first, the broken ones last."""
    found: list[tuple[Path, Intent]] = []
    broken: list[tuple[Path, Exception]] = []
    for path in sorted(runs_dir.glob("*/intent.json")):
        try:
            found.append((path.parent, read_intent(path.parent)))
        except (OSError, ValueError, TypeError) as error:
            broken.append((path.parent, error))
    yield from sorted(found, key=lambda run: run[1].created_at)
    yield from broken


def run_dirs(runs_dir: Path) -> list[Path]:
    """The directories of all runs whose intent can be read, oldest first."""
    return [run_dir for run_dir, intent in find_runs(runs_dir) if isinstance(intent, Intent)]


def committed_steps(run_dir: Path) -> list[int]:
    """Steps with a committed checkpoint, ascending: `step_N/` with its manifest of files."""
    return sorted(
        int(path.parent.name.removeprefix("step_"))
        for path in run_dir.glob("step_*/manifest.json")
        if not path.parent.name.endswith(".tmp")
    )

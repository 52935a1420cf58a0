"""Checkpoints under a commit protocol: a directory is whole and verified, or it does not count.

All ranks write `step_N.tmp/` with torch's distributed checkpoint. Then `manifest.json` names every file with its size
and sha256, everything is synced, the directory is renamed to `step_N/`, and only then `latest` names it. A directory is
never written into twice. Saved on any number of ranks, a checkpoint loads on any other.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_distributed
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed
from torch.optim import Optimizer

from megahour.files import sha256_of, sync_directory, sync_file, write_atomically
from megahour.runs import committed_steps


class CheckpointError(RuntimeError):
    """A checkpoint directory cannot be trusted; the message says which file and why."""


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint. `facts` is what the run said about it: keys, versions, statistics, the model's shape."""

    path: Path
    step: int
    facts: dict[str, Any]
    size_bytes: int


def directory(run_dir: Path, step: int) -> Path:
    """Where the checkpoint of a step stands once committed."""
    return run_dir / f"step_{step:06d}"


def save(
    run_dir: Path, step: int, model: nn.Module, optimizers: Sequence[Optimizer], facts: dict[str, Any]
) -> Checkpoint:
    """Write and commit a checkpoint. Called by all ranks; returns once it is durable.

    Raises:
        CheckpointError: the step is committed already, or the storage failed (no space left); nothing is committed.
    """
    final = directory(run_dir, step)
    partial = final.with_name(final.name + ".tmp")
    rank = dist.get_rank()
    if rank == 0:
        if (final / "manifest.json").exists():
            raise CheckpointError(f"{final} is committed already: a checkpoint is never written twice")
        # what a dead attempt left: neither of the two was ever named by `latest`
        for leftover in (partial, final):
            if leftover.exists():
                shutil.rmtree(leftover)
    dist.barrier()
    model_state, optimizer_state = get_state_dict(model, optimizers)
    try:
        save_distributed({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=partial)
    except CheckpointException as error:
        raise CheckpointError(f"{partial} could not be written, and nothing was committed: {_first(error)}") from error
    described: list[dict[str, dict[str, Any]]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(described, _describe_own_files(partial, rank))
    files = {name: entry for part in described for name, entry in sorted(part.items())}
    size_bytes = sum(entry["size_bytes"] for entry in files.values())
    if rank == 0:
        manifest = {"step": step, **facts, "files": files}
        write_atomically(partial / "manifest.json", json.dumps(manifest, indent=1).encode())
        partial.rename(final)
        sync_directory(run_dir)
        name_latest(final)
    dist.barrier()
    return Checkpoint(final, step, facts, size_bytes)


def _describe_own_files(partial: Path, rank: int) -> dict[str, dict[str, Any]]:
    """Size and sha256 of the files this rank wrote (`__<rank>_*`; rank 0 also owns the shared metadata)."""
    own = sorted(partial.glob(f"__{rank}_*.distcp")) + ([partial / ".metadata"] if rank == 0 else [])
    described = {}
    for path in own:
        sync_file(path)
        described[path.name] = {"size_bytes": path.stat().st_size, "sha256": sha256_of(path)}
    return described


def verify(path: Path) -> Checkpoint:
    """Read a checkpoint's manifest and check every file against it.

    Raises:
        CheckpointError: the manifest or a file is missing, cut or changed.
    """
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        files = manifest["files"]
    except FileNotFoundError:
        raise CheckpointError(f"{path} has no manifest.json: it was never committed") from None
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"{path / 'manifest.json'} cannot be read: {error}") from error
    for name, entry in files.items():
        file = path / name
        if not file.exists():
            raise CheckpointError(f"{file} is missing: the checkpoint lost a file")
        if file.stat().st_size != entry["size_bytes"]:
            raise CheckpointError(
                f"{file} has {file.stat().st_size} bytes, and had {entry['size_bytes']} when committed"
            )
        if sha256_of(file) != entry["sha256"]:
            raise CheckpointError(f"{file} is not what was committed: its sha256 differs")
    facts = {key: value for key, value in manifest.items() if key not in ("files", "step")}
    return Checkpoint(path, manifest["step"], facts, sum(entry["size_bytes"] for entry in files.values()))


def newest(run_dir: Path) -> tuple[Checkpoint | None, list[CheckpointError]]:
    """The newest checkpoint that verifies, and what is wrong with newer ones that do not."""
    problems: list[CheckpointError] = []
    for step in reversed(committed_steps(run_dir)):
        try:
            return verify(directory(run_dir, step)), problems
        except CheckpointError as error:
            problems.append(error)
    return None, problems


def name_latest(path: Path) -> None:
    """Let `latest` name a committed checkpoint."""
    write_atomically(path.with_name("latest"), path.name.encode())


def set_aside(path: Path) -> Path:
    """Move a damaged checkpoint out of the way, so that its step can be written again."""
    aside = path.with_name(f"damaged_{path.name}")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"damaged_{path.name}_{number}")
    path.rename(aside)
    return aside


def restore(checkpoint: Checkpoint, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Load weights and optimizer state into a model sharded over any number of ranks. Called by all of them.

    Raises:
        CheckpointError: the checkpoint cannot be read, or is of another shape than the model.
    """
    model_state, optimizer_state = get_state_dict(model, optimizers)
    try:
        load_distributed({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=checkpoint.path)
    except CheckpointException as error:
        raise CheckpointError(f"{checkpoint.path} cannot be loaded: {_first(error)}") from error
    set_state_dict(model, optimizers, model_state_dict=model_state, optim_state_dict=optimizer_state)


def load_weights(checkpoint: Checkpoint, model: nn.Module) -> dict[str, Tensor]:
    """The weights alone, in one process without a process group.

    Raises:
        CheckpointError: the checkpoint is of another shape than the model.
    """
    weights = {name: torch.empty_like(value) for name, value in model.state_dict().items()}
    try:
        with warnings.catch_warnings():
            # torch warns that there is one process, which is what was asked for
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load_distributed({"model": weights}, checkpoint_id=checkpoint.path, no_dist=True)
    except CheckpointException as error:
        raise CheckpointError(f"{checkpoint.path} cannot be loaded into this model: {_first(error)}") from error
    return weights


def _first(error: CheckpointException) -> str:
    """What the first rank that failed said; the rest is its stack."""
    rank, (cause, _) = min(error.failures.items())
    return f"rank {rank}: {type(cause).__name__}: {cause}"

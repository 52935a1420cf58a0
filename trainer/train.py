"""Train one run: `torchrun -m trainer.train --run-dir DIR`. What to do stands in `DIR/intent.json`.

Every rank works through the same steps. SIGTERM on any rank makes all of them save the same step and stop; a started
run goes on from its newest whole checkpoint; `DONE` says that the last step is committed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from megahour.files import write_atomically
from megahour.manifest.load import load_manifest
from megahour.runs import append_event, committed_steps, read_events, read_intent
from megahour.settings import Settings
from megahour.storage import Lake, open_lake
from trainer import checkpoint
from trainer.data import Normalization, Samples, WindowReader, prefetch, rank_share, to_batch
from trainer.flow import Batch, draw_noise, losses, seeded
from trainer.model import WorldActionModel
from trainer.optimizer import local, make_optimizers, rate_factor
from trainer.plan import Plan, TrainingError, make_plan
from trainer.ranks import Place, StopFlag, attempt_name, build_model, join_ranks
from trainer.validation import measure_copy_error, validate, validation_batches

LOG_EVERY = 10
BYTES_PER_PARAMETER = 12


def check_disk(run_dir: Path, parameters: int, checkpoints_left: int) -> None:
    """Refuse to start a run whose checkpoints will not fit: weights and two moments in float32.

    Raises:
        TrainingError: too little is free.
    """
    need = BYTES_PER_PARAMETER * parameters * checkpoints_left
    free = shutil.disk_usage(run_dir).free
    if free < need:
        raise TrainingError(
            f"{run_dir} has {free / 1e9:.1f} GB free, and {checkpoints_left} checkpoints of {parameters:,} parameters "
            f"need {need / 1e9:.1f} GB: free space, or raise train.checkpoint_every"
        )


@dataclass
class Clock:
    """Losses and time since the last report. Validation and checkpoints do not count as steps."""

    started: float = field(default_factory=time.monotonic)
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0])
    steps: int = 0

    def count(self, dynamics: float, action: float) -> None:
        self.sums[0] += dynamics
        self.sums[1] += action
        self.steps += 1

    def read(self) -> dict[str, float]:
        """Mean losses and seconds per step."""
        dynamics, action = (total / self.steps for total in self.sums)
        step_s = (time.monotonic() - self.started) / self.steps
        return {"loss": dynamics + action, "dynamics_loss": dynamics, "action_loss": action, "step_s": step_s}

    def pause(self, seconds: float) -> None:
        self.started += seconds


@dataclass
class Trainer:
    """One rank of a run: the model, the optimizers, and what a step does with them."""

    run_dir: Path
    plan: Plan
    place: Place
    model: WorldActionModel
    optimizers: tuple[Optimizer, ...]
    held_out: list[Batch]
    copy_error: float
    normalization: Normalization

    def report(self, kind: str, step: int, **fields: Any) -> None:
        """Append an event; rank 0 speaks for all."""
        if self.place.rank == 0:
            append_event(self.run_dir, kind, step=step, attempt=self.place.attempt, **fields)

    def step(self, step: int, samples: Samples, *, stop: bool) -> tuple[float, float, bool]:
        """One optimizer step; returns the mean losses, and whether any rank was asked to stop.

        Raises:
            TrainingError: the loss or its gradient is not finite, on all ranks alike.
        """
        plan, place = self.plan, self.place
        batch = to_batch(samples, self.normalization, plan.model, place.device)
        noise = draw_noise(batch, seeded(place.device, plan.intent.seed, step, place.rank))
        with place.autocast():
            loss = losses(self.model, batch, noise, self.copy_error)
        loss.total.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), plan.optimizer.clip_norm)
        factor = rate_factor(step, plan.train.steps, plan.optimizer.warmup_steps)
        rates = (plan.optimizer.muon_rate, plan.optimizer.adamw_rate)
        for optimizer, rate in zip(self.optimizers, rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad()
        # One small collective a step. The norm is in it because a finite loss may have a gradient that is not, and the
        # weights of such a step must not become a checkpoint.
        shared = torch.stack(
            [loss.dynamics.detach(), loss.action.detach(), local(norm).detach(), loss.action.new_tensor(float(stop))]
        )
        dist.all_reduce(shared)
        dynamics, action, norms, stopping = (shared / place.world).tolist()
        if not math.isfinite(dynamics + action + norms):
            raise TrainingError(
                f"The loss of step {step} or its gradient is not finite: look for NaN in the episodes' quality, or "
                "lower the rates"
            )
        return dynamics, action, stopping > 0

    def validate(self, step: int) -> None:
        """Report the held-out losses, where something is held out."""
        if self.held_out:
            seed = self.plan.intent.seed
            self.report("validation", step, **validate(self.model, self.held_out, seed, self.copy_error, self.place))

    def save(self, step: int) -> None:
        """Commit a checkpoint and report it."""
        facts = self.plan.facts(self.copy_error)
        saved = checkpoint.save(self.run_dir, step, self.model, self.optimizers, facts)
        if self.place.rank == 0:
            report_checkpoint(self.run_dir, saved, self.place.attempt)

    def run(self, reader: WindowReader, first_step: int, stop: StopFlag) -> bool:
        """All steps from `first_step` on; False when a signal ended them early."""
        train = self.plan.train
        steps = range(first_step, train.steps)
        window = prefetch(reader, self.plan.intent.seed, self.place.rank, steps, train.batch // self.place.world)
        clock = Clock()
        try:
            for step, samples in zip(steps, window, strict=True):
                dynamics, action, stopping = self.step(step, samples, stop=stop.raised)
                clock.count(dynamics, action)
                done, last = step + 1, step + 1 == train.steps
                if done % LOG_EVERY == 0 or last:
                    factor = rate_factor(step, train.steps, self.plan.optimizer.warmup_steps)
                    self.report("step", done, learning_rate=self.plan.optimizer.muon_rate * factor, **clock.read())
                    clock = Clock()
                paused = time.monotonic()
                if done % train.validate_every == 0 or last:
                    self.validate(done)
                if done % train.checkpoint_every == 0 or last or stopping:
                    self.save(done)
                if stopping and not last:
                    self.report("stopped", done, reason="a signal; the run can go on from this step")
                    return False
                clock.pause(time.monotonic() - paused)
        finally:
            window.close()
        return True


def report_checkpoint(run_dir: Path, saved: checkpoint.Checkpoint, attempt: str) -> None:
    """The event of a committed checkpoint; rank 0 appends it."""
    append_event(
        run_dir, "checkpoint", step=saved.step, attempt=attempt, path=saved.path.name, size_bytes=saved.size_bytes
    )


def resume(
    run_dir: Path, model: WorldActionModel, optimizers: tuple[Optimizer, ...], plan: Plan, place: Place
) -> tuple[int, float | None]:
    """Load the newest whole checkpoint, chosen by rank 0 for all: its step, and the video loss's scale.

    Raises:
        TrainingError: the checkpoint is of another model shape.
    """
    choice: list[checkpoint.Checkpoint | None] = [None]
    if place.rank == 0:
        choice[0], problems = checkpoint.newest(run_dir)
        for problem in problems:
            append_event(run_dir, "damaged", step=0, attempt=place.attempt, error=str(problem))
        for step in committed_steps(run_dir):
            if step > (choice[0].step if choice[0] else 0):
                checkpoint.set_aside(checkpoint.directory(run_dir, step))
        if choice[0] is not None:
            # an attempt can die between the commit and what follows it: naming it `latest`, and its event
            checkpoint.name_latest(choice[0].path)
            told = {event["step"] for _, event in read_events(run_dir) if event["kind"] == "checkpoint"}
            if choice[0].step not in told:
                report_checkpoint(run_dir, choice[0], place.attempt)
    dist.broadcast_object_list(choice)
    found = choice[0]
    if found is None:
        return 0, None
    if found.facts["model"] != json.loads(json.dumps(asdict(plan.model))):
        raise TrainingError(f"{found.path} is of another model shape than the run's: start a new run")
    checkpoint.restore(found, model, optimizers)
    return found.step, found.facts["copy_error"]


def open_split(lake: Lake, plan: Plan, place: Place, split: str, memory_bytes: int) -> WindowReader | None:
    """This rank's share of a split, or None where the split is empty."""
    rows = plan.manifest.rows(split)
    if rows.num_rows == 0:
        return None
    share = rank_share(rows, place.rank, place.world)
    return WindowReader(lake, share, plan.observation, plan.windows, memory_bytes)


def train(run_dir: Path, stop: StopFlag, settings: Settings) -> None:
    """Do what the run's intent says, from its newest checkpoint on. A run that is done stays as it is.

    Raises:
        TrainingError: the run cannot start, or its loss is not finite.
    """
    if (run_dir / "DONE").exists():
        return
    place = join_ranks()
    intent = read_intent(run_dir)
    lake = open_lake(intent.lake)
    plan = make_plan(intent, load_manifest(lake, intent.manifest, settings.scratch))
    if plan.train.batch % place.world:
        raise TrainingError(
            f"A batch of {plan.train.batch} does not divide over {place.world} ranks: change train.batch"
        )
    memory_bytes = settings.data_memory_mb * 2**20
    reader = open_split(lake, plan, place, "train", memory_bytes)
    if reader is None:
        raise TrainingError(f"Manifest {plan.manifest.key} has no training episodes: look at the recipe's split")

    model = build_model(plan.model, intent.seed, place)
    parameters = sum(p.numel() for p in model.parameters())
    optimizers = make_optimizers(model, plan.optimizer)
    first_step, copy_error = resume(run_dir, model, optimizers, plan, place)
    check_disk(run_dir, parameters, -(-(plan.train.steps - first_step) // plan.train.checkpoint_every))
    held_out = open_split(lake, plan, place, "validation", memory_bytes // 4)
    trainer = Trainer(
        run_dir,
        plan,
        place,
        model,
        optimizers,
        validation_batches(plan, held_out, place),
        measure_copy_error(reader, plan, place) if copy_error is None else copy_error,
        Normalization.of(plan.manifest.header.normalization).to(place.device),
    )
    trainer.report(
        "resumed" if first_step else "started",
        first_step,
        steps=plan.train.steps,
        ranks=place.world,
        parameters=parameters,
        device=place.device.type,
    )
    if trainer.run(reader, first_step, stop):
        if place.rank == 0:
            write_atomically(run_dir / "DONE", json.dumps({"step": plan.train.steps}).encode())
        trainer.report("finished", plan.train.steps)


def main() -> None:
    stop = StopFlag()
    parser = argparse.ArgumentParser(description="Train one run, from its newest checkpoint on.")
    parser.add_argument("--run-dir", type=Path, required=True, help="the run's directory, with its intent.json")
    run_dir = parser.parse_args().run_dir
    try:
        train(run_dir, stop, Settings())
    except Exception as error:
        # every rank for itself: the one that began it says why, the others that they lost it
        rank, text = int(os.environ.get("RANK", "0")), f"{type(error).__name__}: {error}"
        append_event(run_dir, "failed", step=0, attempt=attempt_name(), rank=rank, error=text)
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    if stop.raised and not (run_dir / "DONE").exists():
        raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()

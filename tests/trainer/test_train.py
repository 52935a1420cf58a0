"""A whole run on real processes: it learns, it stops and goes on, and nothing is lost or done twice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from megahour.manifest.load import load_manifest
from megahour.runs import committed_steps, read_events, read_intent
from megahour.storage import Lake
from tests.trainer.toy import environment, make_run, torchrun, train
from trainer import checkpoint
from trainer.export import export, load_export, read_weights
from trainer.plan import TrainingError, make_plan
from trainer.train import check_disk


def events(run_dir: Path, kind: str = "") -> list[dict[str, Any]]:
    return [event for _, event in read_events(run_dir) if kind in ("", event["kind"])]


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def start(run_dir: Path, ranks: int, restarts: int = 0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        torchrun(run_dir, ranks, restarts),
        env=environment(run_dir.parent / "scratch"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def weights(run_dir: Path, step: int) -> dict[str, Any]:
    return read_weights(run_dir, step)[1]


@pytest.fixture(scope="module")
def finished(toy_lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 100 steps on two ranks, trained without a disturbance."""
    run_dir, _ = make_run(
        toy_lake, tmp_path_factory.mktemp("runs"), steps=100, batch=16, checkpoint_every=25, validate_every=50
    )
    done = train(run_dir, ranks=2)
    assert done.returncode == 0, done.stderr[-3000:]
    return run_dir


def test_a_run_learns_and_says_so(finished: Path) -> None:
    losses = [event["loss"] for event in events(finished, "step")]
    assert len(losses) == 10
    assert losses[-1] < 0.7 * losses[0]
    validation = events(finished, "validation")
    assert [event["step"] for event in validation] == [50, 100]
    assert validation[-1]["loss"] < validation[0]["loss"]
    assert [event["step"] for event in events(finished, "checkpoint")] == committed_steps(finished) == [25, 50, 75, 100]
    assert [event["kind"] for event in events(finished)][:: len(events(finished)) - 1] == ["started", "finished"]
    assert json.loads((finished / "DONE").read_text()) == {"step": 100}


def test_a_checkpoint_carries_its_lineage(finished: Path) -> None:
    facts = checkpoint.verify(finished / "step_000100").facts
    intent = read_intent(finished)
    assert facts["run_key"] == intent.run_key == finished.name
    assert facts["manifest_digest"] == intent.manifest_digest
    assert facts["table_versions"] == intent.table_versions and facts["table_versions"]
    assert facts["normalization"]["state"]["mean"]


def test_a_finished_run_started_again_changes_nothing(finished: Path) -> None:
    before = (finished / "events.jsonl").read_bytes()
    assert train(finished, ranks=1).returncode == 0
    assert (finished / "events.jsonl").read_bytes() == before


def test_an_export_holds_the_checkpoints_weights(finished: Path) -> None:
    folder = export(finished, 50)
    assert export(finished, 50) == folder
    model, facts = load_export(folder)
    saved = weights(finished, 50)
    assert facts["run_key"] == finished.name and facts["step"] == 50
    assert all((model.state_dict()[name] == value).all() for name, value in saved.items())
    import torch

    pt = torch.load(folder / "model.pt", weights_only=True)
    assert json.loads(pt["facts"])["manifest_digest"] == facts["manifest_digest"]
    assert all((pt["weights"][name] == value).all() for name, value in saved.items())


def test_stopped_by_a_signal_it_goes_on_as_if_nothing_had_been(finished: Path, toy_lake: Lake, tmp_path: Path) -> None:
    run_dir, _ = make_run(toy_lake, tmp_path, steps=100, batch=16, checkpoint_every=25, validate_every=50)
    process = start(run_dir, ranks=2)
    wait_for(lambda: bool(events(run_dir, "step")), process)
    ranks = [child for child in psutil.Process(process.pid).children() if "trainer.train" in child.cmdline()]
    assert len(ranks) == 2
    # one rank is asked, and all stop after the same step
    ranks[1].send_signal(signal.SIGTERM)
    process.wait(timeout=120)
    stopped = events(run_dir, "stopped")[0]["step"]
    assert 10 <= stopped < 100 and committed_steps(run_dir)[-1] == stopped
    assert train(run_dir, ranks=2).returncode == 0
    assert events(run_dir, "resumed")[0]["step"] == stopped
    undisturbed, resumed = weights(finished, 100), weights(run_dir, 100)
    assert all((undisturbed[name] == value).all() for name, value in resumed.items())


def test_a_rank_killed_in_the_middle_is_restarted_from_the_last_checkpoint(
    finished: Path, toy_lake: Lake, tmp_path: Path
) -> None:
    run_dir, _ = make_run(toy_lake, tmp_path, steps=100, batch=16, checkpoint_every=25, validate_every=50)
    process = start(run_dir, ranks=2, restarts=1)
    wait_for(lambda: 25 in committed_steps(run_dir), process)
    ranks = [child for child in psutil.Process(process.pid).children() if "trainer.train" in child.cmdline()]
    ranks[0].kill()
    assert process.wait(timeout=200) == 0
    resumed = events(run_dir, "resumed")
    assert len(resumed) == 1 and resumed[0]["step"] in (25, 50, 75) and resumed[0]["attempt"] != "1.0"
    reported = [event["step"] for event in events(run_dir, "checkpoint")]
    assert reported == sorted(set(reported)) == committed_steps(run_dir) == [25, 50, 75, 100]
    undisturbed = weights(finished, 100)
    assert all((undisturbed[name] == value).all() for name, value in weights(run_dir, 100).items())


def test_ranks_whose_torchrun_is_killed_save_and_end(toy_lake: Lake, tmp_path: Path) -> None:
    run_dir, _ = make_run(toy_lake, tmp_path, steps=2000, batch=16, checkpoint_every=1000, validate_every=2000)
    process = start(run_dir, ranks=2)
    wait_for(lambda: bool(events(run_dir, "step")), process)
    ranks = [child for child in psutil.Process(process.pid).children() if "trainer.train" in child.cmdline()]
    process.kill()
    process.wait()
    try:
        assert psutil.wait_procs(ranks, timeout=60)[1] == []
    finally:
        for rank in ranks:
            with suppress(psutil.NoSuchProcess):
                rank.kill()
    assert events(run_dir, "stopped")[0]["step"] == committed_steps(run_dir)[-1] < 1000


def test_a_damaged_newest_checkpoint_is_set_aside_and_trained_again(toy_lake: Lake, tmp_path: Path) -> None:
    run_dir, _ = make_run(toy_lake, tmp_path)
    assert train(run_dir, ranks=1).returncode == 0
    good = weights(run_dir, 6)
    (run_dir / "DONE").unlink()
    file = next((run_dir / "step_000006").glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-7])
    assert train(run_dir, ranks=1).returncode == 0
    assert "bytes" in events(run_dir, "damaged")[0]["error"]
    assert events(run_dir, "resumed")[0]["step"] == 3
    assert (run_dir / "damaged_step_000006").is_dir()
    assert all((good[name] == value).all() for name, value in weights(run_dir, 6).items())
    # killed between the last commit and what follows it
    (run_dir / "DONE").unlink()
    (run_dir / "latest").write_text("step_000003")
    log = run_dir / "events.jsonl"
    lines = [line for line in log.read_text().splitlines(keepends=True) if '"step_000006"' not in line]
    log.write_text("".join(lines))
    assert train(run_dir, ranks=1).returncode == 0
    assert (run_dir / "DONE").exists() and (run_dir / "latest").read_text() == "step_000006"
    assert [event["step"] for event in events(run_dir, "checkpoint")] == [3, 6]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"preset": "huge"}, "choose one of nano, 5b, 14b"),
        ({"preset": "14b", "overrides": {}}, "encoders, whose weights are not installed here"),
        ({"overrides": {"patch": (1, 12, 12)}}, "change observation.size"),
        ({"overrides": {"actions_per_block": 3}}, "2 pictures and 3 actions per block, .* hold 2 and 2"),
    ],
)
def test_a_run_that_cannot_work_is_refused_before_it_starts(
    toy_lake: Lake, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    run_dir, manifest = make_run(toy_lake, tmp_path, **changes)
    with pytest.raises(TrainingError, match=said):
        make_plan(read_intent(run_dir), load_manifest(toy_lake, manifest.key, tmp_path))


def test_a_run_that_fails_says_why_in_its_events(toy_lake: Lake, tmp_path: Path) -> None:
    run_dir, _ = make_run(toy_lake, tmp_path, batch=3)
    assert train(run_dir, ranks=2).returncode != 0
    failed = events(run_dir, "failed")
    assert {event["rank"] for event in failed} == {0, 1}, (
        "each for itself: of two ranks one may only have lost the other"
    )
    assert all("does not divide over 2 ranks" in e["error"] and e["attempt"] == "1.0" for e in failed)
    assert not (run_dir / "DONE").exists()


BROKEN_GRADIENT = """
import trainer.train
from trainer.flow import Losses
real = trainer.train.losses
def losses(*arguments):
    found = real(*arguments)
    nothing = found.action - found.action.detach()
    return Losses(found.dynamics, found.action + nothing.abs().sqrt())
trainer.train.losses = losses
trainer.train.main()
"""


def test_a_step_whose_gradient_is_not_finite_becomes_no_checkpoint(toy_lake: Lake, tmp_path: Path) -> None:
    run_dir, _ = make_run(toy_lake, tmp_path, checkpoint_every=1)
    program = [sys.executable, "-c", BROKEN_GRADIENT, "--run-dir", str(run_dir)]
    assert subprocess.run(program, env=environment(tmp_path / "scratch"), capture_output=True).returncode != 0
    assert "or its gradient is not finite" in events(run_dir, "failed")[0]["error"]
    assert committed_steps(run_dir) == []


def test_a_disk_too_small_for_the_checkpoints_is_found_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"free space, or raise train\.checkpoint_every"):
        check_disk(tmp_path, parameters=10**15, checkpoints_left=3)
    check_disk(tmp_path, parameters=1000, checkpoints_left=3)

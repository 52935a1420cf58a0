"""The commit protocol of checkpoints: whole or not at all, and the same on any number of ranks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from megahour.runs import committed_steps
from trainer import checkpoint
from trainer.checkpoint import CheckpointError
from trainer.config import OptimizerConfig, model_config
from trainer.model import WorldActionModel
from trainer.optimizer import make_optimizers

CONFIG = model_config(
    "nano",
    state_dim=3,
    action_dim=2,
    overrides={"dim": 24, "ffn_dim": 40, "layers": 2, "heads": 2, "adapter_dim": 10, "frequency_dim": 16},
)


def work(rank: int, world: int, folder: str, load_step: int, save_step: int, die: str) -> None:
    """One rank: build a model, perhaps load, take a step, save; rank 0 leaves the digest of all it holds."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    meet = f"file://{folder}/meet_{load_step}_{save_step}_{world}"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=world)
    torch.manual_seed(load_step)
    model = WorldActionModel(CONFIG)
    mesh = init_device_mesh("cpu", (world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizers = make_optimizers(model, OptimizerConfig())
    run_dir = Path(folder)
    if load_step:
        checkpoint.restore(checkpoint.verify(checkpoint.directory(run_dir, load_step)), model, optimizers)
    if save_step:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        for optimizer in optimizers:
            optimizer.step()
        if die == "in_save" and rank == world - 1:
            checkpoint.get_state_dict = lambda *_: os._exit(9)
        if die == "before_commit" and rank == 0:
            checkpoint.write_atomically = lambda *_: os._exit(9)
        if die == "before_latest" and rank == 0:
            checkpoint.sync_directory = lambda *_: os._exit(9)
        checkpoint.save(run_dir, save_step, model, optimizers, {"run_key": "k"})
    held = {name: whole(p) for name, p in model.named_parameters()}
    for number, each in enumerate(optimizers):
        for i, state in enumerate(each.state.values()):
            held |= {f"{number}.{i}.{key}": whole(value) for key, value in state.items()}
    if rank == 0:
        torch.save(held, f"{folder}/held_{world}.pt")
    dist.destroy_process_group()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def run_ranks(
    world: int, folder: Path, load_step: int = 0, save_step: int = 0, die: str = ""
) -> dict[str, torch.Tensor]:
    mp.spawn(work, args=(world, str(folder), load_step, save_step, die), nprocs=world)
    return torch.load(folder / f"held_{world}.pt")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with a checkpoint of step 1, saved on two ranks."""
    folder = tmp_path_factory.mktemp("saved")
    run_ranks(2, folder, save_step=1)
    return folder


def copy_of(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "run"))


def test_saved_on_two_ranks_it_is_the_same_on_one_and_on_three(saved: Path, tmp_path: Path) -> None:
    run_dir = copy_of(saved, tmp_path)
    before = torch.load(run_dir / "held_2.pt")
    for world in (1, 3):
        after = run_ranks(world, run_dir, load_step=1)
        assert before.keys() == after.keys()
        assert len(before) > len(list(WorldActionModel(CONFIG).parameters()))
        for name, value in before.items():
            assert torch.equal(value, after[name]), name


def test_a_commit_names_every_file_and_then_latest_moves(saved: Path) -> None:
    step = saved / "step_000001"
    manifest = json.loads((step / "manifest.json").read_text())
    assert manifest["step"] == 1 and manifest["run_key"] == "k"
    assert set(manifest["files"]) == {path.name for path in step.iterdir()} - {"manifest.json"}
    assert {name.split("_")[2] for name in manifest["files"] if name.endswith(".distcp")} == {"0", "1"}
    assert (saved / "latest").read_text() == "step_000001"
    assert not list(saved.glob("*.tmp"))


@pytest.mark.parametrize(("die", "committed"), [("in_save", []), ("before_commit", []), ("before_latest", [2])])
def test_killed_while_saving_nothing_half_counts(saved: Path, tmp_path: Path, die: str, committed: list[int]) -> None:
    run_dir = copy_of(saved, tmp_path)
    with pytest.raises(Exception, match="exit code 9"):
        run_ranks(2, run_dir, load_step=1, save_step=2, die=die)
    assert committed_steps(run_dir) == [1, *committed]
    newest, problems = checkpoint.newest(run_dir)
    assert newest is not None and newest.step == max(committed, default=1) and not problems
    assert (run_dir / "latest").read_text() == "step_000001"
    if not committed:
        # the next attempt cleans up and commits the same step; two other ranks meet at another place
        run_ranks(1, run_dir, load_step=1, save_step=2)
        assert committed_steps(run_dir) == [1, 2]


def test_a_committed_step_is_never_written_again(saved: Path, tmp_path: Path) -> None:
    run_dir = copy_of(saved, tmp_path)
    before = {path: path.read_bytes() for path in (run_dir / "step_000001").iterdir()}
    with pytest.raises(Exception, match="never written twice"):
        run_ranks(1, run_dir, load_step=1, save_step=1)
    assert {path: path.read_bytes() for path in (run_dir / "step_000001").iterdir()} == before


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "said"), [(flip, "sha256 differs"), (cut, "when committed"), (Path.unlink, "lost a file")]
)
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    saved: Path, tmp_path: Path, damage: object, said: str
) -> None:
    run_dir = copy_of(saved, tmp_path)
    shutil.copytree(run_dir / "step_000001", run_dir / "step_000005")
    damage(next((run_dir / "step_000005").glob("*.distcp")))  # type: ignore[operator]
    newest, problems = checkpoint.newest(run_dir)
    assert newest is not None and newest.step == 1
    assert len(problems) == 1 and said in str(problems[0])
    aside = checkpoint.set_aside(run_dir / "step_000005")
    assert committed_steps(run_dir) == [1] and aside.is_dir()


def test_a_directory_without_a_manifest_does_not_count(saved: Path, tmp_path: Path) -> None:
    run_dir = copy_of(saved, tmp_path)
    (run_dir / "step_000001" / "manifest.json").unlink()
    assert checkpoint.newest(run_dir) == (None, [])
    with pytest.raises(CheckpointError, match="never committed"):
        checkpoint.verify(run_dir / "step_000001")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_disk_that_fills_up_in_a_save_commits_nothing_and_loses_nothing(saved: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=True)
    try:
        shutil.copytree(saved, disk, dirs_exist_ok=True)
        save_bytes = sum(path.stat().st_size for path in (disk / "step_000001").iterdir())
        filler = disk / "filler"
        filler.write_bytes(b"\0" * (shutil.disk_usage(disk).free - save_bytes // 2))
        with pytest.raises(Exception, match="could not be written, and nothing was committed"):
            run_ranks(1, disk, load_step=1, save_step=2)
        assert committed_steps(disk) == [1]
        assert (disk / "latest").read_text() == "step_000001"
        filler.unlink()
        (disk / "meet_1_2_1").unlink(missing_ok=True)
        run_ranks(1, disk, load_step=1, save_step=2)
        assert committed_steps(disk) == [1, 2]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_weights_of_another_shape_are_refused(saved: Path) -> None:
    other = WorldActionModel(model_config("nano", state_dim=4, action_dim=2, overrides={"dim": 24, "heads": 2}))
    with pytest.raises(CheckpointError, match="cannot be loaded into this model"):
        checkpoint.load_weights(checkpoint.verify(saved / "step_000001"), other)

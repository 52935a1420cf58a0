"""Muon: orthogonal updates, the same on any number of ranks, and the same as torch's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from trainer.config import OptimizerConfig, model_config
from trainer.model import WorldActionModel
from trainer.optimizer import Muon, _owners, _row_bounds, make_optimizers, orthogonalize, rate_factor

SHAPES = [(7, 5), (3, 9), (8, 8), (1, 4)]
"""Rows that divide evenly over no number of ranks, and fewer rows than ranks."""


def make_matrices() -> nn.ParameterList:
    torch.manual_seed(0)
    return nn.ParameterList(nn.Parameter(torch.randn(shape)) for shape in SHAPES)


def gradients(step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def take_steps(matrices: nn.ParameterList, steps: int = 3) -> list[torch.Tensor]:
    muon = Muon(matrices, lr=0.02, momentum=0.95)
    for step in range(steps):
        for p, gradient in zip(matrices, gradients(step), strict=True):
            if isinstance(p, DTensor):
                bounds, rank = _row_bounds(p.shape[0], dist.get_world_size()), dist.get_rank()
                local = gradient[bounds[rank] : bounds[rank + 1]].clone()
                p.grad = DTensor.from_local(local, p.device_mesh, p.placements, shape=p.shape, stride=p.stride())
            else:
                p.grad = gradient
        muon.step()
    return [p.full_tensor() if isinstance(p, DTensor) else p.detach() for p in matrices]


class Shell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrices = make_matrices()


def sharded_worker(rank: int, world: int, folder: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    shell = Shell()
    fully_shard(shell, mesh=init_device_mesh("cpu", (world,)))
    result = take_steps(shell.matrices)
    if rank == 0:
        torch.save([r.detach().clone() for r in result], f"{folder}/result.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("world", [2, 3])
def test_sharded_steps_are_bitwise_those_of_one_process(world: int, tmp_path: Path) -> None:
    mp.spawn(sharded_worker, args=(world, str(tmp_path)), nprocs=world)
    for sharded, alone in zip(torch.load(tmp_path / "result.pt"), take_steps(make_matrices()), strict=True):
        assert torch.equal(sharded, alone)


def test_steps_agree_with_torchs_own_muon() -> None:
    """Torch iterates in bfloat16, so they agree to its three digits."""
    ours, theirs = make_matrices(), make_matrices()
    reference = torch.optim.Muon(theirs, lr=0.02, momentum=0.95, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for step in range(3):
        for p, gradient in zip(theirs, gradients(step), strict=True):
            p.grad = gradient
        reference.step()
    before = make_matrices()
    for p, q, start in zip(take_steps(ours), theirs, before, strict=True):
        assert (p - q).norm() < 0.03 * (q - start).norm()


def test_orthogonalizing_brings_all_singular_values_near_one() -> None:
    torch.manual_seed(1)
    for shape in ((6, 20), (20, 6), (4, 12, 12)):
        values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
        assert values.max() < 1.3
        assert values.median() > 0.6


def test_every_matrix_has_one_owner_and_the_work_is_shared() -> None:
    shapes: list[tuple[int, ...]] = [*[(128, 128)] * 16, *[(512, 128)] * 8]
    owned = _owners(shapes, 3)
    assert sorted(i for mine in owned for i in mine) == list(range(24))
    costs = [sum(min(shapes[i]) ** 2 * max(shapes[i]) for i in mine) for mine in owned]
    assert max(costs) <= 1.2 * min(costs)


def test_blocks_matrices_go_to_muon_and_all_else_to_adamw() -> None:
    model = WorldActionModel(model_config("nano", state_dim=4, action_dim=4))
    muon, adamw = make_optimizers(model, OptimizerConfig())
    in_muon = {id(p) for group in muon.param_groups for p in group["params"]}
    in_adamw = {id(p) for group in adamw.param_groups for p in group["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in in_muon}
    assert not in_muon & in_adamw
    assert len(in_muon) + len(in_adamw) == len(list(model.parameters()))
    assert len(names) == 4 * 6
    assert all(name.endswith("weight") and name.startswith("blocks.") for name in names)


def test_rates_rise_stay_and_fall_to_zero() -> None:
    rates = [rate_factor(step, 300, 20) for step in range(300)]
    assert rates[0] == 1 / 20 and rates[19] == rates[149] == 1.0
    assert rates[225] == 0.5 and 0 < rates[299] < 0.01
    assert rates[19:] == sorted(rates[19:], reverse=True)

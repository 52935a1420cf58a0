"""Muon for the matrices of blocks, AdamW for the rest, over plain or FSDP2-sharded parameters.

Muon (Keller Jordan, "Muon: An optimizer for hidden layers") orthogonalises each matrix's momentum. Sharded matrices are
gathered in one collective, each rank orthogonalises its share of them, and a second collective returns the results.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer

from trainer.config import OptimizerConfig

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalize(matrix: Tensor, steps: int = 5) -> Tensor:
    """The nearest semi-orthogonal matrix, roughly, by a quintic Newton-Schulz iteration; leading axes are a batch.

    Runs in bfloat16 on a GPU and in float32 elsewhere, where bfloat16 is slower.
    """
    a, b, c = NEWTON_SCHULZ
    x = matrix.bfloat16() if matrix.is_cuda else matrix.float()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(matrix.dtype)


class Muon(Optimizer):
    """Muon whose step has the size of AdamW's: each update is scaled by `0.2 sqrt(max(rows, columns))`."""

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float, momentum: float) -> None:
        super().__init__(list(matrices), {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            matrices = [p for p in group["params"] if p.grad is not None]
            if matrices:
                updates = self._share_work(matrices, [self._momentum(p, group["momentum"]) for p in matrices])
                for p, update in zip(matrices, updates, strict=True):
                    scale = 0.2 * max(p.shape) ** 0.5
                    local(p).add_(update, alpha=-group["lr"] * scale)

    def _momentum(self, p: nn.Parameter, momentum: float) -> Tensor:
        """This rank's rows of the Nesterov momentum."""
        state = self.state[p]
        if not state:
            state["momentum"] = torch.zeros_like(p)
        grad, buffer = local(p.grad), local(state["momentum"])
        buffer.lerp_(grad, 1 - momentum)
        return grad.lerp(buffer, momentum)

    def _share_work(self, matrices: list[nn.Parameter], rows: list[Tensor]) -> list[Tensor]:
        """Orthogonalise matrices given this rank's rows of each; returns this rank's rows of the results."""
        first = matrices[0]
        if not isinstance(first, DTensor):
            return _orthogonalize_all(rows)
        mesh = first.device_mesh
        group, world, rank = mesh.get_group(), mesh.size(), mesh.get_local_rank()
        shapes = [tuple(p.shape) for p in matrices]
        bounds = [_row_bounds(shape[0], world) for shape in shapes]
        sizes = [[(b[r + 1] - b[r]) * s[1] for b, s in zip(bounds, shapes, strict=True)] for r in range(world)]
        parts = _gather(torch.cat([r.flatten() for r in rows]), [sum(size) for size in sizes], group)
        split = [part.split(size) for part, size in zip(parts, sizes, strict=True)]

        owned = _owners(shapes, world)
        full = [torch.cat([split[r][i] for r in range(world)]).view(shapes[i]) for i in owned[rank]]
        done = _orthogonalize_all(full)
        empty = rows[0].new_empty(0)
        results = _gather(
            torch.cat([d.flatten() for d in done]) if done else empty,
            [sum(shapes[i][0] * shapes[i][1] for i in mine) for mine in owned],
            group,
        )
        mine: dict[int, Tensor] = {}
        for owner, indices in enumerate(owned):
            pieces = results[owner].split([shapes[i][0] * shapes[i][1] for i in indices])
            for i, piece in zip(indices, pieces, strict=True):
                mine[i] = piece.view(shapes[i])[bounds[i][rank] : bounds[i][rank + 1]]
        return [mine[i] for i in range(len(matrices))]


def local(tensor: Tensor | None) -> Tensor:
    """This rank's part of a sharded tensor; a plain one as it is."""
    assert tensor is not None
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _row_bounds(rows: int, world: int) -> list[int]:
    """First rows of the ranks' shards under `Shard(0)`: chunks of equal size, the last ones shorter or empty."""
    chunk = -(-rows // world)
    return [min(r * chunk, rows) for r in range(world + 1)]


def _owners(shapes: list[tuple[int, ...]], world: int) -> list[list[int]]:
    """Which rank orthogonalises which matrices: the costliest first, each to the rank with least to do."""
    cost = [min(s) * min(s) * max(s) for s in shapes]
    load, owned = [0] * world, [[] for _ in range(world)]  # type: tuple[list[int], list[list[int]]]
    for i in sorted(range(len(shapes)), key=lambda i: (-cost[i], i)):
        rank = load.index(min(load))
        load[rank] += cost[i]
        owned[rank].append(i)
    return owned


def _gather(mine: Tensor, sizes: list[int], group: dist.ProcessGroup) -> list[Tensor]:
    """All ranks' flat tensors of known, unequal sizes, in one collective."""
    longest = max(sizes)
    sent = mine.new_zeros(longest)
    sent[: mine.numel()] = mine
    received = mine.new_empty(len(sizes) * longest)
    dist.all_gather_single(received, sent, group=group)
    return [part[:size] for part, size in zip(received.split(longest), sizes, strict=True)]


def _orthogonalize_all(matrices: list[Tensor]) -> list[Tensor]:
    """Orthogonalise matrices, those of one shape in one batch."""
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for i, matrix in enumerate(matrices):
        by_shape.setdefault(tuple(matrix.shape), []).append(i)
    done: dict[int, Tensor] = {}
    for indices in by_shape.values():
        stacked = orthogonalize(torch.stack([matrices[i] for i in indices]))
        done.update(zip(indices, stacked.unbind(0), strict=True))
    return [done[i] for i in range(len(matrices))]


def make_optimizers(model: nn.Module, config: OptimizerConfig) -> tuple[Muon, AdamW]:
    """One optimizer for the blocks' matrices, one for everything else."""
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_matrix = name.startswith("blocks.") and parameter.ndim == 2 and not name.endswith("modulation")
        (matrices if is_matrix else rest).append(parameter)
    muon = Muon(matrices, lr=config.muon_rate, momentum=config.muon_momentum)
    return muon, AdamW(rest, lr=config.adamw_rate, betas=(0.9, 0.95), weight_decay=0.0)


def rate_factor(step: int, steps: int, warmup_steps: int) -> float:
    """The learning rate at `step`, as a share of its peak: linear warm-up, level, linear to zero over the last half."""
    rising = (step + 1) / max(1, warmup_steps)
    falling = (steps - step) / max(1, steps - steps // 2)
    return min(1.0, rising, falling)

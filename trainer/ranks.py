"""The ranks of a run: how they meet, how a model is laid over them, how they are asked to stop."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from megahour.parent import end_with_parent
from trainer.config import ModelConfig
from trainer.model import WorldActionModel

LEAVE_S = 30.0
"""How long a rank without its torchrun may take to save."""


@dataclass(frozen=True)
class Place:
    """Where this process stands among the ranks."""

    rank: int
    world: int
    device: torch.device
    mesh: DeviceMesh
    attempt: str

    def autocast(self) -> torch.autocast:
        """Matrix products in bfloat16 on a GPU; weights, sums and the optimizer stay in float32."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")


class StopFlag:
    """Whether this process should stop: a signal asked it to, or the torchrun that started it is gone."""

    def __init__(self) -> None:
        self.raised = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._raise)
        if "TORCHELASTIC_RUN_ID" in os.environ:
            end_with_parent(os.getppid(), self._leave)

    def _raise(self, number: int, frame: object) -> None:
        self.raised = True

    def _leave(self) -> None:
        # Ranks that nobody watches would wait for a dead one for ever, and hold the run's place on the cluster.
        self.raised = True
        time.sleep(LEAVE_S)
        os._exit(1)


def join_ranks() -> Place:
    """Meet the other ranks (`torchrun` set the environment; alone, this process is the whole world)."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        os.environ.setdefault(name, value)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        local_world = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_world))
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("shard",))
    return Place(dist.get_rank(), dist.get_world_size(), device, mesh, attempt_name())


def attempt_name() -> str:
    """Which start of the ranks this is: the job's attempt, and torchrun's restart within it."""
    return f"{os.environ.get('MEGAHOUR_ATTEMPT', '1')}.{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def build_model(config: ModelConfig, seed: int, place: Place) -> WorldActionModel:
    """The model with its first weights, the same on any number of ranks, sharded over them block by block."""
    torch.manual_seed(seed)
    model = WorldActionModel(config).to(place.device)
    for block in model.blocks:
        fully_shard(block, mesh=place.mesh)
    fully_shard(model, mesh=place.mesh)
    return model

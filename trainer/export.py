"""Weights alone, for whoever runs the model: `python -m trainer.export --run-dir DIR --step N`.

`DIR/export/step_N/` gets `model.safetensors`, `model.pt` (`torch.load(..., weights_only=True)`) and `export.json` with
the model's shape, the normalisation and the lineage. It appears whole or not at all.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from megahour.files import sha256_of, sync_directory, sync_file, write_atomically
from trainer import checkpoint
from trainer.config import ModelConfig
from trainer.model import WorldActionModel


def shape_of(facts: dict[str, Any]) -> ModelConfig:
    """The model's shape as a checkpoint's or an export's JSON holds it."""
    return ModelConfig(**{**facts["model"], "patch": tuple(facts["model"]["patch"])})


def read_weights(run_dir: Path, step: int) -> tuple[checkpoint.Checkpoint, dict[str, Tensor]]:
    """A verified checkpoint of a run and its weights.

    Raises:
        trainer.checkpoint.CheckpointError: it cannot be trusted or loaded.
    """
    saved = checkpoint.verify(checkpoint.directory(run_dir, step))
    return saved, checkpoint.load_weights(saved, WorldActionModel(shape_of(saved.facts)))


def export(run_dir: Path, step: int) -> Path:
    """Write the export of a checkpoint and return its folder. Exporting again gives the same files.

    Raises:
        trainer.checkpoint.CheckpointError: the checkpoint cannot be trusted.
    """
    folder = run_dir / "export" / f"step_{step:06d}"
    if (folder / "export.json").exists():
        return folder
    saved, weights = read_weights(run_dir, step)
    partial = folder.with_name(f".{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    text = json.dumps({"step": step, **saved.facts}, sort_keys=True)
    save_file(weights, partial / "model.safetensors", metadata={"megahour": text})
    torch.save({"weights": weights, "facts": text}, partial / "model.pt")
    for name in ("model.safetensors", "model.pt"):
        sync_file(partial / name)
    digest = sha256_of(partial / "model.safetensors")
    described = {"step": step, "sha256": digest, "parameters": sum(w.numel() for w in weights.values()), **saved.facts}
    write_atomically(partial / "export.json", json.dumps(described, indent=1, sort_keys=True).encode())
    partial.rename(folder)
    sync_directory(folder.parent)
    return folder


def load_export(folder: Path) -> tuple[WorldActionModel, dict[str, Any]]:
    """The exported model, ready for inference, and what is said about it."""
    facts = json.loads((folder / "export.json").read_text())
    model = WorldActionModel(shape_of(facts))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval().requires_grad_(False), facts


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the weights of a checkpoint as safetensors and as a .pt file.")
    parser.add_argument("--run-dir", type=Path, required=True, help="the run's directory")
    parser.add_argument("--step", type=int, required=True, help="the checkpoint's step")
    arguments = parser.parse_args()
    folder = export(arguments.run_dir, arguments.step)
    facts = json.loads((folder / "export.json").read_text())
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    print(json.dumps({"kind": "exported", "folder": str(folder), "sha256": facts["sha256"], "sizes_bytes": sizes}))


if __name__ == "__main__":
    main()

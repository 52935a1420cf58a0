"""Run by LeRobot's own Python: says what its reader finds in datasets. `lerobot_reader.py JOBS.json`

A job is a dataset's `root`, the `backend` that decodes, the rows to look at (`indices`), the rows whose pictures
LeRobot makes statistics of (`stats_rows`), and `out`, the NPZ file to write.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

# torchvision asks for two operators of a compiled library that its plain wheel does not bring.
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from lerobot.datasets.compute_stats import (  # type: ignore[import-not-found]  # noqa: E402
    auto_downsample_height_width,
    get_feature_stats,
)
from lerobot.datasets.lerobot_dataset import LeRobotDataset  # type: ignore[import-not-found]  # noqa: E402


def picture(item: Any) -> np.ndarray:
    """`(..., 3, height, width)` in [0, 1] as `(..., height, width, 3)` uint8."""
    return np.asarray(torch.movedim((item * 255).round().to(torch.uint8), -3, -1))


def column(dataset: Any, feature: str) -> np.ndarray:
    values = dataset.hf_dataset.data.table[feature].combine_chunks()
    return np.asarray((values.flatten() if hasattr(values.type, "value_type") else values).to_numpy())


def look(job: dict[str, Any]) -> None:
    dataset = LeRobotDataset("test/test", root=job["root"], video_backend=job["backend"])
    cameras = dataset.meta.video_keys
    plain = [name for name in dataset.features if name not in cameras]
    items = [dataset[i] for i in job["indices"]]
    found: dict[str, Any] = {f"column/{name}": column(dataset, name) for name in plain}
    found |= {f"pictures/{camera}": np.stack([picture(item[camera]) for item in items]) for camera in cameras}
    found |= {f"items/{name}": np.stack([np.asarray(item[name]) for item in items]) for name in plain}
    found |= {
        f"stats/{feature}/{name}": value for feature, each in dataset.meta.stats.items() for name, value in each.items()
    }
    for feature in ("observation.state", "action"):
        values = column(dataset, feature).reshape(len(dataset), -1)[job["stats_rows"]]
        # In float32 its variance, a difference of squares, is off by half for a joint that hardly moves.
        theirs = get_feature_stats(values.astype(np.float64), axis=0, keepdims=False)
        found |= {f"theirs/{feature}/{name}": value for name, value in theirs.items()}
    for camera in cameras if job["stats_pictures"] else []:
        taken = [np.moveaxis(picture(dataset[i][camera]), -1, 0) for i in job["stats_pictures"]]
        # As bytes their squares would wrap around, and its standard deviation be 0.
        thinned = np.stack([auto_downsample_height_width(each) for each in taken]).astype(np.float64)
        theirs = get_feature_stats(thinned, axis=(0, 2, 3), keepdims=True)
        found |= {f"theirs/{camera}/{name}": np.squeeze(value) for name, value in theirs.items()}
    facts = {
        "frames": len(dataset),
        "episodes": dataset.num_episodes,
        "fps": dataset.fps,
        "robot": dataset.meta.robot_type,
        "tasks": [item["task"] for item in items],
        "cameras": cameras,
        "names": dataset.meta.names,
    }
    window = {cameras[0]: [0, 1 / dataset.fps], "action": [0, 1 / dataset.fps, 2 / dataset.fps]}
    windows = LeRobotDataset("test/test", root=job["root"], video_backend=job["backend"], delta_timestamps=window)
    seen = [windows[i] for i in job["indices"][:3]]
    found["window/pictures"] = np.stack([picture(item[cameras[0]]) for item in seen])
    found["window/actions"] = np.stack([np.asarray(item["action"]) for item in seen])
    np.savez(job["out"], facts=json.dumps(facts), **found)


for each in json.loads(Path(sys.argv[1]).read_text()):
    look(each)

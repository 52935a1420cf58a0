"""Other readers of the same streams. Run by the Python of `.peers/lerobot`; it imports nothing of Megahour.

The first line of its input says what there is, each line after it what to read, and for each comes a line of output:

    {"size": [h, w], "files": [{"mcap": path, "videos": {camera: path}, "topics": {camera: topic},
                                "times_ns": {camera: [...]}, "keyframes": {camera: [...]}}]}
    {"peer": "torchcodec", "resize": true, "look": false, "samples": [{"file": 0, "cameras": {camera: [i, ...]}}]}
    {"wall_s": ..., "cpu_s": ..., "seen": null}

`look` also gives the pictures of each sample, by camera, as 16x16 mean brightnesses: proof of which ones were read.
"""

from __future__ import annotations

import bisect
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
warnings.filterwarnings("ignore")

import torch  # noqa: E402

# The torchvision of this environment was built against another torch; only Python parts of it are used.
_operators = torch.library.Library("torchvision", "DEF")
_operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import av  # noqa: E402
import mcap_frames  # type: ignore[import-not-found]  # noqa: E402
import numpy as np  # noqa: E402
from av.video.reformatter import Interpolation, VideoReformatter  # noqa: E402
from foxglove_schemas_protobuf.CompressedVideo_pb2 import CompressedVideo  # noqa: E402
from lerobot.datasets.video_utils import (  # type: ignore[import-not-found]  # noqa: E402
    decode_video_frames_torchcodec,
    decode_video_frames_torchvision,
)
from mcap.reader import SeekingReader  # noqa: E402
from torch.nn.functional import adaptive_avg_pool2d, interpolate  # noqa: E402
from torchcodec.decoders import VideoDecoder  # type: ignore[import-not-found]  # noqa: E402
from torchcodec.transforms import Resize  # type: ignore[import-not-found]  # noqa: E402

TOLERANCE_S = 1e-4
"""LeRobot's own."""
GRID = 16

Read = Callable[[int, str, list[int]], Any]
"""Pictures of (file, camera, indices): a tensor or array, of bytes or of floats from 0 to 1."""


def torchcodec(files: list[dict[str, Any]], size: list[int] | None) -> Read:
    """torchcodec with exact seeking and one thread, its pictures scaled by torch. Bytes."""
    decoders = _decoders(files, None)
    return lambda file, camera, indices: _scaled(decoders[file, camera].get_frames_at(indices=indices).data, size)


def torchcodec_resize(files: list[dict[str, Any]], size: list[int] | None) -> Read:
    """The same, its pictures scaled by the decoder itself, which takes longer. Bytes."""
    decoders = _decoders(files, size)
    return lambda file, camera, indices: decoders[file, camera].get_frames_at(indices=indices).data


def _decoders(files: list[dict[str, Any]], size: list[int] | None) -> dict[tuple[int, str], Any]:
    transforms = [Resize(size)] if size else None
    return {
        (number, camera): VideoDecoder(path, num_ffmpeg_threads=1, transforms=transforms)
        for number, file in enumerate(files)
        for camera, path in file["videos"].items()
    }


def lerobot_torchcodec(files: list[dict[str, Any]], size: list[int] | None) -> Read:
    """What LeRobot v3 does by default, its cache of decoders as it is, then scaled as its policies do. Floats."""

    def read(file: int, camera: str, indices: list[int]) -> Any:
        times = [files[file]["times_ns"][camera][i] / 1e9 for i in indices]
        return _scaled(decode_video_frames_torchcodec(files[file]["videos"][camera], times, TOLERANCE_S), size)

    return read


def lerobot_pyav(files: list[dict[str, Any]], size: list[int] | None) -> Read:
    """LeRobot's other path, through torchvision and PyAV. Floats."""

    def read(file: int, camera: str, indices: list[int]) -> Any:
        times = [files[file]["times_ns"][camera][i] / 1e9 for i in indices]
        video = files[file]["videos"][camera]
        return _scaled(decode_video_frames_torchvision(video, times, TOLERANCE_S, "pyav"), size)

    return read


def frames_of_mcap(files: list[dict[str, Any]], size: list[int] | None) -> Read:
    """mcap-frames with its index beside the file, one thread. Bytes."""
    recordings = []
    for file in files:
        index = Path(file["mcap"] + ".frames")
        if not index.exists():
            mcap_frames.open(file["mcap"]).save_index(index)
        recordings.append(mcap_frames.open(file["mcap"], index=index))

    def read(file: int, camera: str, indices: list[int]) -> Any:
        video = recordings[file].video(files[file]["topics"][camera])
        frames = video.frames(indices, workers=1, decoder_threads=1)
        return _scaled(torch.from_numpy(np.stack([frame.image for frame in frames])).permute(0, 3, 1, 2), size)

    return read


def stock_mcap(files: list[dict[str, Any]], size: list[int] | None) -> Read:
    """The stock MCAP reader, which is told where the keyframe before the first picture is, and PyAV. Bytes."""
    read = _stock(files, lambda frame: frame.to_ndarray(format="rgb24"))
    return lambda file, camera, indices: _scaled(
        torch.from_numpy(read(file, camera, indices)).permute(0, 3, 1, 2), size
    )


def stock_mcap_scaled(files: list[dict[str, Any]], size: list[int] | None) -> Read:
    """The same, but scaled by one kept scaler straight from YUV to planes, as Megahour does it. Bytes."""
    scaler = VideoReformatter()
    how = Interpolation.AREA | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT

    def scaled(frame: Any) -> Any:
        height, width = size or (frame.height, frame.width)
        planes: Any = scaler.reformat(frame, width=width, height=height, format="gbrp", interpolation=how, threads=1)
        picture = np.empty((height, width, 3), np.uint8)
        for plane, channel in zip(planes.planes, (1, 2, 0), strict=True):
            picture[:, :, channel] = np.frombuffer(plane, np.uint8).reshape(height, plane.line_size)[:, :width]
        return picture

    read = _stock(files, scaled)
    return lambda file, camera, indices: torch.from_numpy(read(file, camera, indices)).permute(0, 3, 1, 2)


def _stock(files: list[dict[str, Any]], convert: Callable[[Any], Any]) -> Callable[[int, str, list[int]], Any]:
    readers = [SeekingReader(Path(file["mcap"]).open("rb")) for file in files]  # noqa: SIM115  open until the end

    def read(file: int, camera: str, indices: list[int]) -> Any:
        times, keyframes = files[file]["times_ns"][camera], files[file]["keyframes"][camera]
        first = keyframes[bisect.bisect_right(keyframes, min(indices)) - 1]
        wanted, pictures = {times[i] for i in indices}, {}
        codec = av.CodecContext.create("h264", "r")
        codec.thread_count = 1
        codec.flags |= av.codec.context.Flags.low_delay
        messages = readers[file].iter_messages(
            [files[file]["topics"][camera]], starting_at=times[first], ending_at=times[max(indices)]
        )
        for _, _, message in messages:
            for frame in codec.decode(av.Packet(CompressedVideo.FromString(message.data).data)):
                if message.log_time in wanted:
                    pictures[message.log_time] = convert(frame)
        return np.stack([pictures[times[i]] for i in indices])

    return read


def _scaled(pictures: Any, size: list[int] | None) -> Any:
    """Pictures `(n, 3, h, w)` at another size: bytes with torch's fast path for them, floats as LeRobot's pi0 does."""
    if size is None:
        return pictures
    if pictures.dtype == torch.uint8:
        return interpolate(pictures, size, mode="bilinear", antialias=True)
    return interpolate(pictures, size, mode="bilinear", align_corners=False)


PEERS: dict[str, Callable[[list[dict[str, Any]], list[int] | None], Read]] = {
    "torchcodec": torchcodec,
    "torchcodec, its Resize": torchcodec_resize,
    "LeRobot, torchcodec": lerobot_torchcodec,
    "LeRobot, PyAV": lerobot_pyav,
    "mcap-frames": frames_of_mcap,
    "stock MCAP reader": stock_mcap,
    "stock MCAP reader, our scaling": stock_mcap_scaled,
}


def main() -> None:
    torch.set_num_threads(1)
    said = json.loads(sys.stdin.readline())
    opened: dict[tuple[str, bool], Read] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        key = asked["peer"], asked["resize"]
        if key not in opened:
            opened[key] = PEERS[asked["peer"]](said["files"], said["size"] if asked["resize"] else None)
        print(json.dumps(answer(opened[key], asked["samples"], asked["look"])), flush=True)


def answer(read: Read, samples: list[dict[str, Any]], look: bool) -> dict[str, Any]:
    """Read the samples, and say what it took."""
    wall, cpu = time.perf_counter(), time.process_time()
    seen = []
    for sample in samples:
        pictures = {camera: read(sample["file"], camera, indices) for camera, indices in sample["cameras"].items()}
        if look:
            seen.append({camera: _grid(each) for camera, each in pictures.items()})
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"wall_s": wall, "cpu_s": cpu, "seen": seen if look else None}


def _grid(pictures: Any) -> Any:
    """Mean brightness, of 255, of 16x16 fields of each picture: lists `(n, 16, 16)`."""
    fields = adaptive_avg_pool2d(pictures.to(torch.float32), GRID).mean(1)
    return (fields if pictures.dtype == torch.uint8 else 255 * fields).tolist()


if __name__ == "__main__":
    main()

"""MCAP files for tests, by writers that are not ours: messages of ROS 2 from rosbags, of Foxglove from its own SDK."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from mcap.writer import CompressionType, IndexType, Writer
from numpy.typing import NDArray
from PIL import Image
from rosbags.typesys import Stores, get_typestore

from megahour.episode.model import RawEpisode
from megahour.sources import find_recordings, read_recording
from megahour.storage import list_files, open_lake, read_bytes
from tests.samples import pictures

ROS = get_typestore(Stores.ROS2_HUMBLE)
T = ROS.types
START_NS = 1_700_000_000_000_000_000
STEP_NS = 33_333_333
BARE = IndexType.NONE


@dataclass(frozen=True)
class Said:
    """A message of a bag. `channel` tells channels of one topic apart."""

    topic: str
    schema: str
    time_ns: int
    data: bytes
    channel: str = ""


def land(root: Path, name: str = "take.mcap", options: str | None = None) -> Path:
    """The path of a landed file, below `root`; with the source's `source.yaml` beside it."""
    path = root / "landing/lab/pick" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if options is not None:
        (root / "landing/lab/source.yaml").write_text(options)
    return path


def read(root: Path) -> RawEpisode:
    """The one episode landed below `root`."""
    lake = open_lake(root.as_uri())
    (recording,) = find_recordings(list_files(lake, "landing"), lambda key: read_bytes(lake, key))
    (episode,) = read_recording(recording, root.joinpath)
    return episode


def codes(episode: RawEpisode) -> list[str]:
    """The codes of an episode's notes."""
    return [note.code for note in episode.notes]


def note(episode: RawEpisode, code: str) -> str:
    """The text of the one note with this code."""
    (text,) = [each.text for each in episode.notes if each.code == code]
    return text


def write_bag(path: Path, messages: Iterable[Said], **options: Any) -> Path:
    """Write messages of ROS 2 in their order, by the stock writer. Schemas come from rosbags."""
    options = {"compression": CompressionType.NONE, "chunk_size": 1 << 16, **options}
    with path.open("wb") as file:
        writer = Writer(file, **options)
        writer.start(profile="ros2", library="test")
        channels: dict[tuple[str, str, str], int] = {}
        for message in messages:
            key = message.topic, message.schema, message.channel
            if key not in channels:
                text, _ = ROS.generate_msgdef(message.schema, ros_version=2)
                schema = writer.register_schema(message.schema, "ros2msg", text.encode())
                channels[key] = writer.register_channel(message.topic, "cdr", schema)
            writer.add_message(channels[key], message.time_ns, message.data, message.time_ns)
        writer.finish()
    return path


def cdr(message: Any) -> bytes:
    """A message of ROS 2 as it is sent."""
    return bytes(ROS.serialize_cdr(message, message.__msgtype__))


def said(topic: str, message: Any, time_ns: int, channel: str = "") -> Said:
    """A message of ROS 2 for a bag."""
    return Said(topic, message.__msgtype__, time_ns, cdr(message), channel)


def header(time_ns: int, frame: str = "base") -> Any:
    """A header with this stamp."""
    stamp = T["builtin_interfaces/msg/Time"](sec=time_ns // 10**9, nanosec=time_ns % 10**9)
    return T["std_msgs/msg/Header"](stamp=stamp, frame_id=frame)


def joint_state(
    time_ns: int,
    names: Sequence[str],
    position: Sequence[float],
    velocity: Sequence[float] = (),
    effort: Sequence[float] = (),
) -> Any:
    """`sensor_msgs/JointState`."""
    values = [np.array(each, np.float64) for each in (position, velocity, effort)]
    return T["sensor_msgs/msg/JointState"](header(time_ns), list(names), *values)


def image(time_ns: int, pixels: NDArray[Any], encoding: str, step: int | None = None) -> Any:
    """`sensor_msgs/Image` of the rows of `pixels`, each filled up to `step` bytes."""
    height, width = pixels.shape[:2]
    rows = np.ascontiguousarray(pixels).view(np.uint8).reshape(height, -1)
    step = step or rows.shape[1]
    data = np.full((height, step), 7, np.uint8)
    data[:, : rows.shape[1]] = rows
    return T["sensor_msgs/msg/Image"](header(time_ns), height, width, encoding, 0, step, data.ravel())


def compressed(time_ns: int, data: bytes, kind: str = "jpeg") -> Any:
    """`sensor_msgs/CompressedImage`."""
    return T["sensor_msgs/msg/CompressedImage"](header(time_ns), kind, np.frombuffer(data, np.uint8))


def floats(values: Sequence[float] | NDArray[Any]) -> Any:
    """`std_msgs/Float64MultiArray`."""
    layout = T["std_msgs/msg/MultiArrayLayout"](dim=[], data_offset=0)
    return T["std_msgs/msg/Float64MultiArray"](layout, np.array(values, np.float64))


def file_of(picture: NDArray[Any], kind: str = "JPEG", **options: Any) -> bytes:
    """A picture as a file."""
    out = io.BytesIO()
    Image.fromarray(picture).save(out, kind, **({"quality": 92} if kind == "JPEG" else {}) | options)
    return out.getvalue()


def times(count: int, start_ns: int = START_NS, step_ns: int = STEP_NS) -> list[int]:
    """Times of `count` messages."""
    return [start_ns + i * step_ns for i in range(count)]


def robot_bag(frames: int = 24, size: tuple[int, int] = (48, 64), seed: int = 0) -> list[Said]:
    """What a small robot says: two cameras, joints with velocities, commands, and topics that nobody maps."""
    rng = np.random.default_rng(seed)
    front, wrist = pictures(frames, *size, seed=seed), pictures(frames, *size, seed=seed + 1)
    state, velocity, action = (rng.normal(size=(frames, n)) for n in (3, 3, 2))
    messages = []
    for i, time_ns in enumerate(times(frames)):
        messages += [
            said("/camera/front/image_raw/compressed", compressed(time_ns, file_of(front[i])), time_ns),
            said("/wrist_cam/image_raw", image(time_ns + 1000, wrist[i], "rgb8"), time_ns + 1000),
            said("/joint_states", joint_state(time_ns + 2000, ["a", "b", "c"], state[i], velocity[i]), time_ns + 2000),
            said("/leader/joint_states", joint_state(time_ns + 3000, ["a", "b"], action[i]), time_ns + 3000),
            said("/status", T["std_msgs/msg/String"](f"step {i}"), time_ns + 4000),
        ]
    return messages


CODERS = {
    "h264": ("libx264", {"preset": "veryfast", "crf": "16"}, "x264-params", "scenecut=0:repeat-headers=1:annexb=1"),
    "h265": ("libx265", {"preset": "ultrafast", "crf": "16"}, "x265-params", "scenecut=0:repeat-headers=1:annexb=1"),
    "vp9": (
        "libvpx-vp9",
        {"crf": "16", "b": "0", "deadline": "realtime", "cpu-used": "8", "lag-in-frames": "0"},
        "",
        "",
    ),
    "av1": ("libsvtav1", {"preset": "12", "crf": "20"}, "svtav1-params", "pred-struct=1:lookahead=0"),
}


def coded(
    video: NDArray[np.uint8], codec: str, gop: int = 8, bframes: int = 0, pix_fmt: str = "yuv420p"
) -> list[bytes]:
    """Pictures as packets of a codec, in the order of decoding."""
    name, options, extra, base = CODERS[codec]
    encoder: Any = av.CodecContext.create(name, "w")
    encoder.height, encoder.width = video.shape[1:3]
    encoder.pix_fmt, encoder.framerate, encoder.time_base, encoder.thread_count = pix_fmt, 30, Fraction(1, 30), 1
    own = {"g": str(gop)}
    if codec == "h264":
        own = {extra: f"{base}:keyint={gop}:min-keyint={gop}:bframes={bframes}:b-adapt=0"}
    elif codec == "h265":
        own = {extra: f"{base}:keyint={gop}:min-keyint={gop}:bframes={bframes}:log-level=none"}
    elif codec == "av1":
        own |= {extra: f"{base}:keyint={gop}"}
    encoder.options = {**options, **own}
    packets = []
    for i, picture in enumerate(video):
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format=pix_fmt)
        frame.pts = i
        packets += [bytes(packet) for packet in encoder.encode(frame)]
    return packets + [bytes(packet) for packet in encoder.encode(None)]

"""Profiles: how an episode is laid out for the way it will be read."""

from __future__ import annotations

from dataclasses import dataclass

CONTAINER_VERSION = 1


@dataclass(frozen=True)
class Profile:
    """Lengths and rates of one read pattern. Cameras share a group, `state` and `action` another, the rest a third.

    `gop` is the most frames between two keyframes, `crf` and `preset` are x264's, `chunk_bytes` is the size from which
    a chunk ends at the next keyframe of all its cameras.
    """

    name: str
    gop: int
    crf: float = 20.0
    preset: str = "veryfast"
    chunk_bytes: int = 128 * 1024


VLA = Profile("vla", gop=5)
"""A few frames of every camera beside many states and actions."""

MIXED = Profile("mixed", gop=10)
"""Short and long windows alike; the default."""

WORLD = Profile("world", gop=30)
"""Long runs of frames: smallest files."""

PROFILES = {profile.name: profile for profile in (VLA, MIXED, WORLD)}

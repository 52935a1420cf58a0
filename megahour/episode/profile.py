"""Profiles: how an episode is laid out for the way it will be read. A profile is data, and a lab can write its own."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

CONTAINER_VERSION = 2

MESSAGES = "messages"
"""The group of topics that are kept as they came; no profile's own group may be called so."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "cameras": ("/camera/*",),
    "renditions": ("/rendition/*",),
    "control": ("/state", "/action"),
    "rest": ("*",),
}


class ProfileError(ValueError):
    """A profile cannot be used; the text says what is wrong with it."""


@dataclass(frozen=True)
class Rendition:
    """Every camera a second time, `(height, width)` pixels, for reads that want no larger pictures."""

    height: int
    width: int
    crf: float = 20.0


@dataclass(frozen=True)
class Profile:
    """Lengths, rates and groups of one read pattern.

    `gop` is the most frames between two keyframes; `crf`, `preset` and `x264` (its own `name=value:...`) are x264's.
    `chunk_bytes` is the size from which a chunk ends at the next keyframe of all its cameras. `groups` maps a group to
    patterns of topics, and a topic belongs to the first that fits: what is read together lies together. With pictures
    `as_coded`, cameras whose source has JPEG or fitting H.264 are stored as they came.
    """

    name: str
    gop: int
    crf: float = 20.0
    preset: str = "veryfast"
    x264: str = ""
    chunk_bytes: int = 128 * 1024
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: GROUPS)
    pictures: Literal["h264", "as_coded"] = "h264"
    rendition: Rendition | None = None

    def group_of(self, topic: str) -> str:
        """The group of a topic, such as `/camera/front`.

        Raises:
            ProfileError: no group takes it.
        """
        for name, patterns in self.groups.items():
            if any(fnmatchcase(topic, pattern) for pattern in patterns):
                return name
        raise ProfileError(f"No group of the profile '{self.name}' takes the topic {topic}: end with a group for '*'")


FLAT = "aq-mode=0:deadzone-inter=32:deadzone-intra=21"
"""Robots' cameras are noisy: bits that x264 would spend on the noise of flat areas are spent on none."""

VLA = Profile("vla", gop=8, x264=FLAT)
"""A few frames of every camera beside many states and actions."""

MIXED = Profile("mixed", gop=10, x264=FLAT)
"""Short and long windows alike; the default."""

WORLD = Profile("world", gop=30, x264=FLAT)
"""Long runs of frames: smallest files."""

FAITHFUL = Profile(
    "faithful",
    gop=10,
    crf=17.5,
    x264="aq-mode=0:chroma-qp-offset=-3:subme=9:psy-rd=0,0:no-deblock=0:cabac=1:trellis=1",
)
"""Within 1 dB of JPEG of quality 90; two to three times the work to decode."""

PROFILES = {profile.name: profile for profile in (VLA, MIXED, WORLD, FAITHFUL)}


def load_profile(name: str) -> Profile:
    """The profile of this name, or the one in the TOML file at this path.

    A file says what differs from `mixed`, or from the profile it names as its `base`; its own name is the file's.

    Raises:
        ProfileError: there is no such profile, or the file says what cannot be.
    """
    if name in PROFILES:
        return PROFILES[name]
    path = Path(name).expanduser()
    if path.suffix != ".toml":
        raise ProfileError(f"There is no profile '{name}': choose {', '.join(PROFILES)}, or a file that ends in .toml")
    try:
        said = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ProfileError(f"The profile {path} cannot be read: {error}") from error
    return _parse(path.stem, said, str(path))


def _parse(name: str, said: dict[str, Any], where: str) -> Profile:
    base = said.pop("base", MIXED.name)
    if base not in PROFILES:
        raise ProfileError(f"{where}: base is {base!r}, and must be one of {', '.join(PROFILES)}")
    known = {each.name for each in fields(Profile)} - {"name"}
    if unknown := sorted(set(said) - known):
        raise ProfileError(f"{where} says {', '.join(unknown)}; a profile may say base, {', '.join(sorted(known))}")
    _require(said, where, "gop", int, 1, 10_000)
    _require(said, where, "crf", (int, float), 0, 51)
    _require(said, where, "chunk_bytes", int, 1024, 2**30)
    for key in ("preset", "x264"):
        if not isinstance(said.get(key, ""), str):
            raise ProfileError(f"{where}: {key} must be text")
    if said.get("pictures", "h264") not in ("h264", "as_coded"):
        raise ProfileError(f"{where}: pictures must be 'h264' or 'as_coded', and is {said['pictures']!r}")
    if "rendition" in said:
        said["rendition"] = _rendition(said["rendition"], where)
    if "groups" in said:
        said["groups"] = _groups(said["groups"], where)
    return replace(PROFILES[base], name=name, **said)


def _require(said: dict[str, Any], where: str, key: str, kind: Any, least: float, most: float) -> None:
    value = said.get(key, least)
    if isinstance(value, bool) or not isinstance(value, kind) or not least <= value <= most:
        raise ProfileError(f"{where}: {key} must be a number from {least} to {most}, and is {value!r}")


def _rendition(said: Any, where: str) -> Rendition:
    if not isinstance(said, dict) or not {"height", "width"} <= set(said) <= {"height", "width", "crf"}:
        raise ProfileError(f"{where}: rendition must be a table of height, width and, if wanted, crf")
    for key in ("height", "width"):
        _require(said, where, key, int, 16, 8192)
        if said[key] % 2:
            raise ProfileError(f"{where}: the rendition's {key} must be even, and is {said[key]}")
    _require(said, where, "crf", (int, float), 0, 51)
    return Rendition(**said)


def _groups(said: Any, where: str) -> dict[str, tuple[str, ...]]:
    if not isinstance(said, dict) or MESSAGES in said:
        raise ProfileError(f"{where}: groups must be a table of patterns by group, none of them called '{MESSAGES}'")
    for name, patterns in said.items():
        if not isinstance(patterns, list) or not all(isinstance(each, str) for each in patterns):
            raise ProfileError(f"{where}: the group {name} must be a list of patterns of topics, such as '/camera/*'")
    return {name: tuple(patterns) for name, patterns in said.items()}

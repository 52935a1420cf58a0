"""What coded H.264 and HEVC pictures say before they are decoded: whether one is cut, overwritten or missing.

Decoders conceal such damage and go on with wrong pictures. Syntax after ITU-T H.264 and H.265, clause 7.3.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from megahour.errors import DataError

SLICE, KEY_SLICE, SEI, SPS, PPS, DELIMITER = 1, 5, 6, 7, 8, 9
"""NAL unit types of H.264 (table 7-1); a key slice is one of an IDR picture."""
HEADER_BYTES = 64
"""Enough of a slice for the part of its header that is read here."""
START_CODE = re.compile(rb"\x00\x00\x01")
FORBIDDEN = re.compile(rb"\x00(?:\x00[\x00-\x02]|\Z)")
"""What no NAL unit may hold, or end in (H.264 and H.265, 7.4.1): zeros overwrote it."""
HIGH_PROFILES = frozenset((100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135))
"""profile_idc of sequence parameter sets that say their chroma format (H.264, 7.3.2.1.1)."""


class NalError(DataError):
    """A coded picture is damaged; the text goes on from the words "frame <n>".

    Reasons: `damaged_frame`, `dropped_frames`, `no_parameter_sets`.
    """


@dataclass(frozen=True)
class _Sps:
    separate_planes: bool
    frame_num_bits: int
    gaps_allowed: bool
    frames_only: bool


@dataclass(frozen=True)
class _Picture:
    """One H.264 frame or field: what its first slice says."""

    sps: _Sps
    frame_num: int
    reference: bool
    parity: int | None
    """None of a frame, 0 of a top field, 1 of a bottom field."""


@dataclass(frozen=True)
class _Last:
    """The reference picture that the next frame counts on from, and the picture before."""

    reference_frame_num: int
    picture: _Picture


class Watch:
    """Sees the packets of one stream in the order they are decoded, from a keyframe on.

    Args:
        extradata: the stream's decoder configuration: `avcC`, `hvcC`, Annex B, or nothing.
    """

    def __init__(self, codec: Literal["h264", "hevc"], extradata: bytes) -> None:
        self._hevc = codec == "hevc"
        self._sps: dict[int, _Sps] = {}
        self._pps: dict[int, int] = {}
        self._last: _Last | None = None
        self._length_bytes = 0
        if extradata[:1] == b"\x01":
            at = 21 if self._hevc else 4
            self._length_bytes = 1 + (extradata[at] & 3 if len(extradata) > at else 3)
        try:
            for unit in _configured(extradata, self._hevc) if self._length_bytes else stream_units(extradata):
                self._learn(unit)
        except NalError:
            # What the configuration lacks, the first picture will miss.
            pass

    def see(self, packet: bytes) -> bool:
        """Check one coded frame; whether all that follows can be decoded from it on.

        An HEVC keyframe is one always: decoders know the frames behind it that it leaves behind. In H.264 it is an
        IDR alone.

        Raises:
            NalError: `damaged_frame` when its NAL units are cut or overwritten, `dropped_frames` when it is empty or
                frames before it are gone, `no_parameter_sets` when nothing says how to decode it.
        """
        pictures, entry = 0, False
        units = _sized_units(packet, self._length_bytes) if self._length_bytes else stream_units(packet)
        for unit in units:
            kind = self._kind(unit)
            if not self._is_slice(kind):
                self._learn(unit)
                continue
            if FORBIDDEN.search(unit):
                raise NalError("damaged_frame", "holds bytes that no encoder writes: a part of it was overwritten")
            pictures += self._slice(unit, kind)
            entry = 16 <= kind <= 23 if self._hevc else kind == KEY_SLICE
        if not pictures:
            raise NalError("dropped_frames", "is empty: it holds no picture")
        return entry

    def _kind(self, unit: bytes) -> int:
        return unit[0] >> 1 & 63 if self._hevc else unit[0] & 31

    def _is_slice(self, kind: int) -> bool:
        return kind < 32 if self._hevc else kind in (SLICE, KEY_SLICE)

    def _learn(self, unit: bytes) -> None:
        kind = self._kind(unit)
        if self._hevc:
            if kind == 34:
                self._learn_pps(Bits(payload(unit, 2)))
            elif kind == 33:
                # Which one it is stands behind much else, and there is one.
                self._sps[0] = _Sps(False, 0, True, True)
        elif kind == SPS:
            bits = Bits(payload(unit, 1, whole=True))
            number, sps = _sps(bits)
            self._sps[number] = sps
        elif kind == PPS:
            self._learn_pps(Bits(payload(unit, 1)))

    def _learn_pps(self, bits: Bits) -> None:
        number = bits.ue()
        self._pps[number] = bits.ue()

    def _slice(self, unit: bytes, kind: int) -> bool:
        """Whether a slice is the first one of a picture."""
        if self._hevc:
            return self._hevc_slice(unit, kind)
        bits = Bits(payload(unit, 1))
        first_macroblock, _, pps = bits.ue(), bits.ue(), bits.ue()
        sps = self._sps.get(self._pps.get(pps, -1))
        if sps is None:
            raise _no_parameter_sets()
        if sps.separate_planes and bits.u(2):
            return False
        frame_num = bits.u(sps.frame_num_bits)
        field = not sps.frames_only and bits.u(1)
        if first_macroblock:
            return False
        self._follow(_Picture(sps, frame_num, bool(unit[0] & 0x60), bits.u(1) if field else None), kind == KEY_SLICE)
        return True

    def _hevc_slice(self, unit: bytes, kind: int) -> bool:
        bits = Bits(payload(unit, 2))
        first = bool(bits.u(1))
        if 16 <= kind <= 23:
            bits.u(1)
        if bits.ue() not in self._pps or not self._sps:
            raise _no_parameter_sets()
        return first

    def _follow(self, picture: _Picture, idr: bool) -> None:
        """frame_num counts reference frames (H.264, 7.4.3): it rises by one behind each, and starts again at an IDR.

        A memory_management_control_operation 5 would start it again too; no encoder of recordings is known to write
        it, and a stream with it is refused rather than trusted.
        """
        last, numbers = self._last, 1 << picture.sps.frame_num_bits
        before = (picture.frame_num - 1) % numbers if last is None else last.reference_frame_num
        self._last = _Last(picture.frame_num if picture.reference else before, picture)
        if idr or last is None or _completes(last.picture, picture):
            return
        expected = (before + 1) % numbers
        if picture.frame_num != expected and not picture.sps.gaps_allowed:
            missing = (picture.frame_num - expected) % numbers
            raise NalError(
                "dropped_frames",
                f"has number {picture.frame_num} where {expected} comes next: {missing} or more frames before it are "
                "gone, and pictures that build on them would be wrong",
            )


def _completes(first: _Picture, second: _Picture) -> bool:
    """Whether `second` is the other field of the frame that `first` began."""
    fields = first.parity is not None and second.parity == 1 - first.parity
    return fields and first.frame_num == second.frame_num


def _no_parameter_sets() -> NalError:
    return NalError("no_parameter_sets", "cannot be decoded: the file lacks the parameter sets (SPS, PPS) it refers to")


def _sized_units(packet: bytes, length_bytes: int) -> list[bytes]:
    """The NAL units of a packet, each behind its length (ISO/IEC 14496-15)."""
    units, at = [], 0
    while at < len(packet):
        start = at + length_bytes
        length = int.from_bytes(packet[at:start], "big")
        at = start + length
        if at > len(packet) or not length:
            raise NalError("damaged_frame", f"has {len(packet)} bytes, which its own lengths do not add up to")
        unit = packet[start:at]
        # Careless writers leave one zero behind a unit: the first byte of the next start code in a byte stream.
        units.append(unit[:-1] if unit[-1] == 0 and length > 1 else unit)
    return units


def stream_units(stream: bytes) -> list[bytes]:
    """The NAL units of an Annex B byte stream, without the zeros behind them."""
    units = (part.rstrip(b"\x00") for part in START_CODE.split(stream)[1:])
    return [unit for unit in units if unit]


def _configured(extradata: bytes, hevc: bool) -> list[bytes]:
    """The parameter sets of an `avcC` or `hvcC` record (ISO/IEC 14496-15, 5.3.3 and 8.3.3)."""
    units: list[bytes] = []

    def take(at: int, count: int) -> int:
        for _ in range(count):
            length = int.from_bytes(extradata[at : at + 2], "big")
            units.extend([extradata[at + 2 : at + 2 + length]] if length else [])
            at += 2 + length
        return at

    if hevc:
        at = 23
        for _ in range(extradata[22] if len(extradata) > 22 else 0):
            at = take(at + 3, int.from_bytes(extradata[at + 1 : at + 3], "big"))
    elif len(extradata) > 6:
        at = take(6, extradata[5] & 31)
        take(at + 1, extradata[at] if at < len(extradata) else 0)
    return [unit for unit in units if unit]


def payload(unit: bytes, header_bytes: int, whole: bool = False) -> bytes:
    """A NAL unit's payload, without its emulation prevention bytes."""
    return unit[header_bytes : None if whole else HEADER_BYTES].replace(b"\x00\x00\x03", b"\x00\x00")


def _sps(bits: Bits) -> tuple[int, _Sps]:
    """The id of a sequence parameter set, and what of it is needed here (H.264, 7.3.2.1.1)."""
    profile = bits.u(8)
    bits.u(16)
    number = bits.ue()
    separate = False
    if profile in HIGH_PROFILES:
        chroma_format = bits.ue()
        separate = chroma_format == 3 and bool(bits.u(1))
        bits.ue(), bits.ue(), bits.u(1)
        if bits.u(1):
            for i in range(12 if chroma_format == 3 else 8):
                if bits.u(1):
                    _skip_scaling_list(bits, 16 if i < 6 else 64)
    sps = _Sps(separate, bits.ue() + 4, False, True)
    order_type = bits.ue()
    if order_type == 0:
        bits.ue()
    elif order_type == 1:
        bits.u(1), bits.ue(), bits.ue()
        for _ in range(min(bits.ue(), 255)):
            bits.ue()
    bits.ue()
    gaps_allowed = bool(bits.u(1))
    bits.ue(), bits.ue()
    return number, replace(sps, gaps_allowed=gaps_allowed, frames_only=bool(bits.u(1)))


def _skip_scaling_list(bits: Bits, size: int) -> None:
    last = following = 8
    for _ in range(size):
        if following:
            coded = bits.ue()
            following = (last + ((coded + 1) // 2 if coded % 2 else -(coded // 2))) % 256
        last = following or last


class Bits:
    """Reads numbers from the front of some bytes."""

    def __init__(self, data: bytes) -> None:
        self._value = int.from_bytes(data, "big")
        self._left = 8 * len(data)

    def u(self, bits: int) -> int:
        """An unsigned number of so many bits."""
        if bits > self._left:
            raise NalError("damaged_frame", "ends inside a header")
        self._left -= bits
        return self._value >> self._left & ((1 << bits) - 1)

    def ue(self) -> int:
        """An Exp-Golomb number (H.264, 9.1)."""
        zeros = self._left - (self._value & ((1 << self._left) - 1)).bit_length()
        if zeros > 32:
            raise NalError("damaged_frame", "has a header that cannot be")
        self.u(zeros)
        return self.u(zeros + 1) - 1

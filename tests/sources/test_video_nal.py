"""What H.264 packets say before they are decoded, on streams written bit by bit."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from megahour.episode.nal import NalError, Watch


def number(value: int) -> str:
    """An unsigned Exp-Golomb number as bits."""
    bits = f"{value + 1:b}"
    return "0" * (len(bits) - 1) + bits


def unit(kind: int, reference: int, bits: str) -> bytes:
    """A NAL unit with its start code and its stop bit."""
    bits += "1"
    bits += "0" * (-len(bits) % 8)
    payload = int(bits, 2).to_bytes(len(bits) // 8, "big")
    for zeros in (b"\x00\x00\x00", b"\x00\x00\x01", b"\x00\x00\x02"):
        payload = payload.replace(zeros, b"\x00\x00\x03" + zeros[2:])
    return b"\x00\x00\x00\x01" + bytes([reference << 5 | kind]) + payload


def parameter_sets(gaps: bool = False, frames_only: bool = True, bits: int = 4, order_type: int = 2) -> bytes:
    """A baseline SPS and its PPS, 64x64."""
    order = {0: number(0) + number(0), 1: number(1) + "0" + number(0) + number(0) + number(2) + number(1) * 2}
    sps = f"{66:08b}{0:08b}{30:08b}" + number(0) + number(bits - 4) + order.get(order_type, number(2))
    sps += number(1) + f"{int(gaps)}" + number(3) + number(3) + f"{int(frames_only)}"
    return unit(7, 3, sps + "0" * 8) + unit(8, 3, number(0) + number(0) + "0" * 8)


def slice_of(
    frame_num: int,
    idr: bool = False,
    reference: bool = True,
    parity: int | None = None,
    fields: bool = False,
    first: int = 0,
) -> bytes:
    """A slice as far as it is read, and some bits that stand for the picture."""
    header = number(first) + number(7) + number(0) + f"{frame_num:04b}"
    if fields:
        header += "0" if parity is None else f"1{parity}"
    return unit(5 if idr else 1, 3 if reference else 0, header + "0110" * 20)


def see_all(sets: bytes, packets: Iterable[bytes]) -> None:
    watch = Watch("h264", sets)
    for packet in packets:
        watch.see(packet)


@pytest.mark.parametrize("order_type", [0, 1, 2])
def test_numbers_rise_by_one_and_wrap(order_type: int) -> None:
    see_all(parameter_sets(order_type=order_type), [slice_of(i % 16, idr=i == 0) for i in range(40)])


def test_a_frame_that_nothing_builds_on_takes_the_next_number_and_leaves_it() -> None:
    kinds = [(0, True), (1, False), (1, False), (1, True), (2, False), (2, True), (3, True)]
    see_all(parameter_sets(), [slice_of(n, idr=i == 0, reference=kept) for i, (n, kept) in enumerate(kinds)])
    # The same, begun in the middle, where the frame before is not known.
    see_all(parameter_sets(), [slice_of(n, reference=kept) for n, kept in kinds[1:]])


@pytest.mark.parametrize("numbers", [[0, 1, 3], [0, 2], [0, 1, 1], [14, 15, 1], [5, 7]])
def test_a_number_that_is_left_out(numbers: list[int]) -> None:
    with pytest.raises(NalError, match="are gone") as caught:
        see_all(parameter_sets(), [slice_of(n, idr=n == 0) for n in numbers])
    assert caught.value.reason == "dropped_frames"


@pytest.mark.parametrize("order_type", [0, 1, 2])
def test_a_stream_that_may_leave_out_numbers(order_type: int) -> None:
    see_all(parameter_sets(gaps=True, order_type=order_type), [slice_of(n, idr=n == 0) for n in (0, 1, 3, 8)])


def test_scaling_lists_are_passed_over() -> None:
    """One list that ends early in the default one, one whose values go on as they are, one whole, five that are not."""
    lists = ["1" + number(16), "1" + number(0) * 16, "1" + number(1) * 16, *"00000"]
    sps = f"{100:08b}{0:08b}{30:08b}" + number(0) + number(1) + number(0) * 2 + "01" + "".join(lists)
    sps += number(0) + number(2) + number(1) + "1" + number(3) + number(3) + "1" + "0" * 8
    sets = unit(7, 3, sps) + unit(8, 3, number(0) + number(0) + "0" * 8)
    see_all(sets, [slice_of(n, idr=n == 0) for n in (0, 1, 4)])


def test_planes_of_a_picture_are_no_pictures() -> None:
    sps = f"{244:08b}{0:08b}{30:08b}" + number(0) + number(3) + "1" + number(0) * 2 + "00" + number(0) + number(2)
    sets = unit(7, 3, sps + number(1) + "0" + number(3) * 2 + "1" + "0" * 8) + unit(8, 3, number(0) * 2 + "0" * 8)
    head = number(0) + number(7) + number(0)
    frames = [
        b"".join(unit(5 if n == 0 else 1, 3, head + f"{plane:02b}{n:04b}" + "0110" * 20) for plane in range(3))
        for n in range(3)
    ]
    see_all(sets, frames)


@pytest.mark.parametrize("planes", [False, True])
def test_parameter_sets_with_everything_in_them(planes: bool) -> None:
    """Scaling lists, of which planes have four more, and an order of pictures by a cycle stand before the numbers."""
    lists = ["1" + number(0) * 16, "0", "1" + number(16), *("0" * (9 if planes else 5))]
    sps = f"{244:08b}{0:08b}{30:08b}" + number(0) + (number(3) + "1" if planes else number(1)) + number(0) * 2 + "01"
    sps += "".join(lists) + number(3)
    sps += number(1) + "0" + number(4) * 2 + number(2) + number(1) * 2 + number(1) + "0" + number(3) * 2 + "1"
    watch = Watch("h264", unit(7, 3, sps + "0" * 8) + unit(8, 3, number(0) * 2 + "0" * 8))
    lost = []
    for n in (0, 1, 2, 4, 5, 127, 0):
        head = number(0) + number(7) + number(0) + ("00" if planes else "") + f"{n:07b}"
        try:
            watch.see(unit(1, 3, head + "0110" * 20))
        except NalError as error:
            lost.append((n, error.reason))
    assert lost == [(4, "dropped_frames"), (127, "dropped_frames")]


def test_bytes_that_were_put_in_between() -> None:
    """Where two zero bytes stand in a header, a 3 follows that is none of it."""
    sps = f"{66:08b}{0:08b}{30:08b}" + number(0) + number(12) + number(2) + number(1) + "0" + number(3) * 2 + "1"
    sets = unit(7, 3, sps + "0" * 8) + unit(8, 3, number(127) + number(0) + "0" * 8)
    slices = [
        unit(5 if n == 0 else 1, 3, number(0) + number(7) + number(127) + f"{n:016b}" + "0110" * 20) for n in range(4)
    ]
    assert slices[1].count(b"\x00\x00\x03") == 1
    see_all(sets, slices)


def test_two_fields_are_one_frame() -> None:
    sets = parameter_sets(frames_only=False)
    pair = [slice_of(0, True, True, 0, True), slice_of(0, False, True, 1, True)]
    more = [slice_of(1, False, True, parity, True) for parity in (1, 0)]
    frame = slice_of(2, fields=True)
    see_all(sets, [*pair, *more, frame])
    see_all(sets, [b"".join(pair), b"".join(more), frame])
    with pytest.raises(NalError, match="are gone"):
        see_all(sets, [*pair, slice_of(2, False, True, 0, True)])
    with pytest.raises(NalError, match="are gone"):
        see_all(sets, [*pair, more[0], slice_of(1, False, True, 1, True)])


def test_where_decoding_may_begin() -> None:
    watch = Watch("h264", parameter_sets())
    assert watch.see(slice_of(0, idr=True)) is True
    assert watch.see(slice_of(1)) is False


def test_packets_without_a_picture_or_parameter_sets() -> None:
    watch = Watch("h264", parameter_sets())
    for packet in (b"", unit(9, 0, "111"), slice_of(0, first=5)):
        with pytest.raises(NalError) as caught:
            watch.see(packet)
        assert caught.value.reason == "dropped_frames"
    with pytest.raises(NalError) as caught:
        Watch("h264", b"").see(slice_of(0, idr=True))
    assert caught.value.reason == "no_parameter_sets"
    assert Watch("h264", b"").see(parameter_sets() + slice_of(0, idr=True)), "they may come with the first picture"


def test_bytes_that_cannot_be() -> None:
    good = slice_of(0, idr=True)
    for packet in (good[:6], good[:8] + bytes(5) + good[8:], good[:4] + b"\x65" + bytes(3) + b"\x80"):
        with pytest.raises(NalError) as caught:
            see_all(parameter_sets(), [packet])
        assert caught.value.reason == "damaged_frame"


def test_units_behind_their_lengths() -> None:
    sets, good = parameter_sets(), slice_of(0, idr=True)[4:]
    sps, pps = (part.rstrip(b"\x00") for part in sets.split(b"\x00\x00\x01")[1:])
    avcc = bytes([1, 66, 0, 30, 0xFD, 0xE1]) + len(sps).to_bytes(2, "big") + sps + b"\x01"
    avcc += len(pps).to_bytes(2, "big") + pps
    sized = len(good).to_bytes(2, "big") + good
    assert Watch("h264", avcc).see(sized)
    assert Watch("h264", avcc).see((len(good) + 1).to_bytes(2, "big") + good + b"\x00"), "what a start code left"
    for packet in (sized[:-1], sized + b"\x00", sized + b"\x00\x00", sized + b"\x00\x09\x01"):
        with pytest.raises(NalError, match="do not add up"):
            Watch("h264", avcc).see(packet)
    with pytest.raises(NalError, match="overwritten"):
        Watch("h264", avcc).see((len(good) + 2).to_bytes(2, "big") + good + bytes(2))

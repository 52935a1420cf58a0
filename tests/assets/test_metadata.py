"""Metadata for people: numbers add up, tables stay tables."""

from dataclasses import dataclass
from typing import Any

import pytest

from assets.metadata import numbers, picture, rounded, table


@dataclass(frozen=True)
class Report:
    count: int
    seconds: float
    good: bool = True
    names: tuple[str, ...] = ()


def test_numbers_of_several_reports_add_up() -> None:
    assert numbers(Report(1, 0.5), Report(2, 1.0)) == {"count": 3, "seconds": 1.5}
    with pytest.raises(TypeError):
        numbers({"count": 1})


def test_a_table_escapes_and_is_cut() -> None:
    rows: list[dict[str, Any]] = [{"task": "a|b\nc", "n": 1 / 3}, {"task": None, "n": 2}, {"task": "x", "n": 3}]
    text = table(rows, ["task", "n"], limit=2).value
    assert text == "| task | n |\n|---|---|\n| a\\|b c | 0.3333 |\n|  | 2 |\n\n1 more"


def test_a_picture_is_in_the_event_itself() -> None:
    assert picture(b"png", "a title").value == "![a title](data:image/png;base64,cG5n)"
    assert picture(b"RIFF....WEBP", "a film").value == "![a film](data:image/webp;base64,UklGRi4uLi5XRUJQ)"


def test_fractions_are_cut_and_whole_numbers_are_not() -> None:
    assert rounded({"loss": 0.123456789, "seconds": 7.7395714740000585, "bytes": 123456789}) == {
        "loss": 0.12346,
        "seconds": 7.7396,
        "bytes": 123456789,
    }

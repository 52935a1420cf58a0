"""Metadata that the Dagster UI shows well: numbers that plot, short tables, pictures inside Markdown."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import dagster as dg


def picture(data: bytes, title: str) -> dg.MarkdownMetadataValue:
    """A PNG or WebP that is stored with the event itself: it needs no file server and outlives the lake's clean-up.

    The UI shows it behind `[Show Markdown]`: in the table it expands only what has less than 1,000 characters.
    """
    kind = "webp" if data[8:12] == b"WEBP" else "png"
    return dg.MetadataValue.md(f"![{title}](data:image/{kind};base64,{base64.b64encode(data).decode()})")


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], limit: int = 20) -> dg.MarkdownMetadataValue:
    """A Markdown table of the first `limit` rows; the rest is counted below it."""
    listed = list(rows)
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(cell(row.get(column)) for column in columns)} |" for row in listed[:limit]]
    if len(listed) > limit:
        lines.append(f"\n{len(listed) - limit} more")
    return dg.MetadataValue.md("\n".join(lines))


def cell(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def rounded(found: Mapping[str, int | float]) -> dict[str, int | float]:
    """The same numbers with five digits at most behind the fractions: whoever needs them all asks the tables."""
    return {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in found.items()}


def numbers(*reports: Any) -> dict[str, int | float]:
    """The numbers of dataclasses by field, rounded; of several reports of one kind their sums."""
    total: dict[str, int | float] = {}
    for report in reports:
        if not is_dataclass(report):
            raise TypeError(f"{report!r} is no report")
        for field in fields(report):
            value = getattr(report, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                total[field.name] = total.get(field.name, 0) + value
    return rounded(total)

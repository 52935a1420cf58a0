"""Metadata that the Dagster UI shows well: numbers that plot, short tables, pictures inside Markdown."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import dagster as dg


def picture(png: bytes, title: str) -> dg.MarkdownMetadataValue:
    """A PNG that is stored with the event itself: it needs no file server and outlives the lake's clean-up."""
    return dg.MetadataValue.md(f"![{title}](data:image/png;base64,{base64.b64encode(png).decode()})")


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


def numbers(*reports: Any) -> dict[str, int | float]:
    """The numbers of dataclasses by field; of several reports of one kind their sums."""
    total: dict[str, int | float] = {}
    for report in reports:
        if not is_dataclass(report):
            raise TypeError(f"{report!r} is no report")
        for field in fields(report):
            value = getattr(report, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                total[field.name] = total.get(field.name, 0) + value
    return total

"""What the command line shows: rows as a table, values as a tree, or both as JSON for other programs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.tree import Tree

PIPE_WIDTH = 200
"""Columns of a table that goes to a file or a pipe."""
TREE_ITEMS = 12
"""Entries of a list that a tree shows; JSON has them all."""


def console() -> Console:
    """The terminal, or a wide page where there is none."""
    return Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)


def show_json(value: Any) -> None:
    """Print a value as JSON; times become ISO text, what is not finite becomes null."""
    print(json.dumps(_plain(value), indent=2, allow_nan=False))


def show_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], nothing: str) -> None:
    """Print the named columns of rows as a table, or the sentence `nothing` when there are none."""
    if not rows:
        print(nothing)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        number = all(isinstance(row.get(name), int | float | None) for row in rows)
        table.add_column(name.replace("_", " "), justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_text(name, row.get(name)) for name in columns))
    console().print(table, markup=False)


def show_tree(title: str, value: Mapping[str, Any]) -> None:
    """Print nested values as a tree; long lists are cut, and say so."""
    from rich.text import Text

    tree = Tree(Text(title, style="bold"))
    _grow(tree, value)
    console().print(tree)


def size(size_bytes: int | float) -> str:
    """Bytes for people: `3.9 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"


def _grow(tree: Tree, value: Any) -> None:
    from rich.text import Text

    if isinstance(value, Mapping):
        for name, inner in value.items():
            if isinstance(inner, Mapping | list | tuple) and inner and not _is_short(inner):
                counted = f" ({len(inner)})" if isinstance(inner, list | tuple) else ""
                _grow(tree.add(Text(f"{name}{counted}", style="cyan")), inner)
            else:
                text = _text(str(name), inner).rstrip("\n")
                tree.add(Text.assemble((str(name), "cyan"), "\n" if "\n" in text else "  ", text))
    else:
        for inner in value[:TREE_ITEMS]:
            if isinstance(inner, Mapping):
                tree.add(Text("  ".join(f"{name} {_text(name, each)}" for name, each in inner.items())))
            else:
                tree.add(Text(_text("", inner)))
        if len(value) > TREE_ITEMS:
            tree.add(Text(f"... and {len(value) - TREE_ITEMS} more (--json shows all)", style="dim"))


def _is_short(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, int | float | str) for each in value)


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and name.endswith("bytes"):
        return size(value)
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, list | tuple):
        return ", ".join(_text("", each) for each in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(str(key), each)}" for key, each in value.items())
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, Path) else value

"""Progress in the terminal: bars that move, or plain lines where nobody watches."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

QUIET_S = 15.0
"""A plain line is written this often while a phase goes on, and when one ends."""

Rows = Mapping[str, tuple[int, int, str]]
"""Per phase: done, of, and a word about it."""


class Board(AbstractContextManager["Board"]):
    """Shows the phases one below the other, each from its start to its end."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._tasks: dict[str, TaskID] = {}
        self._said: tuple[str, str] = ("", "")
        self._said_at = 0.0
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description:<9}"),
                BarColumn(24),
                TextColumn("{task.completed:>4}/{task.total:<4}"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[word]}", style="dim"),
                console=console,
            )
            self._progress.start()

    def show(self, phase: str, rows: Rows) -> None:
        """Show that `phase` goes on; those before it have ended, those after it have not begun."""
        if self._progress is None:
            self._say(phase, rows)
            return
        began = True
        for name, (done, of, word) in rows.items():
            if began and name not in self._tasks:
                self._tasks[name] = self._progress.add_task(name, total=of, word=word)
            if name in self._tasks:
                self._progress.update(self._tasks[name], completed=min(done, of), total=of, word=word)
            if name == phase:
                began = False

    def _say(self, phase: str, rows: Rows) -> None:
        done, of, word = rows.get(phase, (0, 0, ""))
        line = f"{phase}: {done}/{of}" + (f" ({word})" if word else "") if of else phase
        waited = time.monotonic() - self._said_at
        if phase != self._said[0] or (line != self._said[1] and waited >= QUIET_S):
            self.console.print(line, highlight=False, markup=False)
            self._said, self._said_at = (phase, line), time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

"""The command line: `megahour --help`. Every command imports what it needs, so that help is quick."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from megahour.cli import data, export, ingest, record, runs, view

app = typer.Typer(
    help="Robot recordings to evaluated checkpoints. Settings are MEGAHOUR_* environment variables.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(record.record)
app.command()(record.land)
app.command()(ingest.ingest)
data.episodes_app.command("view")(view.episodes_view)
app.add_typer(data.episodes_app, name="episodes")
app.add_typer(data.quarantine_app, name="quarantine")
app.add_typer(data.manifest_app, name="manifest")
app.add_typer(export.export_app, name="export")
app.command()(runs.lineage)
app.add_typer(runs.runs_app, name="runs")
app.add_typer(runs.eval_app, name="eval")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. A known error is one sentence and exit code 1; an unknown one keeps its traceback."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="megahour")
    except Exception as error:
        if not _is_known(error):
            raise
        print(f"megahour: {error}", file=sys.stderr)
        sys.exit(1)


def _is_known(error: Exception) -> bool:
    """Whether the message is for the person who must act: our own errors, the system's, the stores'."""
    from pydantic import ValidationError

    ours = type(error).__module__.startswith(("megahour.", "obstore.", "_duckdb"))
    return ours or type(error) is ValueError or isinstance(error, OSError | ValidationError)

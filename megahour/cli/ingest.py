"""The command `ingest`: what the pipeline's sensors and jobs do with landed recordings, once, without Dagster."""

from __future__ import annotations

import sys

import typer


def ingest() -> None:
    """Ingest what has landed, without Dagster. Where Dagster runs on this lake it does this by itself."""
    import math
    import time
    from datetime import UTC, datetime

    from rich.console import Console
    from rich.progress import Progress

    from megahour.cli.find import open_the_lake, read_settings
    from megahour.display import show_rows
    from megahour.ingest.discover import discover
    from megahour.ingest.land import land_batch
    from megahour.ingest.measure import measure_batch
    from megahour.ingest.pending import pending_batches
    from megahour.ingest.plan import read_batch
    from megahour.ingest.run import ingest_batch
    from megahour.ingest.verdict import IngestError

    lake, settings = open_the_lake(), read_settings()
    console = Console(stderr=True)
    # What a command landed a moment ago still looks as if it were being written.
    with console.status("Waiting for the landing zone to settle"):
        time.sleep(settings.settle_s)
    discover(lake, settings, "", datetime.now(UTC), math.inf)
    batches = [read_batch(lake, key) for key in pending_batches(lake)]
    held: list[dict[str, str]] = []
    failed: list[IngestError] = []
    ingested = episodes = 0
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("Ingesting", total=sum(len(batch.recordings) for batch in batches))
        for batch in batches:
            try:
                land_batch(lake, settings, batch)
                report = ingest_batch(lake, settings, batch, lambda *_: progress.advance(bar))
                measure_batch(lake, settings, batch)
            except IngestError as error:
                # Those behind it may be of other sources, which have nothing to do with what stopped this one.
                failed.append(error)
                continue
            ingested, episodes = ingested + report.ingested, episodes + report.episodes
            held += [{"recording": uri, "reason": reason, "error": error} for uri, reason, error in report.rejected]
    if not batches:
        print("Nothing to do: everything that landed is ingested or held. Land more: megahour land SRC")
        return
    print(f"{ingested} recordings became {episodes} episodes: megahour episodes ls")
    if held:
        show_rows(held, ("recording", "reason", "error"), "")
    for stopped in failed:
        print(f"megahour: {stopped}", file=sys.stderr)
    if held or failed:
        raise typer.Exit(1)

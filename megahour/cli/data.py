"""Commands that look at the data: `episodes`, `quarantine` and `manifest`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from megahour.cli.find import (
    EPISODE_SUMMARY,
    CommandError,
    Json,
    episode_row,
    open_the_lake,
    read_settings,
    require_recipe_name,
    rows_of,
)

episodes_app = typer.Typer(help="Episodes of the lake.", no_args_is_help=True)
quarantine_app = typer.Typer(help="Recordings that could not be ingested.", no_args_is_help=True)
manifest_app = typer.Typer(help="Manifests: what a recipe selected.", no_args_is_help=True)

EPISODE_COLUMNS = (
    "id",
    "robot",
    "task",
    "source",
    "success",
    "frames",
    "duration_s",
    "cameras",
    "size_bytes",
    "warnings",
)


@episodes_app.command("ls")
def episodes_ls(
    task: Annotated[str | None, typer.Option(help="Only this task.")] = None,
    robot: Annotated[str | None, typer.Option(help="Only this robot.")] = None,
    where: Annotated[str | None, typer.Option(help="SQL over the columns, such as: idle_share < 0.5")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows to show, at most.")] = 50,
    json: Json = False,
) -> None:
    """List episodes with their quality signals."""
    import duckdb

    from megahour.display import show_json, show_rows

    conditions = [f"({where})"] if where else []
    params = [value for value in (task, robot) if value is not None]
    conditions += [f"{name} = ?" for name, value in (("task", task), ("robot", robot)) if value is not None]
    filtered = f"FROM curated WHERE {' AND '.join(conditions) or 'true'}"
    try:
        total = rows_of(f"SELECT count(*) AS n {filtered}", params)[0]["n"]
        rows = rows_of(f"SELECT {EPISODE_SUMMARY} {filtered} ORDER BY ingested_at, episode_id LIMIT {limit}", params)
    except duckdb.Error as error:
        if where is None:
            raise
        raise CommandError(f"--where is not a condition over episodes: {error}") from error
    if json:
        show_json(rows)
        return
    shown = [{**row, "id": row["episode_id"][:12], "warnings": len(row["warnings"] or ()) or None} for row in rows]
    empty = f"No episodes in {read_settings().lake_uri}. Land recordings first: megahour land SRC"
    show_rows(shown, EPISODE_COLUMNS, "No episode is like that" if conditions else empty)
    if total > len(rows):
        print(f"{len(rows)} of {total} episodes; --limit shows more")


@episodes_app.command("show")
def episodes_show(
    episode_id: Annotated[str, typer.Argument(help="An episode's id, or its first digits.")], json: Json = False
) -> None:
    """Show an episode: its row, and what its file says of itself."""
    from dataclasses import asdict

    from megahour.display import show_json, show_tree
    from megahour.episode.reader import open_episode

    row = episode_row(episode_id)
    reader = open_episode(open_the_lake(), row["uri"], row["size_bytes"])
    cameras = {
        name: {"width": camera.width, "height": camera.height, "frames": camera.frames}
        | ({"renditions": [f"{width}x{height}" for height, width in camera.renditions]} if camera.renditions else {})
        for name, camera in reader.cameras.items()
    }
    series = {each.name: {"rows": each.rows, "names": list(each.names)} for each in reader.index.series}
    extras = {each.name: {"messages": each.count} for each in reader.index.topics}
    notes = [f"{note.code}: {note.text}" for note in reader.notes]
    told = {"facts": asdict(reader.facts), "cameras": cameras, "series": series, "extras": extras, "notes": notes}
    shown = {**row, "file": told}
    if json:
        show_json(shown)
    else:
        show_tree(f"episode {row['episode_id']}", shown)


@episodes_app.command("check")
def episodes_check(
    episode_ids: Annotated[list[str] | None, typer.Argument(help="Ids or their first digits; default all.")] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Save what is whole of damaged ones into a new revision.")
    ] = False,
    json: Json = False,
) -> None:
    """Read episodes from their first byte to their last and say what is wrong.

    Exit code 1 when something is, and was not repaired.
    """
    from rich.console import Console
    from rich.progress import track

    from megahour.display import show_json, show_rows
    from megahour.episode.check import check_episode

    lake = open_the_lake()
    every = "SELECT episode_id, uri, sha256 FROM episodes ORDER BY episode_id"
    rows = [episode_row(each) for each in episode_ids] if episode_ids else rows_of(every)
    problems = [
        {"episode_id": row["episode_id"], "uri": row["uri"], "reason": problem.reason, "message": problem.message}
        for row in track(rows, "Checking", console=Console(stderr=True), transient=True)
        for problem in check_episode(lake, row["uri"], row["sha256"])
    ]
    damaged = list(dict.fromkeys(problem["episode_id"] for problem in problems))
    repaired = [_repaired(episode_id) for episode_id in damaged] if repair else []
    if json:
        show_json({"checked": len(rows), "problems": problems, "repaired": repaired})
    else:
        show_rows(problems, ("episode_id", "reason", "message"), f"{len(rows)} episodes checked, all good")
        if repaired:
            show_rows(repaired, ("episode_id", "uri", "outcome"), "")
    if len(damaged) > len([each for each in repaired if each["uri"] is not None]):
        raise typer.Exit(1)


def _repaired(episode_id: str) -> dict[str, Any]:
    from megahour.episode.model import EpisodeError
    from megahour.ingest.repair import repair_episode

    (row,) = rows_of("FROM episodes WHERE episode_id = ?", [episode_id])
    try:
        done = repair_episode(open_the_lake(), row, read_settings().scratch)
    except EpisodeError as error:
        return {"episode_id": episode_id, "uri": None, "outcome": f"{error.reason}: {error}"}
    uri, outcome = (row["uri"], "nothing to do") if done is None else (done.uri, done.note.text)
    return {"episode_id": episode_id, "uri": uri, "outcome": outcome}


@quarantine_app.command("ls")
def quarantine_ls(
    everything: Annotated[bool, typer.Option("--all", help="Released ones too.")] = False, json: Json = False
) -> None:
    """List recordings that could not be ingested, and why."""
    from megahour.display import show_json, show_rows

    condition = "true" if everything else "state <> 'released'"
    rows = rows_of(f'SELECT * EXCLUDE (key) FROM quarantine WHERE {condition} ORDER BY "at", uri')
    if json:
        show_json(rows)
    else:
        show_rows(rows, ("uri", "state", "reason", "error", "batch", "at"), "Nothing is in quarantine")


@quarantine_app.command("retry")
def quarantine_retry(
    uris: Annotated[list[str] | None, typer.Argument(help="URIs as `quarantine ls` shows them.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that are held.")] = False,
) -> None:
    """Plan another try for held recordings; the landing sensor starts it."""
    from megahour.ingest.quarantine import retry_quarantined

    if bool(uris) == everything:
        raise CommandError("Name the recordings to try again, or say --all; `megahour quarantine ls` lists them")
    held = "SELECT uri FROM quarantine WHERE state = 'held' ORDER BY uri"
    wanted = list(uris or [row["uri"] for row in rows_of(held)])
    if not wanted:
        print("Nothing is in quarantine")
        return
    for batch in retry_quarantined(open_the_lake(), read_settings(), wanted):
        print(f"Batch {batch.key} will try {len(batch.recordings)} recordings again")
    print("Where no Dagster does it: megahour ingest")


@manifest_app.command("show")
def manifest_show(
    recipe: Annotated[str, typer.Argument(help="A recipe's name.")],
    digest: Annotated[str | None, typer.Option(help="An earlier manifest, by the first digits of its digest.")] = None,
    rows: Annotated[bool, typer.Option("--rows", help="Its episodes too.")] = False,
    json: Json = False,
) -> None:
    """Show a recipe's latest manifest."""
    from dataclasses import asdict

    from megahour.display import show_json, show_tree
    from megahour.manifest.load import latest_key, load_manifest, manifest_keys
    from megahour.manifest.recipe import load_recipe

    require_recipe_name(recipe)
    lake = open_the_lake()
    prefix = f"manifests/{recipe}/"
    if digest is None:
        key = latest_key(lake, recipe)
    else:
        found = [each for each in manifest_keys(lake) if each.startswith(prefix + digest)]
        key = found[0] if len(found) == 1 else None
    if key is None:
        known = sorted({each.split("/")[1] for each in manifest_keys(lake)})
        if digest is None and (path := read_settings().recipes / f"{recipe}.yaml").is_file():
            load_recipe(path)
        asked = recipe if digest is None else f"{recipe} with a digest that begins, alone, with {digest}"
        raise CommandError(f"There is no manifest of {asked}; recipes with manifests: {', '.join(known) or 'none'}")
    manifest = load_manifest(lake, key, read_settings().scratch)
    shown: dict[str, Any] = {"key": key, **asdict(manifest.header)}
    if rows:
        shown["episodes"] = manifest.table().to_pylist()
    if json:
        show_json(shown)
    else:
        shown.pop("recipe")
        show_tree(f"manifest of {recipe}", shown)

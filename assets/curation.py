"""From episodes to what a run trains on: the curated view, and a manifest per recipe."""

import json
from dataclasses import asdict

import dagster as dg

from assets.ingest import episode_quality, episodes
from assets.metadata import picture, rounded, table
from assets.partitions import DATA_TEAM, TRAINING_TEAM, recipes
from resources.lake import LakeResource


@dg.asset(
    deps=[episodes, episode_quality],
    group_name="curation",
    owners=DATA_TEAM,
    kinds={"duckdb"},
    description=(
        "All episodes with their quality beside: the view `curated`. Nothing is copied; a materialization pins the "
        "versions of the tables under it."
    ),
)
def curated_episodes(lake: LakeResource) -> dg.MaterializeResult[None]:
    from megahour.pictures import contact_sheet, histogram
    from megahour.warehouse.overview import overview
    from megahour.warehouse.tables import table_versions

    root = lake.open()
    versions = table_versions(root)
    found = overview(root, versions)
    return dg.MaterializeResult(
        data_version=dg.DataVersion(json.dumps(versions, sort_keys=True)),
        metadata={
            "contact_sheet": picture(contact_sheet(root, found.examples), "curated episodes"),
            "durations": picture(histogram(found.durations_s, "Duration of episodes, s"), "durations"),
            "kinds": table(map(asdict, found.kinds), ["task", "robot", "episodes", "succeeded", "hours"]),
            "dagster/row_count": sum(kind.episodes for kind in found.kinds),
            **rounded({"hours": sum(kind.hours for kind in found.kinds)}),
            "frames": sum(kind.frames for kind in found.kinds),
            "robots": len({kind.robot for kind in found.kinds}),
            "table_versions": versions,
        },
    )


@dg.asset(
    partitions_def=recipes,
    backfill_policy=dg.BackfillPolicy.multi_run(max_partitions_per_run=1),
    deps=[curated_episodes],
    group_name="curation",
    owners=TRAINING_TEAM,
    kinds={"arrow", "duckdb"},
    description=(
        "What a recipe selects, as one Arrow file named by its content: no export, the stored episodes are the "
        "training format. The same rows give the same digest."
    ),
)
def manifest(context: dg.AssetExecutionContext, lake: LakeResource) -> dg.MaterializeResult[None]:
    from megahour.manifest.build import build_manifest
    from megahour.manifest.recipe import load_recipe

    settings = lake.settings
    recipe = load_recipe(settings.recipes / f"{context.partition_key}.yaml")
    built = build_manifest(lake.open(), recipe, scratch=settings.scratch)
    header = built.header
    splits = [
        {"split": split, "episodes": header.rows_by_split[split], "windows": header.windows_by_split[split]}
        for split in header.rows_by_split
    ]
    return dg.MaterializeResult(
        data_version=dg.DataVersion(header.digest),
        metadata={
            "splits": table(splits, ["split", "episodes", "windows"]),
            "components": table(
                [{"component": name, "episodes": rows} for name, rows in header.rows_by_component.items()],
                ["component", "episodes"],
            ),
            "dagster/row_count": header.rows,
            "windows": sum(header.windows_by_split.values()),
            "too_short": header.too_short,
            "size_bytes": header.size_bytes,
            "digest": header.digest,
            "key": built.key,
            "table_versions": header.table_versions,
            "recipe": dg.MetadataValue.md(f"```yaml\n{header.recipe_text}\n```"),
        },
    )

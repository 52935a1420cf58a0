"""From what landed to episodes and their quality signals, batch by batch."""

from collections import Counter
from dataclasses import asdict

import dagster as dg

from assets.metadata import numbers, picture, table
from assets.partitions import DATA_TEAM, ingest_batches
from resources.lake import LakeResource

SHEET_EPISODES = 6
BATCHES_PER_RUN = dg.BackfillPolicy.multi_run(max_partitions_per_run=10)


@dg.asset(
    partitions_def=ingest_batches,
    backfill_policy=BATCHES_PER_RUN,
    group_name="ingest",
    owners=DATA_TEAM,
    kinds={"deltalake"},
    description="What landed: one row per recording, named by the hash of its bytes. Landing it twice adds no row.",
)
def recordings(context: dg.AssetExecutionContext, lake: LakeResource) -> dg.MaterializeResult[None]:
    from megahour.ingest.land import land_batch
    from megahour.ingest.plan import read_batch

    root, settings = lake.open(), lake.settings
    batches = [read_batch(root, key) for key in context.partition_keys]
    reports = [land_batch(root, settings, batch) for batch in batches]
    planned = {
        "planned_recordings": sum(len(batch.recordings) for batch in batches),
        "planned_bytes": sum(batch.size_bytes for batch in batches),
    }
    return dg.MaterializeResult(metadata={**planned, **numbers(*reports)})


@dg.asset(
    partitions_def=ingest_batches,
    backfill_policy=BATCHES_PER_RUN,
    deps=[recordings],
    group_name="ingest",
    owners=DATA_TEAM,
    kinds={"mcap", "deltalake"},
    description=(
        "Episodes in the training format (MCAP with H.264) and one row for each. A recording that cannot be read "
        "goes to quarantine with its reason; the rest of its batch goes through."
    ),
)
def episodes(context: dg.AssetExecutionContext, lake: LakeResource) -> dg.MaterializeResult[None]:
    from megahour.ingest.audit import episodes_of
    from megahour.ingest.plan import read_batch
    from megahour.ingest.run import ingest_batch
    from megahour.pictures import contact_sheet
    from megahour.warehouse.overview import overview

    def progress(done: int, of: int, what: str) -> None:
        context.log.info(f"{done}/{of} {what}")

    root = lake.open()
    keys = context.partition_keys
    reports = [ingest_batch(root, lake.settings, read_batch(root, key), progress) for key in keys]
    sheet = contact_sheet(root, episodes_of(root, keys, SHEET_EPISODES))
    rejected = [
        {"reason": reason, "recording": uri, "error": error}
        for report in reports
        for uri, reason, error in report.rejected
    ]
    # What the batches hold by now: the report alone says nothing of episodes that were there before.
    kinds = overview(root, batches=keys).kinds
    held = {"episodes": sum(kind.episodes for kind in kinds), "frames": sum(kind.frames for kind in kinds)}
    bad = {"quarantine": table(rejected, ["reason", "recording", "error"])} if rejected else {}
    return dg.MaterializeResult(
        metadata={
            "contact_sheet": picture(sheet, "episodes"),
            "kinds": table(map(asdict, kinds), ["task", "robot", "episodes", "succeeded", "hours"]),
            **bad,
            **numbers(*reports),
            **held,
        },
    )


@dg.asset(
    partitions_def=ingest_batches,
    backfill_policy=BATCHES_PER_RUN,
    deps=[episodes],
    group_name="ingest",
    owners=DATA_TEAM,
    kinds={"deltalake"},
    description=(
        "Signals, not verdicts: frozen camera, dropped frames, NaN, action jumps, idle share. "
        "A step that fails or is switched off leaves NULL and a warning."
    ),
)
def episode_quality(context: dg.AssetExecutionContext, lake: LakeResource) -> dg.MaterializeResult[None]:
    from megahour.ingest.measure import measure_batch
    from megahour.ingest.plan import read_batch

    root = lake.open()
    reports = [measure_batch(root, lake.settings, read_batch(root, key)) for key in context.partition_keys]
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report.warnings)
    warned = [{"warning": name, "episodes": count} for name, count in counts.most_common()]
    noticed = {"warnings": table(warned, ["warning", "episodes"])} if warned else {}
    return dg.MaterializeResult(metadata={**noticed, **numbers(*reports)})

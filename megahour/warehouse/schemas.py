"""The tables' columns. Append-only; of rows with one id the latest `revision` wins."""

from __future__ import annotations

import pyarrow as pa

TIME = pa.timestamp("us", tz="UTC")

STATS = pa.struct(
    [
        ("count", pa.int64()),
        ("mean", pa.list_(pa.float64())),
        ("m2", pa.list_(pa.float64())),
        ("min", pa.list_(pa.float64())),
        ("max", pa.list_(pa.float64())),
    ]
)
"""Moments of a series' columns; `m2` is the sum of squared deviations, so that episodes merge exactly."""

RECORDINGS = pa.schema(
    [
        ("key", pa.int64()),
        ("recording_id", pa.string()),
        ("uri", pa.string()),
        ("format", pa.string()),
        ("source", pa.string()),
        ("files", pa.int32()),
        ("size_bytes", pa.int64()),
        ("batch", pa.string()),
        ("landed_at", TIME),
        ("revision", pa.int32()),
    ]
)

EPISODES = pa.schema(
    [
        ("key", pa.int64()),
        ("episode_id", pa.string()),
        ("recording_id", pa.string()),
        ("recording_uri", pa.string()),
        ("index", pa.int32()),
        ("uri", pa.string()),
        ("etag", pa.string()),
        ("size_bytes", pa.int64()),
        ("sha256", pa.string()),
        ("recording_bytes", pa.int64()),
        ("robot", pa.string()),
        ("task", pa.string()),
        ("source", pa.string()),
        ("format", pa.string()),
        ("success", pa.bool_()),
        ("rate_hz", pa.float64()),
        ("duration_s", pa.float64()),
        ("frames", pa.int32()),
        ("cameras", pa.list_(pa.string())),
        ("state_dim", pa.int32()),
        ("action_dim", pa.int32()),
        ("state_stats", STATS),
        ("action_stats", STATS),
        ("profile", pa.string()),
        ("container_version", pa.int32()),
        ("notes", pa.list_(pa.string())),
        ("batch", pa.string()),
        ("ingested_at", TIME),
        ("revision", pa.int32()),
        ("camera_frames", pa.list_(pa.int32())),
        ("content_id", pa.string()),
        ("superseded_by", pa.string()),
    ]
)
"""One row per episode. `uri` and `etag` say where its file lies in this lake, `sha256` (hexadecimal) which bytes it
holds in any. `frames` counts the pictures of the camera with the fewest, `camera_frames` those of each in the order of
`cameras`; it is NULL in rows from before there was this column. `notes` are codes of what was lost, mended or guessed
on its way in; the file has a sentence for each.

`recording_id` names a recording and what was said of it then, `content_id` the recording alone. Of several readings of
one content one is live: `superseded_by` is NULL in its rows, in those of the others a later `recording_id`. `batch`
made the row, or made it live again."""

EPISODE_QUALITY = pa.schema(
    [
        ("key", pa.int64()),
        ("episode_id", pa.string()),
        ("frozen_share", pa.float64()),
        ("dropped_frames", pa.int32()),
        ("nan_values", pa.int64()),
        ("action_jump", pa.float64()),
        ("idle_share", pa.float64()),
        ("warnings", pa.list_(pa.string())),
        ("batch", pa.string()),
        ("measured_at", TIME),
        ("revision", pa.int32()),
    ]
)
"""Signals, never verdicts; NULL where a step failed or was switched off. `warnings` says which and why."""

QUARANTINE = pa.schema(
    [
        ("key", pa.int64()),
        ("recording_id", pa.string()),
        ("uri", pa.string()),
        ("format", pa.string()),
        ("source", pa.string()),
        ("batch", pa.string()),
        ("reason", pa.string()),
        ("error", pa.string()),
        ("state", pa.string()),
        ("at", TIME),
        ("revision", pa.int32()),
    ]
)
"""One row per bad recording and change of its state: `held`, `retrying`, `released`. `recording_id` is NULL-free: of a
recording that cannot be read it is the hash of what there is."""

EVALUATIONS = pa.schema(
    [
        ("key", pa.int64()),
        ("run_key", pa.string()),
        ("step", pa.int32()),
        ("policy", pa.string()),
        ("simulator", pa.string()),
        ("task", pa.string()),
        ("rollout", pa.int32()),
        ("init_state", pa.int32()),
        ("env_seed", pa.int64()),
        ("policy_seed", pa.int64()),
        ("success_once", pa.bool_()),
        ("success_at_end", pa.bool_()),
        ("success_at_reset", pa.bool_()),
        ("steps", pa.int32()),
        ("error", pa.string()),
        ("video", pa.string()),
        ("versions", pa.string()),
        ("evaluated_at", TIME),
        ("revision", pa.int32()),
    ]
)
"""One row per rollout. `policy` is `trained`, `untrained` or `blind`; `versions` is JSON."""

TABLES: dict[str, pa.Schema] = {
    "recordings": RECORDINGS,
    "episodes": EPISODES,
    "episode_quality": EPISODE_QUALITY,
    "quarantine": QUARANTINE,
    "evaluations": EVALUATIONS,
}

IDENTITY: dict[str, tuple[str, ...]] = {
    "recordings": ("recording_id",),
    "episodes": ("episode_id",),
    "episode_quality": ("episode_id",),
    "quarantine": ("uri",),
    "evaluations": ("run_key", "step", "policy", "rollout"),
}
"""What makes two rows of a table speak of the same thing."""

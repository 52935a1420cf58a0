"""Windows: which are drawn, what is read, and what stays in memory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from megahour.episode.reader import open_episode
from megahour.episode.sample import nearest
from megahour.manifest.build import build_manifest
from megahour.storage import Lake
from tests.trainer.toy import RECIPE
from trainer.config import model_config
from trainer.data import Normalization, WindowReader, picture_batch, prefetch, rank_share, to_batch

PLENTY = 2**28


def make_reader(lake: Lake, rows: pa.Table | None = None, memory_bytes: int = PLENTY) -> WindowReader:
    rows = build_manifest(lake, RECIPE).rows("train") if rows is None else rows
    return WindowReader(lake, rank_share(rows, 0, 1), RECIPE.observation, RECIPE.windows, memory_bytes)


def test_a_window_is_what_the_episode_holds_at_its_frames(toy_lake: Lake) -> None:
    rows = build_manifest(toy_lake, RECIPE).rows("train")
    reader = make_reader(toy_lake, rows)
    samples = reader.read(np.array([[2, 5], [0, 0]]))
    for n, (row, start) in enumerate([(2, 5), (0, 0)]):
        episode = open_episode(toy_lake, rows.column("uri")[row].as_py())
        frames = episode.frames("front", [start, start + 1, start + 2], (32, 32))
        assert np.array_equal(samples.pictures[n, :, 0], frames)
        assert np.array_equal(samples.states[n], episode.series("state").values[start].astype(np.float32))
        assert np.array_equal(samples.actions[n], episode.series("action").values[start : start + 2].astype(np.float32))


def test_without_room_in_memory_the_same_windows_are_read(toy_lake: Lake) -> None:
    plenty, none = make_reader(toy_lake), make_reader(toy_lake, memory_bytes=0)
    windows = plenty.draw((1, 2), 12)
    for a, b in zip(vars(plenty.read(windows)).values(), vars(none.read(windows)).values(), strict=True):
        assert np.array_equal(a, b)
    assert not none._decoded


def test_what_is_kept_stays_within_the_budget(toy_lake: Lake) -> None:
    episode_bytes = 14 * 32 * 32 * 3
    memory_bytes = 3 * episode_bytes
    reader, plenty = make_reader(toy_lake, memory_bytes=memory_bytes), make_reader(toy_lake)
    for windows in (plenty.spread(100), plenty.draw((1,), 40)):
        assert np.array_equal(plenty.read(windows).pictures, reader.read(windows).pictures)
        assert sum(pictures.nbytes for pictures, _, _ in reader._decoded.values()) == 2 * episode_bytes
        assert 0 < reader._episodes.held_bytes <= memory_bytes // 4


def test_draws_follow_from_their_seed_and_stay_inside_the_episodes(toy_lake: Lake) -> None:
    reader = make_reader(toy_lake)
    assert np.array_equal(reader.draw((7, 1, 0), 50), reader.draw((7, 1, 0), 50))
    assert not np.array_equal(reader.draw((7, 1, 0), 50), reader.draw((7, 2, 0), 50))
    drawn = reader.draw((7, 1, 0), 4000)
    # 14 frames and a span of 2 leave 12 windows
    assert set(drawn[:, 1]) == set(range(12))
    assert set(drawn[:, 0]) == set(range(reader._rows.num_rows))


def test_weights_set_how_often_windows_are_drawn(toy_lake: Lake) -> None:
    rows = build_manifest(toy_lake, RECIPE).rows("train")
    weights = pa.array([3.0] + [1.0] * (rows.num_rows - 1))
    rows = rows.set_column(rows.schema.get_field_index("weight"), "weight", weights)
    counts = Counter(make_reader(toy_lake, rows).draw((0,), 20_000)[:, 0].tolist())
    others = np.mean([counts[row] for row in range(1, rows.num_rows)])
    assert counts[0] / others == pytest.approx(3.0, rel=0.1)


def test_validation_windows_are_spread_over_all_episodes(toy_lake: Lake) -> None:
    reader = make_reader(toy_lake)
    windows = reader.spread(reader._rows.num_rows * 2)
    assert set(windows[:, 0]) == set(range(reader._rows.num_rows))
    everything = reader.spread(10_000)
    assert len({tuple(w) for w in everything.tolist()}) == len(everything) == reader._rows.num_rows * 12


@pytest.mark.parametrize("world", [1, 2, 8, 64])
def test_the_mixture_is_the_same_on_any_number_of_ranks(world: int) -> None:
    rows = pa.table({"weight": [20.0, 20.0] + [1.0] * 38, "windows": [12] * 40})
    drawn = np.zeros(40)
    for rank in range(world):
        share = rank_share(rows, rank, world)
        first = 0 if rank == 0 else int(np.searchsorted(np.cumsum(rows["weight"]) / 78, rank / world, side="right"))
        drawn[first : first + share.rows.num_rows] += np.diff(share.ends, prepend=0.0) / world
    assert drawn == pytest.approx(np.array([20, 20] + [1] * 38) / 78)


def test_ranks_open_slices_of_the_manifest_and_copy_nothing(toy_lake: Lake) -> None:
    rows = build_manifest(toy_lake, RECIPE).rows("train")
    shares = [rank_share(rows, rank, 3) for rank in range(3)]
    assert {key for share in shares for key in share.rows["key"].to_pylist()} == set(rows["key"].to_pylist())
    assert max(share.rows.num_rows for share in shares) <= rows.num_rows // 3 + 2
    whole = rows.column("windows").chunk(0).buffers()[1].address
    assert all(share.rows.column("windows").chunk(0).buffers()[1].address == whole for share in shares)
    with pytest.raises(ValueError, match="none in this split"):
        rank_share(rows.slice(0, 0), 0, 1)


def test_nearest_times_across_rates() -> None:
    camera, joints = np.arange(0, 100, 33), np.arange(0, 100, 10)
    assert nearest(joints, camera).tolist() == [0, 3, 7, 9]
    assert nearest(np.array([0, 10]), np.array([5, -3, 99])).tolist() == [0, 0, 1]
    assert nearest(np.array([7]), np.array([0, 100])).tolist() == [0, 0]


def test_cameras_stand_side_by_side_in_the_order_of_the_recipe() -> None:
    pictures = torch.zeros(1, 1, 2, 4, 4, 3, dtype=torch.uint8)
    pictures[:, :, 1] = 255
    batch = picture_batch(pictures)
    assert batch.shape == (1, 3, 1, 4, 8)
    assert torch.equal(batch[..., :4], torch.full((1, 3, 1, 4, 4), -1.0))
    assert torch.equal(batch[..., 4:], torch.full((1, 3, 1, 4, 4), 1.0))


def test_batches_are_normalised_padded_and_shrunk(toy_lake: Lake) -> None:
    samples = make_reader(toy_lake).read(np.array([[0, 0], [1, 3], [2, 5]]))
    state, action = {"mean": [0.5, -1.0], "std": [2.0, 4.0]}, {"mean": [3.0, 0.0], "std": [0.5, 1.0]}
    normalization = Normalization.of({"state": state, "action": action})
    batch = to_batch(samples, normalization, model_config("nano", state_dim=5, action_dim=6), torch.device("cpu"))
    assert batch.future.shape[-2:] == (16, 16) and batch.clean.shape[-2:] == (32, 32)
    assert batch.states.shape[1:] == (1, 5) and batch.actions.shape[1:] == (2, 6)
    assert not batch.states[..., 2:].any() and not batch.actions[..., 2:].any()
    np.testing.assert_allclose(batch.states[:, 0, :2], (samples.states - state["mean"]) / state["std"])
    np.testing.assert_allclose(batch.actions[..., :2], (samples.actions - action["mean"]) / action["std"])


def test_a_column_that_never_moves_does_not_divide_by_nothing() -> None:
    part = {"mean": [1.0, 0.0], "std": [0.0, 3e-3]}
    assert Normalization.of({"state": part, "action": part}).state_std.tolist() == pytest.approx([1e-2, 3e-3])


def test_prefetched_samples_are_those_of_their_step_and_errors_reach_the_step(toy_lake: Lake, tmp_path: Path) -> None:
    reader = make_reader(toy_lake)
    got = list(prefetch(reader, 3, 1, range(2, 5), 4))
    for step, samples in zip(range(2, 5), got, strict=True):
        assert np.array_equal(samples.states, reader.read(reader.draw((3, step, 1), 4)).states)
    rows = build_manifest(toy_lake, RECIPE).rows("train")
    lost = pa.array(["episodes/none.mcap"] * rows.num_rows)
    broken = make_reader(toy_lake, rows.set_column(rows.schema.get_field_index("uri"), "uri", lost))
    with pytest.raises(Exception, match="none"):
        next(prefetch(broken, 0, 0, range(3), 2))


def test_leaving_early_stops_the_thread_that_reads_ahead(toy_lake: Lake) -> None:
    import threading

    steps = prefetch(make_reader(toy_lake), 0, 0, range(1000), 2)
    next(steps)
    steps.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]

"""Windows: which are drawn, what is read, and what stays in memory."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from megahour.episode.reader import open_episode
from megahour.episode.sample import nearest
from megahour.episode.writer import write_episode
from megahour.manifest.build import build_manifest
from megahour.manifest.recipe import Observation, Windows
from megahour.manifest.timeline import Timeline, TimelineError
from megahour.storage import Lake, open_lake
from tests.samples import FACTS, camera, pictures, raw_episode
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


# 14 pictures, and as many states and actions of two values each
TOY_BYTES = 14 * (32 * 32 * 3 + 4 * (2 + 2))
# a quarter is for open episodes and an eighth for decoding
FOR_TWO_BYTES = 2 * TOY_BYTES * 8 // 5 + 8


@pytest.mark.parametrize(("memory_bytes", "kept"), [(FOR_TWO_BYTES, 2), (FOR_TWO_BYTES - 16, 1)])
def test_what_is_kept_stays_within_the_budget(toy_lake: Lake, memory_bytes: int, kept: int) -> None:
    reader, plenty = make_reader(toy_lake, memory_bytes=memory_bytes), make_reader(toy_lake)
    for windows in (plenty.spread(100), plenty.draw((1,), 40)):
        assert np.array_equal(plenty.read(windows).pictures, reader.read(windows).pictures)
        assert sum(part.nbytes for parts in reader._decoded.values() for part in parts) == kept * TOY_BYTES
        assert 0 < reader._episodes.held_bytes <= memory_bytes // 4


SEEN = Observation(cameras=("front", "wrist"), size=(48, 64))
FRONT = Observation(cameras=("front",), size=(48, 64))
LONG = 240


@pytest.fixture(scope="module")
def long_lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Three episodes whose pictures take 2.2 MB a camera, and one whose camera `overview` is 25 times slower."""
    lake = open_lake(tmp_path_factory.mktemp("long").as_uri())
    raw = raw_episode(LONG)
    overview = camera("overview", pictures(10, 48, 64), rate_hz=1.2)
    episodes = [raw, raw, raw, replace(raw, cameras=(raw.cameras[0], overview))]
    for i, episode in enumerate(episodes):
        path = Path(lake.url(f"episodes/{i}.mcap"))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_episode(path, episode, FACTS)
    return lake


def rows_on(timeline: Timeline, numbers: Sequence[int], end: int = LONG) -> pa.Table:
    """Rows of episodes of the long lake, made by hand."""
    row = {"bytes": None, "start": 0, "end": end, "windows": end - 8, "weight": 1.0}
    return timeline.put_on(pa.Table.from_pylist([{"uri": f"episodes/{i}.mcap", **row} for i in numbers]))


def reader_of(lake: Lake, rows: pa.Table, memory_bytes: int = PLENTY, **windows: int) -> WindowReader:
    return WindowReader(lake, rank_share(rows, 0, 1), SEEN, Windows(**windows), memory_bytes)


@pytest.mark.parametrize(("memory_kb", "kept"), [(1000, 0), (3500, 0), (3600, 1), (5000, 1), (9000, 2)])
def test_what_reading_takes_stays_within_the_budget(long_lake: Lake, memory_kb: int, kept: int) -> None:
    rows = rows_on(Timeline(FRONT.cameras), [0, 1, 2])
    reader = WindowReader(long_lake, rank_share(rows, 0, 1), FRONT, Windows(), memory_kb * 1000)
    windows = [reader.draw((step,), 4) for step in range(12)]
    # modules that are first needed now take memory too
    reader_of(long_lake, rows).read(windows[0])
    tracemalloc.start()
    try:
        for step in windows:
            samples = reader.read(step)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # as much again: the samples of the step before, which are held here
    samples_bytes = 2 * samples.pictures.nbytes
    window_bytes = samples.pictures[0].nbytes
    assert peak < memory_kb * 1000 + samples_bytes + 3 * window_bytes
    assert len(reader._decoded) == kept


def test_an_episode_is_decoded_whole_when_it_is_drawn_again(long_lake: Lake) -> None:
    reader = reader_of(long_lake, rows_on(Timeline(SEEN.cameras), [0, 1, 2]))
    first = reader.read(np.array([[0, 5], [2, 9]]))
    assert not reader._decoded
    again = reader.read(np.array([[0, 5], [1, 9]]))
    assert list(reader._decoded) == [0]
    assert np.array_equal(first.pictures[0], again.pictures[0])


def test_windows_reach_over_all_of_the_cameras_that_are_observed(long_lake: Lake) -> None:
    whole = open_episode(long_lake, "episodes/3.mcap").frames("front", range(LONG), (48, 64))
    for cameras, end in ((("front",), LONG), (("front", "overview"), 10)):
        rows = rows_on(Timeline(cameras), [3], end)
        reader = WindowReader(long_lake, rank_share(rows, 0, 1), FRONT, Windows(future_frames=(1,), actions=1), PLENTY)
        found = reader.read(reader.spread(LONG))
        times = open_episode(long_lake, "episodes/3.mcap").cameras[cameras[-1]].times_ns
        seen = nearest(open_episode(long_lake, "episodes/3.mcap").cameras["front"].times_ns, times)
        assert np.array_equal(found.pictures[:, 0, 0], whole[seen[: end - 8]])


def test_windows_that_were_counted_on_another_timeline_are_refused(long_lake: Lake) -> None:
    reader = reader_of(long_lake, rows_on(Timeline(("front",)), [3], end=10))
    with pytest.raises(TimelineError, match=r"counted over 10 frames, and front, .* has 240.*build the manifest again"):
        reader.read(np.array([[0, 0]]))


def test_windows_in_other_steps_than_the_rows_say_are_refused(long_lake: Lake) -> None:
    rows = rows_on(Timeline(("front",), stride=3), [0])
    with pytest.raises(ValueError, match="every 3 frames, and windows of every 2"):
        reader_of(long_lake, rows, stride=2)
    with pytest.raises(ValueError, match="which timeline"):
        reader_of(long_lake, rows.replace_schema_metadata(None), stride=3)


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

"""Pictures for people: charts of runs as PNG bytes, contact sheets of episodes and films as WebP bytes."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from megahour.episode.model import Frames
from megahour.storage import Lake

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, PAPER, GREY = "#1f2933", "#ffffff", "#9aa5b1"
COLORS = {"trained": "#0b7285", "untrained": "#9aa5b1", "blind": "#e8590c"}
LABEL_PX = 16
FILM_PICTURES = 48
LAST_PICTURE_MS = 1500
"""How long a film rests on its end before it starts anew."""


def contact_sheet(
    lake: Lake, keys: Sequence[str], *, camera: str | None = None, columns: int = 6, height_px: int = 96
) -> bytes:
    """One row per episode: `columns` pictures from its first to its last, and its task above them.

    Args:
        keys: lake keys of episode files. One that cannot be read is a grey row that says why.
        camera: the camera to show; an episode without it shows its first.
    """
    from megahour.episode.reader import open_episode

    rows: list[tuple[str, list[Frames]]] = []
    for key in keys:
        try:
            episode = open_episode(lake, key)
            name = camera if camera in episode.cameras else next(iter(episode.cameras))
            info = episode.cameras[name]
            width = max(2, round(info.width * height_px / info.height))
            indices = np.linspace(0, info.frames - 1, columns).round().astype(int).tolist()
            frames = episode.frames(name, indices, size=(height_px, width))
            facts = episode.facts
            label = f"{facts.task} · {facts.robot} · {name} · {info.frames} frames · {facts.episode_id[:8]}"
            rows.append((label, list(frames)))
        except Exception as error:
            rows.append((f"{key}: {type(error).__name__}: {error}", []))
    return tile(rows, height_px)


def tile(rows: Sequence[tuple[str, Sequence[Frames]]], height_px: int) -> bytes:
    """Rows of pictures `(height_px, w, 3)`, each under its label; a row without pictures is grey."""
    from PIL import Image, ImageDraw

    gap = 2
    widths = [sum(frame.shape[1] + gap for frame in frames) for _, frames in rows]
    row_px = height_px + LABEL_PX + gap
    sheet = Image.new("RGB", (max([480, *widths]), max(1, len(rows)) * row_px), PAPER)
    draw = ImageDraw.Draw(sheet)
    for row, (label, frames) in enumerate(rows):
        top = row * row_px
        draw.text((2, top + 2), label[:160], fill=INK)
        if not frames:
            draw.rectangle((0, top + LABEL_PX, sheet.width, top + LABEL_PX + height_px), fill=GREY)
        left = 0
        for frame in frames:
            sheet.paste(Image.fromarray(np.ascontiguousarray(frame)), (left, top + LABEL_PX))
            left += frame.shape[1] + gap
    out = io.BytesIO()
    # A tenth of a PNG's bytes: the sheets of all batches stay in Dagster's event log for ever.
    sheet.save(out, "WEBP", quality=80)
    return out.getvalue()


def film(video: Path, *, height_px: int = 128) -> bytes:
    """A video as a small animated WebP that plays in true time, over and over.

    At most `FILM_PICTURES` evenly spaced pictures, the last one among them: a long video costs no more than a short
    one, about 100 kB.

    Raises:
        ValueError: the video has no pictures.
        av.FFmpegError: it cannot be read.
    """
    import av
    from PIL import Image

    with av.open(str(video)) as container:
        stream = container.streams.video[0]
        rate_hz = float(stream.average_rate or 20)
        size = (max(2, round(stream.width * height_px / stream.height)), height_px)

        def small(frame: av.VideoFrame) -> Image.Image:
            return Image.fromarray(frame.to_ndarray(format="rgb24")).resize(size)

        # No more than these are in memory: a video may be hours long.
        kept: list[tuple[int, Image.Image]] = []
        stride = 1
        number, last = -1, None
        for number, frame in enumerate(container.decode(stream)):
            last = frame
            if number % stride == 0:
                kept.append((number, small(frame)))
                if len(kept) == FILM_PICTURES:
                    kept = kept[::2]
                    stride *= 2
    if last is None:
        raise ValueError(f"The video {video} has no pictures")
    if kept[-1][0] != number:
        kept.append((number, small(last)))
    starts = [place for place, _ in kept]
    durations_ms = [round((end - start) * 1000 / rate_hz) for start, end in pairwise(starts)]
    pictures = [picture for _, picture in kept]
    out = io.BytesIO()
    pictures[0].save(
        out,
        "WEBP",
        save_all=True,
        append_images=pictures[1:],
        duration=[*durations_ms, LAST_PICTURE_MS],
        loop=0,
        quality=60,
        method=4,
    )
    return out.getvalue()


def histogram(values: Iterable[float], title: str) -> bytes:
    """How the finite values are distributed."""
    finite = np.asarray([value for value in values if value is not None and np.isfinite(value)], dtype=np.float64)
    figure, axes = _chart(title)
    if len(finite):
        axes.hist(finite, bins=min(30, max(1, int(np.sqrt(len(finite)) * 2))), color=COLORS["trained"])
    axes.set_ylabel("episodes")
    return _png(figure, empty=len(finite) == 0)


def loss_curve(events: Iterable[Mapping[str, Any]]) -> bytes:
    """Training and validation loss over steps, from a run's events.

    After a resume steps repeat; the later of two events of one step counts.
    """
    lines: dict[str, dict[int, float]] = {"loss": {}, "dynamics_loss": {}, "action_loss": {}, "validation": {}}
    for event in events:
        names = {"step": ("loss", "dynamics_loss", "action_loss"), "validation": ("loss",)}.get(
            event.get("kind", ""), ()
        )
        for name in names:
            value = event.get(name)
            if value is not None and np.isfinite(value):
                lines["validation" if event["kind"] == "validation" else name][int(event["step"])] = float(value)
    figure, axes = _chart("Loss")
    styles: dict[str, dict[str, Any]] = {
        "loss": {"color": INK},
        "dynamics_loss": {"color": GREY},
        "action_loss": {"color": COLORS["trained"]},
        "validation": {"color": COLORS["blind"], "marker": "o"},
    }
    drawn = {name: dict(sorted(points.items())) for name, points in lines.items() if points}
    for name, points in drawn.items():
        axes.plot(list(points), list(points.values()), label=name.replace("_", " "), **styles[name])
    axes.set_xlabel("step")
    if drawn:
        if min(min(points.values()) for points in drawn.values()) > 0:
            axes.set_yscale("log")
        axes.legend(frameon=False)
    return _png(figure, empty=not drawn)


def success_chart(summary: Mapping[str, Any]) -> bytes:
    """Success rate of each policy with its Wilson interval, from an evaluation's summary."""
    success: Mapping[str, Mapping[str, float]] = summary.get("success") or {}
    figure, axes = _chart(f"Success once, step {summary.get('step', '?')}")
    for place, (policy, rate) in enumerate(success.items()):
        share = rate["k"] / rate["n"] if rate["n"] else 0.0
        spread = [[max(0.0, share - rate["low"])], [max(0.0, rate["high"] - share)]]
        axes.bar(place, share, width=0.6, color=COLORS.get(policy, INK))
        axes.errorbar(place, share, yerr=spread, color=INK, capsize=4, linewidth=1)
        axes.annotate(f"{rate['k']:g}/{rate['n']:g}", (place, 0.02), ha="center", color=PAPER if share > 0.1 else INK)
    axes.set_xticks(range(len(success)), list(success))
    axes.set_ylim(0, 1.05)
    axes.yaxis.set_major_formatter("{x:.0%}")
    return _png(figure, empty=not success)


def _chart(title: str) -> tuple[Figure, Axes]:
    # Not pyplot: it keeps figures alive in a global and is not safe in threads.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.2), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _png(figure: Figure, *, empty: bool) -> bytes:
    if empty:
        figure.axes[0].text(0.5, 0.5, "nothing yet", ha="center", va="center", transform=figure.axes[0].transAxes)
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()

"""The UI in headless Chromium, with real clicks: what a person finds there without a manual.

With `MEGAHOUR_SCREENSHOTS=FOLDER` it leaves the README's pictures there. With `MEGAHOUR_DEMO=FOLDER` it has no small
pipeline of its own, but clicks through a finished demonstration, one that was made with
`MEGAHOUR_LAKE=FOLDER/lake DAGSTER_HOME=FOLDER/dagster make demo`; all it starts there is an ingest of known batches.
"""

from __future__ import annotations

import importlib.util
import io
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

pytest.importorskip("playwright", reason="the dev extra is not installed")

from dagster._core.execution.backfill import BulkActionStatus
from playwright.sync_api import Locator, Page, ViewportSize, expect, sync_playwright

from infra.laptop.services import ROOT
from megahour.runs import read_intent
from megahour.settings import Settings
from megahour.warehouse.queries import query
from tests.integration.pipeline import Pipeline, pipeline
from tests.trainer.toy import SHAPE

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DEMO = os.environ.get("MEGAHOUR_DEMO")
SCREENSHOTS = os.environ.get("MEGAHOUR_SCREENSHOTS")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        CHROMIUM is None, reason="Chromium is not here: `sh infra/laptop/packages.sh test` installs it or says how"
    ),
    pytest.mark.skipif(
        DEMO is None and importlib.util.find_spec("metaworld") is None, reason="the simulation extra is not installed"
    ),
]

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WINDOW: ViewportSize = {"width": 1200, "height": 900}
LONG_WINDOW: ViewportSize = {"width": 1500, "height": 460}
PHOTO_BYTES = 195_000
PATIENCE_MS = 60_000
"""How long a page may take on a machine that trains and simulates meanwhile."""

GROUPS = {
    "ingest": ("recordings", "episodes", "episode_quality"),
    "curation": ("curated_episodes", "manifest"),
    "training": ("training_run", "checkpoint"),
    "evaluation": ("exported_weights", "evaluation"),
}
IS_GREEN = """node => {
    for (let box = node; box.tagName !== "foreignObject"; box = box.parentElement) {
        const [red, green, blue] = getComputedStyle(box).borderTopColor.match(/[0-9]+/g).map(Number);
        if (green > red + 60 && green > blue + 30) return true;
    }
    return false;
}"""
"""Whether a node of the graph is framed as something that is materialized."""

TASK = "button-press-topdown-v3"
RECIPE = {
    "name": "press",
    "mixture": [{"name": "experts", "filter": f"task = '{TASK}'"}],
    "validation_share": 0.3,
    "observation": {"cameras": ["corner2", "gripper"], "size": [64, 64]},
    "train": {"launch": True, "steps": 4, "batch": 4, "checkpoint_every": 4, "validate_every": 4, "overrides": SHAPE},
    "evaluate": {"simulator": "metaworld", "task": TASK, "rollouts": 1, "first_init_state": 1000, "max_steps": 12},
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """A pipeline that has ingested its two batches, and goes on."""
    if DEMO is not None:
        recipes = os.environ.get("MEGAHOUR_RECIPES", str(ROOT / "assets/recipes"))
        with pipeline(Path(DEMO).absolute(), MEGAHOUR_RECIPES=recipes) as started:
            yield started
        return
    from megahour.recording import record

    folder = tmp_path_factory.mktemp("ui")
    list(record(TASK, 3, 0, folder / "incoming", size=(64, 64), gl=Settings().mujoco_gl))
    with pipeline(folder, MEGAHOUR_BATCH_RECORDINGS="2") as started:
        started.write_recipe(RECIPE)
        started.landing.mkdir(parents=True)
        (folder / "incoming").rename(started.landing / "metaworld")
        started.wait_for(lambda: len(started.materializations("episode_quality")) == 2, "two batches are ingested")
        yield started


@pytest.fixture(scope="module")
def evaluated(running: Pipeline) -> str:
    """The key of a run that was evaluated in the simulator."""

    def found() -> str | None:
        runs = (path for path in running.run_dirs() if read_intent(path).config["evaluate"])
        return next((path.name for path in runs if running.materializations("evaluation", path.name)), None)

    return running.wait_for(found, "a run is evaluated", 240) or ""


@pytest.fixture(scope="module")
def page(running: Pipeline) -> Iterator[Page]:
    """The browser's window on the UI."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        page = browser.new_page(viewport=WINDOW)
        page.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        page.goto(running.url)
        page.get_by_role("button", name="Hide navigation").click()
        yield page
        browser.close()


@pytest.fixture(scope="module")
def backfill(page: Page, running: Pipeline) -> str:
    """The id of a backfill of all ingest batches of `episodes`, launched by hand."""
    open_asset(page, "episodes")
    page.get_by_role("button", name="Materialize…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="All", exact=True).click()
    expect(dialog.get_by_text(f"{len(batches(running))} partitions")).to_be_visible()
    dialog.get_by_role("button", name="Launch backfill").click()
    page.get_by_role("region", name="Notifications").get_by_text("View", exact=True).click()
    expect(page).to_have_url(re.compile("/runs/b/"))
    return page.url.rpartition("/")[2]


def test_the_graph_shows_all_groups_and_assets(page: Page) -> None:
    page.set_viewport_size(LONG_WINDOW)
    go_to(page, "/asset-groups")
    for group in GROUPS:
        expect(node(page, group)).to_be_visible()
    page.get_by_role("button", name="panel_show_right", exact=True).click()
    page.mouse.click(WINDOW["width"] // 2, LONG_WINDOW["height"] - 40, button="right")
    page.get_by_role("menuitem", name="Expand all groups").click()
    page.mouse.move(WINDOW["width"] // 2, 1)
    assets = [asset for assets in GROUPS.values() for asset in assets]
    for asset in assets:
        expect(node(page, asset)).to_be_visible()
    for asset in GROUPS["ingest"] if SCREENSHOTS is None else assets:
        page.wait_for_function(IS_GREEN, arg=node(page, asset).element_handle())
    photograph(page, "graph")
    page.set_viewport_size(WINDOW)


def test_a_materialization_of_episodes_shows_its_picture_and_its_numbers(page: Page, running: Pipeline) -> None:
    batch = batches(running)[-1]
    numbers = {
        name: value.value
        for name, value in running.materializations("episodes", batch)[-1].metadata.items()
        if isinstance(value, dg.IntMetadataValue)
    }
    assert numbers["episodes"] >= query(running.lake, "FROM episodes WHERE batch = ?", [batch]).num_rows > 0
    open_partition(page, "episodes", batch)
    for name, number in numbers.items():
        expect(metadata(page, name)).to_have_text(str(number))
    expect(metadata(page, "kinds").get_by_role("columnheader", name="robot")).to_be_visible()
    assert picture_width(page, "contact_sheet", photo="episodes") > 400


def test_a_backfill_is_launched_from_the_asset(page: Page, running: Pipeline, backfill: str) -> None:
    asked = running.instance.get_backfill(backfill)
    assert asked is not None
    assert [key.to_user_string() for key in asked.asset_selection or ()] == ["episodes"]


def test_an_evaluation_shows_rates_and_a_rollout_to_watch(page: Page, running: Pipeline, evaluated: str) -> None:
    open_partition(page, "evaluation", evaluated)
    table = metadata(page, "success")
    rates = query(
        running.lake,
        "SELECT policy, count(*) AS n, sum(success_once::INT) AS k FROM evaluations WHERE run_key = ? GROUP BY 1",
        [evaluated],
    ).to_pylist()
    assert {rate["policy"] for rate in rates} == {"trained", "untrained", "blind"}
    for rate in rates:
        row = table.get_by_role("row").filter(has=page.get_by_role("cell", name=rate["policy"], exact=True))
        expect(row.get_by_role("cell", name=f"{rate['k']}/{rate['n']}", exact=True)).to_be_visible()
    photograph(page, "evaluation")
    for name in ("success_chart", "rollout", "prediction"):
        assert picture_width(page, name) > 100


def test_the_way_from_a_checkpoint_to_its_recordings_can_be_walked(page: Page, evaluated: str) -> None:
    open_partition(page, "checkpoint", evaluated)
    assert picture_width(page, "loss_curve") > 400
    page.get_by_role("tab", name="Lineage").click()
    for asset in ("training_run", "manifest", "curated_episodes", "episodes", "recordings"):
        node(page, asset).click()
        expect(page).to_have_url(re.compile(rf"/assets/{asset}\?.*view=lineage"))
    expect(node(page, "curated_episodes")).to_have_count(0)
    expect(node(page, "episodes")).to_be_visible()


def test_the_backfill_finishes_and_writes_nothing_twice(page: Page, running: Pipeline, backfill: str) -> None:
    go_to(page, "/runs")
    page.get_by_role("tab", name="Backfills").click()
    page.locator(f"a[href='/runs/b/{backfill}']").first.click()
    page.set_viewport_size(LONG_WINDOW)
    expect(page.get_by_text("100% completed")).to_be_visible()
    expect(page.get_by_text("Succeeded", exact=True)).to_have_count(2)
    photograph(page, "backfill")
    page.set_viewport_size(WINDOW)
    done = running.instance.get_backfill(backfill)
    assert done is not None and done.status is BulkActionStatus.COMPLETED_SUCCESS
    for batch in batches(running):
        again = running.materializations("episodes", batch)[-1].metadata
        assert again["ingested"].value == 0 and again["episodes"].value
    appended = query(running.lake, "SELECT count(*) = count(DISTINCT episode_id) AS once FROM raw_episodes").to_pylist()
    assert appended == [{"once": True}]


def batches(running: Pipeline) -> list[str]:
    return sorted(running.instance.get_dynamic_partitions("ingest_batch"))


def go_to(page: Page, place: str) -> None:
    """Click in the navigation, which shows icons alone."""
    page.get_by_role("navigation").locator(f"a[href='{place}']").click()


def open_asset(page: Page, name: str) -> None:
    """From the catalog to an asset's page."""
    go_to(page, "/assets")
    page.locator(f"a[href='/assets/{name}']").first.click()


def open_partition(page: Page, asset: str, partition: str) -> None:
    """From the catalog to the latest materialization of a partition."""
    open_asset(page, asset)
    page.get_by_role("tab", name="Partitions").click()
    page.get_by_text(partition, exact=True).first.click()
    expect(page).to_have_url(re.compile(rf"partition={partition}"))


def node(page: Page, name: str) -> Locator:
    """A group or an asset in the graph; the asset where both have the name."""
    return page.locator("foreignObject").get_by_text(name, exact=True).last


def metadata(page: Page, name: str) -> Locator:
    """The value of an entry of the metadata shown."""
    key = page.locator("td:first-child").get_by_text(name, exact=True)
    return page.locator("tr").filter(has=key).locator("xpath=./td[2]")


def picture_width(page: Page, name: str, photo: str | None = None) -> int:
    """The width, px, of an entry's picture, which the browser has decoded."""
    metadata(page, name).get_by_text("[Show Markdown]").click()
    dialog = page.get_by_role("dialog")
    width = int(dialog.locator("img[src^='data:']").evaluate("img => img.decode().then(() => img.naturalWidth)"))
    if photo is not None:
        photograph(page, photo)
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)
    return width


def photograph(page: Page, name: str) -> None:
    """Leave a small PNG of the window in `$MEGAHOUR_SCREENSHOTS`."""
    if SCREENSHOTS is None:
        return
    from PIL import Image

    expect(page.get_by_role("region", name="Notifications").get_by_role("listitem")).to_have_count(0)
    page.mouse.move(WINDOW["width"] // 2, 1)
    taken = Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB")
    for scale in (1, 0.85, 0.7):
        small = io.BytesIO()
        size = (round(taken.width * scale), round(taken.height * scale))
        taken.resize(size, Image.Resampling.LANCZOS).quantize(160).save(small, "PNG", optimize=True)
        if len(small.getvalue()) < PHOTO_BYTES:
            break
    folder = Path(SCREENSHOTS)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.png").write_bytes(small.getvalue())

"""`make demo`: record, land, and watch while the sensors carry the data to an evaluated checkpoint.

It starts Dagster, records demonstrations of a simulator's expert, lands them (and a real robot's recordings where they
are at hand) and does nothing more by hand. Interrupted, it goes on where it was; finished, it says so.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from infra.laptop.services import ROOT, Home, ServiceError, home_of, running_address

os.environ.setdefault("MEGAHOUR_SENSOR_INTERVAL_S", "5")

from rich.console import Console

from infra.laptop.facts import Facts, look, phase, progress, read_summary
from infra.laptop.report import demo_json, read_demo, show_report, write_demo
from infra.laptop.terminal import Board
from megahour.files import write_atomically
from megahour.manifest.recipe import Recipe, load_recipe
from megahour.parent import die_with_parent
from megahour.settings import Settings, SettingsError, load_settings
from megahour.storage import Lake, head, open_lake

TASK = "button-press-topdown-v3"
EPISODES = 40
SEED = 0
MAIN = "button_press"
SOURCE = "metaworld"
FOLDER = f"{TASK}-{SEED}"
REAL = "unitree_g1_lerobot_v21"
REAL_RECIPE = "g1_pick_bottle"

POLL_S = 2.0
READY_S = 150
STUCK_S = 600
"""Nothing moved for so long: something is wrong that nobody reported."""


class DemoError(RuntimeError):
    """The demonstration cannot go on; the message says what failed, why, and what to do."""


def samples_dir() -> Path | None:
    """The real robot's dataset beside the repository or in `$MEGAHOUR_SAMPLES`, None where it is missing."""
    folder = Path(os.environ.get("MEGAHOUR_SAMPLES", ROOT.parent / "shared" / "data")) / REAL
    return folder if (folder / "meta" / "info.json").is_file() else None


def has_landed(lake: Lake) -> bool:
    """Whether all demonstrations are in the landing zone."""
    keys = (f"landing/{SOURCE}/{FOLDER}/episode_{index:06d}.hdf5" for index in range(EPISODES))
    return all(head(lake, key) is not None for key in keys)


def real_has_landed(lake: Lake) -> bool:
    """Whether the real robot's dataset is in the landing zone: its `info.json` comes last."""
    return head(lake, f"landing/{REAL}/meta/info.json") is not None


class Clock:
    """Seconds per phase, over interruptions: kept in a file of the scratch folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}

    @contextmanager
    def spend(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - began)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, json.dumps(self.seconds).encode())


@contextmanager
def dagster(home: Home) -> Iterator[subprocess.Popen[bytes] | None]:
    """Dagster's services for as long as this lasts; None when somebody else runs them already."""
    if running_address(home) is not None:
        yield None
        return
    # Their end comes with the end of the pipe, so also when this process is killed.
    services = subprocess.Popen(
        [sys.executable, "-m", "infra.laptop.services", "--until-closed"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield services
    finally:
        assert services.stdin is not None
        services.stdin.close()
        services.wait()


def await_address(home: Home, services: subprocess.Popen[bytes] | None) -> str:
    """The URL of the UI, once it answers.

    Raises:
        DemoError: the services ended, or do not come up.
    """
    deadline = time.monotonic() + READY_S
    while (address := running_address(home)) is None:
        check(services)
        if time.monotonic() > deadline:
            raise DemoError(f"Dagster did not start within {READY_S} s, see {home.folder / 'services'}")
        time.sleep(0.2)
    return address


def check(services: subprocess.Popen[bytes] | None) -> None:
    """See that the services are alive.

    Raises:
        DemoError: they ended.
    """
    if services is None or services.poll() is None:
        return
    assert services.stdout is not None
    readable, _, _ = select.select([services.stdout], [], [], 0)
    said = services.stdout.read().decode(errors="replace").strip() if readable else ""
    raise DemoError(f"Dagster's services ended with code {services.returncode}. {said}")


def megahour(*arguments: str) -> None:
    """Run the command line of this tree.

    Raises:
        DemoError: it failed; it has said why.
    """
    command = [sys.executable, "-m", "megahour.cli", *arguments]
    code = subprocess.run(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent).returncode
    if code != 0:
        raise DemoError(f"`megahour {' '.join(arguments)}` failed with code {code}; the reason is above")


def bring_in(lake: Lake, settings: Settings, real: Path | None, clock: Clock, say: Console) -> None:
    """Record what is missing, and land it with the real robot's recordings: all at once, so that it is one manifest."""
    folder = settings.scratch.absolute() / "demo" / FOLDER
    if not has_landed(lake):
        say.print(f"Recording {EPISODES} demonstrations of {TASK}", highlight=False)
        with clock.spend("record"):
            megahour("record", "--task", TASK, "--episodes", str(EPISODES), "--seed", str(SEED), "--out", str(folder))
    with clock.spend("land"):
        if real is not None and not real_has_landed(lake):
            megahour("land", str(real))
        if not has_landed(lake):
            megahour("land", str(folder), "--source", SOURCE)
    shutil.rmtree(folder, ignore_errors=True)


def watch(
    lake: Lake,
    settings: Settings,
    recipes: Mapping[str, Recipe],
    home: Home,
    services: subprocess.Popen[bytes] | None,
    clock: Clock,
    say: Console,
) -> Facts:
    """Look until all is done, and show how far it is.

    Raises:
        DemoError: something failed that does not heal by itself, or nothing moves any more.
    """
    from infra.laptop.instance import Instance, broken, dead_training

    plan = recipes[MAIN].evaluate
    rollouts = plan.rollouts * (1 + len(plan.controls)) if plan is not None else 0
    instance = Instance(home.folder)
    last: tuple[object, ...] = ()
    moved = began = time.monotonic()
    try:
        with Board(say) as board:
            while True:
                facts = look(lake, settings, recipes, instance.ingested())
                now = phase(facts, MAIN)
                key = facts.recipe(MAIN).run_key
                rolled = instance.rollouts(key) if now == "evaluate" and key is not None else 0
                at_work = instance.at_work()
                runs = instance.runs()
                board.show(now, progress(facts, MAIN, rolled, rollouts))
                if now == "done" and not at_work:
                    for failed in instance.failed_checks(run.run_id for run in runs):
                        say.print(f"An asset check failed: {failed}", highlight=False, markup=False)
                    return facts
                problems = [
                    f"The run of `{run.job}` {run.partition} failed ({run.run_id}): {run.said}" for run in broken(runs)
                ]
                problems += instance.sick_sensors()
                run_dirs = (settings.runs_dir / each.run_key for each in facts.recipes if each.run_key)
                problems += [said for run_dir in run_dirs if (said := dead_training(run_dir, settings)) is not None]
                if problems:
                    raise DemoError("\n".join((*problems, REPAIR)))
                check(services)
                if (state := (facts, rolled, at_work, len(runs))) != last:
                    last, moved = state, time.monotonic()
                if time.monotonic() - moved > STUCK_S:
                    raise DemoError(f"Nothing has moved for {STUCK_S} s in the phase `{now}`. {REPAIR}")
                time.sleep(POLL_S)
                clock.add(now if now != "done" else "evaluate", time.monotonic() - began)
                began = time.monotonic()
    finally:
        instance.close()


REPAIR = "Look closer with `make dev`; once the cause is gone, re-execute the run there and start `make demo` again"


def tell_live_trainings(settings: Settings, say: Console) -> None:
    """Say which trainings go on without Dagster, and how to stop them."""
    from infra.laptop.instance import live_jobs
    from megahour.runs import run_dirs

    for run_key, pid in live_jobs(run_dirs(settings.runs_dir), settings):
        say.print(
            f"Training {run_key} goes on in the background, as trainings do. `make demo` or `make dev` picks it up; "
            f"`kill {pid}` stops it (it saves first)",
            highlight=False,
        )


def run(say: Console) -> None:
    """The demonstration.

    Raises:
        DemoError: it cannot go on.
    """
    settings = Settings()
    lake = open_lake(settings.lake_uri)
    real = samples_dir()
    names = [MAIN] if real is None and not real_has_landed(lake) else [MAIN, REAL_RECIPE]
    recipes = {name: load_recipe(settings.recipes / f"{name}.yaml") for name in names}
    home = home_of(os.environ)
    clock = Clock(settings.scratch.absolute() / "demo" / "seconds.json")

    if has_landed(lake) and (len(names) == 1 or real_has_landed(lake)):
        facts = look(lake, settings, recipes)
        if phase(facts, MAIN) == "done":
            say.print("Everything is done already; this is what it came to. `make dev` shows it in Dagster's UI")
            conclude(lake, settings, facts, clock, say)
            return
    if len(names) == 1:
        say.print(
            f"The real robot's recordings ({REAL}) are not here, so this goes on with the simulator alone; "
            "MEGAHOUR_SAMPLES names the folder they are in"
        )
    with dagster(home) as services:
        try:
            bring_in(lake, settings, real, clock, say)
            with clock.spend("start"):
                address = await_address(home, services)
            say.print(f"Dagster's UI is at {address}. From here on the sensors do the work", highlight=False)
            facts = watch(lake, settings, recipes, home, services, clock, say)
        finally:
            tell_live_trainings(settings, say)
    conclude(lake, settings, facts, clock, say)
    own = "is stopped again; `make dev` starts it" if services is not None else "goes on"
    say.print(f"Dagster's UI was at {address} and {own}", highlight=False)


def conclude(lake: Lake, settings: Settings, facts: Facts, clock: Clock, say: Console) -> None:
    """Write `demo.json` unless it says the same already, and print the report."""
    main = facts.recipe(MAIN)
    assert main.run_key is not None and main.done is not None
    before = read_demo(lake) or {}
    seconds = clock.seconds or before.get("seconds", {})
    summary = read_summary(settings.runs_dir / main.run_key, main.done)
    assert summary is not None
    demo = demo_json(facts, main, summary, seconds)
    if demo != before:
        write_demo(lake, demo)
    show_report(say, lake, settings, facts, MAIN, seconds)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """See that no other demonstration works on the same recordings.

    Raises:
        DemoError: one does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DemoError(f"Another demonstration is going on ({folder / 'lock'} is held): watch that one") from error
        yield


def main() -> int:
    os.chdir(ROOT)
    say = Console() if sys.stdout.isatty() else Console(width=160)

    def stop(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    # A shell that starts this in the background would have it pass over Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, stop)
    try:
        with alone(load_settings().scratch.absolute() / "demo"):
            run(say)
    except (DemoError, ServiceError, SettingsError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; `make demo` goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

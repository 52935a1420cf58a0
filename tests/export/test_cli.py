"""`megahour export lerobot` and `megahour episodes view` as they are typed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megahour.cli import main, view
from megahour.episode.reader import open_episode_file
from megahour.manifest.build import build_manifest
from megahour.storage import Lake
from megahour.warehouse.tables import append
from tests.export.lakes import put_episode, read_dataset
from tests.lake import make_lake
from tests.manifest.test_build import a_recipe
from tests.samples import raw_episode

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Three episodes at 30 Hz and one whose times shake, which no recipe selects."""
    root = tmp_path_factory.mktemp("house")
    lake = make_lake(root / "lake")
    shaky = replace(
        raw_episode(),
        task="shake",
        cameras=tuple(
            replace(each, times_ns=each.times_ns + np.arange(24) % 2 * 5_000_000) for each in raw_episode().cameras
        ),
    )
    rows = [put_episode(lake, root, i, raw_episode()) for i in range(3)]
    append(lake, "episodes", [*rows, put_episode(lake, root, 3, shaky)], once="a")
    build_manifest(lake, a_recipe("task <> 'shake'", validation_share=0.4))
    return lake


@pytest.fixture
def cli(lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    monkeypatch.setenv("MEGAHOUR_LAKE", lake.uri)
    monkeypatch.setenv("MEGAHOUR_SCRATCH", str(tmp_path / "scratch"))
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return run


def test_a_recipe_is_exported(cli: Cli, tmp_path: Path) -> None:
    code, out, _ = cli("export", "lerobot", str(tmp_path / "set"), "--recipe", "demo")
    assert code == 0
    assert out.startswith("3 episodes, 72 frames at 30 fps, 2 cameras (") and "not 1/30" not in out
    assert f'LeRobotDataset("set", root="{tmp_path / "set"}")' in out
    dataset = read_dataset(tmp_path / "set")
    assert dataset.info["total_frames"] == 72 and list(dataset.info["splits"]) == ["train", "validation"]
    named = tmp_path / "val: 1"
    code, out, _ = cli("export", "lerobot", str(named), "--recipe", "demo", "--split", "validation")
    assert code == 0 and list(read_dataset(named).info["splits"]) == ["validation"]


def test_the_folder_is_said_as_other_programs_take_it(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for out, place in (("set", tmp_path / "set"), ("~/set", tmp_path / "home/set")):
        said = cli("export", "lerobot", out, "--episodes", "e00001")[1]
        assert f'root="{place}"' in said and (place / "meta/info.json").is_file()


def test_single_episodes_are_exported_with_some_of_their_topics(cli: Cli, tmp_path: Path) -> None:
    code, out, _ = cli(
        *("export", "lerobot", str(tmp_path / "set"), "--episodes", "e00003,e00001", "--episodes", "e00000"),
        *("--camera", "wrist", "--series", "action"),
    )
    assert code == 0 and "The times of 1 episodes are not 1/30 s apart" in out
    details = json.loads((tmp_path / "set/meta/megahour.json").read_text())
    assert [each["episode_id"] for each in details["episodes"]] == ["e00003", "e00001", "e00000"]
    assert list(details["topics"].values()) == ["wrist", "action"]


def test_what_cannot_be_exported_is_one_sentence(cli: Cli, tmp_path: Path) -> None:
    out = str(tmp_path / "set")
    for arguments, said in (
        ((out,), "Say which episodes"),
        ((out, "--recipe", "demo", "--episodes", "e0"), "Say which episodes"),
        ((out, "--recipe", "none"), "There is no manifest of none; recipes with manifests: demo"),
        ((out, "--episodes", "x"), "There is no episode x"),
        ((out, "--episodes", "e00001", "--camera", "rear"), "no camera 'rear', only front, wrist"),
        (("s3://bucket/set", "--recipe", "demo"), "a folder of this machine"),
        ((str(tmp_path), "--recipe", "demo"), "is not an empty folder"),
        ((out, "--recipe", "demo.yaml"), "'demo.yaml' is no recipe's name"),
        ((out, "--recipe", ""), "'' is no recipe's name"),
        ((out, "--episodes", "e00001", "--split", "train"), "--split is of a recipe's manifest"),
        ((".", "--recipe", "demo"), "is the folder this command runs in"),
        ((str(tmp_path / "kept/set"), "--recipe", "demo"), "kept/set cannot be made: Not a directory. Choose a folder"),
    ):
        (tmp_path / "kept").touch()
        code, _, err = cli("export", "lerobot", *arguments)
        assert (code, err.count("\n")) == (1, 1) and err.startswith("megahour: ") and said in err
    assert not Path(out).exists()


def stub(folder: Path, code: int = 0) -> Path:
    """A program that takes Rerun's place: it says how it was called, and writes what is asked."""
    program = folder / "rerun"
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"with open({str(folder / 'calls')!r}, 'a') as out:\n"
        "    print(json.dumps([sys.argv[1:], os.environ.get('XDG_CONFIG_HOME')]), file=out)\n"
        "if '-o' in sys.argv: open(sys.argv[sys.argv.index('-o') + 1], 'w').write('rrd')\n"
        f"if {code}: print('no such codec')\nsys.exit({code})\n"
    )
    program.chmod(0o755)
    return program


def calls(folder: Path) -> list[list[str]]:
    return [json.loads(line)[0] for line in (folder / "calls").read_text().splitlines()]


def test_without_rerun_the_way_to_foxglove_is_told(cli: Cli, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "_rerun", lambda: None)
    code, out, _ = cli("episodes", "view", "e00001")
    path = lake.local_path("episodes/2026-01-02/e00001.mcap")
    assert code == 0 and str(path) in out and "Foxglove" in out and "megahour[view]" in out
    code, out, err = cli("episodes", "view", "e00001", "--camera", "rear")
    assert (code, out) == (1, "") and "no camera rear, only front, wrist" in err
    code, _, err = cli("episodes", "view", "e00001", "--out", "x.rrd")
    assert code == 1 and "not installed" in err and not Path("x.rrd").exists()


def test_rerun_writes_what_is_asked_and_reports_to_nobody(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "_rerun", lambda: str(stub(tmp_path)))
    code, out, _ = cli("episodes", "view", "e00001", "--out", str(tmp_path / "e.rrd"), "--camera", "front")
    assert code == 0 and (tmp_path / "e.rrd").read_text() == "rrd" and "Foxglove" in out
    first, second = calls(tmp_path)
    assert first == ["analytics", "disable"], "before anything else, and in settings of its own"
    assert second[:2] == ["mcap", "convert"] and second[-2:] == ["-n", "^/camera/wrist$"]
    settings = {json.loads(line)[1] for line in (tmp_path / "calls").read_text().splitlines()}
    assert settings == {str(tmp_path / "scratch/rerun/config")}
    code, _, err = cli("episodes", "view", "e00001", "--camera", "rear")
    assert code == 1 and "no camera rear, only front, wrist" in err


def test_rerun_opens_a_window_where_there_is_one(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "_rerun", lambda: str(stub(tmp_path)))
    monkeypatch.setattr(view.sys, "platform", "linux")
    code, out, _ = cli("episodes", "view", "e00001")
    recording = str(tmp_path / "scratch/view/e00001.rrd")
    assert code == 0 and f"there is no display here; where there is one, `rerun {recording}`" in out
    assert [recording] not in calls(tmp_path)
    monkeypatch.setenv("DISPLAY", ":0")
    assert cli("episodes", "view", "e00001")[0] == 0
    assert calls(tmp_path)[-1] == [recording]
    monkeypatch.setattr(view, "_rerun", lambda: str(stub(tmp_path, code=3)))
    code, _, err = cli("episodes", "view", "e00001")
    assert code == 1 and "ended with code 3: no such codec" in err


def test_an_episode_of_a_bucket_is_fetched_first(
    cli: Cli, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "_rerun", lambda: None)
    monkeypatch.setattr(Lake, "local_path", lambda *_: None)
    code, out, _ = cli("episodes", "view", "e00002")
    (path,) = (tmp_path / "scratch/view").rglob("*.mcap")
    assert code == 0 and str(path) in out
    assert open_episode_file(path).facts.episode_id == "e00002"

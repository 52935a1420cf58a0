"""Settings are what the environment says, and a place in a home is written as a shell has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from megahour.settings import Settings, SettingsError, load_settings

PLACES = ("lake", "scratch", "runs", "recipes", "profile")
"""The settings that may be a place of this machine."""


def test_every_place_in_a_home_is_found_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folders = {name for name, field in Settings.model_fields.items() if "Path" in str(field.annotation)}
    assert folders <= set(PLACES), "a new setting that is a folder belongs here"
    for name in PLACES:
        monkeypatch.setenv(f"MEGAHOUR_{name.upper()}", f"~/{name}.toml")
    settings = load_settings()
    assert [str(getattr(settings, name)) for name in PLACES] == [f"{tmp_path}/{name}.toml" for name in PLACES]
    assert settings.lake_uri == (tmp_path / "lake.toml").as_uri()
    assert settings.runs_dir == tmp_path / "runs.toml"


def test_what_does_not_begin_in_a_home_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for lake in ("s3://bucket/~/prefix", "file:///lake", "some/~lake"):
        monkeypatch.setenv("MEGAHOUR_LAKE", lake)
        assert load_settings().lake == lake
    monkeypatch.setenv("MEGAHOUR_PROFILE", "world")
    assert load_settings().profile == "world"


@pytest.mark.parametrize("name", PLACES)
def test_a_home_of_nobody_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"MEGAHOUR_{name.upper()}", "~no_such_person/x")
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert str(caught.value) == (
        f"MEGAHOUR_{name.upper()} is '~no_such_person/x': there is no home folder ~no_such_person"
    )

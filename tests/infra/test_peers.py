"""Environments of other projects are made once, from nothing when a pin changed, and a failure is one sentence."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.laptop import peers
from infra.laptop.peers import PEERS, Peer, main, make

PEER = Peer("them", packages=("one==1",), alone=("two==2",))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The programs that were started; making an environment makes its Python, pip does nothing."""
    started: list[list[str]] = []

    def run(command: list[str], **_: Any) -> None:
        started.append(command)
        if "venv" in command:
            venv = Path(command[-1])
            (venv / "bin").mkdir(parents=True, exist_ok=True)
            (venv / "bin/python").touch()
            (venv / "pyvenv.cfg").write_text(f"version = {sys.version.split()[0]}\n")

    monkeypatch.setattr(peers.subprocess, "run", run)
    return started


def test_it_is_made_once_and_anew_when_a_pin_changed(tmp_path: Path, calls: list[list[str]]) -> None:
    assert make(PEER, tmp_path)
    venv, packages, alone = calls
    assert "--clear" not in venv
    assert packages[-1] == "one==1" and "--no-deps" not in packages
    assert alone[-2:] == ["--no-deps", "two==2"]
    assert all(str(tmp_path / "them/bin/python") == command[0] for command in (packages, alone))
    calls.clear()
    assert not make(PEER, tmp_path) and calls == []
    assert make(replace(PEER, alone=("two==3",)), tmp_path)
    assert "--clear" in calls[0]


def test_an_installation_that_failed_is_tried_again(
    tmp_path: Path, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(command: list[str], **_: Any) -> None:
        raise subprocess.CalledProcessError(7, command)

    monkeypatch.setattr(peers, "FOLDER", tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(peers.subprocess, "run", fail)
        assert main() == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "could not be made (code 7)" in said and "pytest` skips" in said
    assert main() == 0 and len(calls) == sum(2 + bool(peer.alone) for peer in PEERS)


def test_every_package_is_pinned() -> None:
    assert all("==" in package for peer in PEERS for package in (*peer.packages, *peer.alone))

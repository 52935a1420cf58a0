"""Every benchmark says under which conditions its figures hold, on the screen and in JSON."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import names
from benchmarks.report import Row, conditions, cpu_model, installed, run


def test_the_figures_and_their_conditions_come_out_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(quick: bool) -> list[Row]:
        return [{"phase": "walk", "seconds": 1.5 if quick else 30.0}]

    target = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", ["it", "--quick", "--json", str(target)])
    run("walk", "seconds of a walk", measure, ("numpy",), "One side [walks].\nThe other does not.")
    stored = json.loads(target.read_text())
    assert stored["rows"] == [{"phase": "walk", "seconds": 1.5}]
    assert stored["quick"] is True
    found = stored["conditions"]
    assert found["cores"] >= 1
    assert len(found["load"]) == 3
    assert found["versions"]["numpy"] == installed("numpy")
    printed = " ".join(capsys.readouterr().out.split())
    assert "seconds of a walk" in printed
    assert "One side [walks]. The other does not." in printed
    assert stored["sides"] == "One side [walks].\nThe other does not."
    assert found["commit"] in printed


def test_conditions_name_the_processor_and_what_is_absent() -> None:
    assert cpu_model("processor\t: 0\nmodel name\t: AMD EPYC 9654\nmodel name\t: other\n") == "AMD EPYC 9654"
    assert conditions(["no-such-package"])["versions"]["no-such-package"] == "absent"


def test_every_benchmark_follows_the_convention() -> None:
    assert "demo_path" in names()
    for name in names():
        assert callable(importlib.import_module(f"benchmarks.{name}").measure), name

"""The README says what is: its settings table, its commands and its pictures."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from megahour.episode.profile import Rendition, load_profile
from megahour.manifest.recipe import Recipe
from megahour.settings import Settings
from megahour.sources.mcap.mapping import _parse
from megahour.sources.options import parse_options

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def settings_table() -> str:
    """The table as the README must hold it."""
    lines = ["| variable | default | what |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        default = "" if field.default in (None, "") else f"`{field.default}`"
        lines.append(f"| `MEGAHOUR_{name.upper()}` | {default} | {field.description} |")
    return "\n".join(lines)


def test_the_settings_table_lists_every_setting_with_its_default() -> None:
    table = README.split("<!-- settings -->")[1].split("<!-- /settings -->")[0].strip()
    assert table == settings_table(), f"Put this table into the README:\n{settings_table()}"


SHOWN = re.findall(r"^    (megahour [a-z][^#\n]*)", README, re.MULTILINE) + re.findall(
    r"`(megahour [a-z][^`]*)`", README
)


@pytest.mark.parametrize("command", sorted(set(SHOWN)))
def test_every_command_shown_exists_with_the_options_shown(command: str) -> None:
    from megahour.cli import app

    words = shlex.split(re.sub(r"<\w+>", "x", command))[1:]
    shown = CliRunner().invoke(app, [*(word for word in words[:2] if word.isalpha() and word != "x"), "--help"])
    assert shown.exit_code == 0, shown.output
    for option in (word for word in words if word.startswith("--")):
        assert option in shown.output


def test_every_picture_and_room_named_exists() -> None:
    for path in re.findall(r"\]\((docs/[^)]+)\)", README):
        assert (ROOT / path).is_file(), path
    for room in re.findall(r"^\| `(\w+)/`", README, re.MULTILINE):
        assert (ROOT / room).is_dir(), room


def test_the_recipe_shown_is_a_recipe() -> None:
    import yaml

    text = re.search(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert text is not None
    recipe = Recipe.model_validate(yaml.safe_load(text.group(1)))
    assert recipe.train is not None and recipe.train.launch and recipe.evaluate is not None


def test_the_profile_shown_is_a_profile(tmp_path: Path) -> None:
    text = re.search(r"```toml\n(.*?)```", (ROOT / "docs/episode.md").read_text(), re.DOTALL)
    assert text is not None
    (tmp_path / "our_lab.toml").write_text(text.group(1))
    profile = load_profile(str(tmp_path / "our_lab.toml"))
    assert (profile.name, profile.gop, profile.rendition) == ("our_lab", 15, Rendition(224, 224, 18))


def test_the_options_shown_are_options() -> None:
    text = re.search(r"```yaml\n(.*?)```", (ROOT / "docs/sources.md").read_text(), re.DOTALL)
    assert text is not None
    options = parse_options(text.group(1).encode(), "source.yaml")
    for topic, said in options.topics.items():
        for each in said if isinstance(said, list) else [said]:
            assert _parse(each, topic)


def section(title: str) -> str:
    """The text below a title of docs/sources.md."""
    return (ROOT / "docs/sources.md").read_text().split(f"## {title}\n")[1].split("\n## ")[0]


def test_every_note_is_documented() -> None:
    code = "".join(path.read_text() for path in (ROOT / "megahour").rglob("*.py"))
    for note in set(re.findall(r"\bNote\(\s*\"(\w+)\"", code)):
        assert f"`{note}`" in section("Notes"), note


def reasons_in(path: Path) -> set[str]:
    """The codes that a module gives its errors and refusals."""
    found = set(re.findall(r'^[A-Z_]+ = "(\w+)"\n"""Reason code', path.read_text(), re.MULTILINE))
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and re.search(r"(Error|Rejected|refusal)$", ast.unparse(node.func)):
            given: list[ast.AST] = list(node.args)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "reason":
            given = list(ast.walk(node.value))
        else:
            continue
        texts = [each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        found |= {each for each in texts if re.fullmatch(r"[a-z]+(_[a-z]+)*", each)}
    return found


def test_every_reason_that_ingest_can_give_is_documented() -> None:
    writing = [f"episode/{name}.py" for name in ("writer", "streams", "h264", "nal", "jpeg")]
    paths = [*(ROOT / "megahour/sources").rglob("*.py"), *(ROOT / "megahour" / name for name in writing)]
    paths += [ROOT / "megahour/ingest" / f"{name}.py" for name in ("verdict", "identify", "transcode", "run")]
    found = {reason: path for path in paths for reason in reasons_in(path)}
    assert {"gone", "changed", "worker_died", "unexpected", "invalid", "truncated", "damaged_frame"} <= set(found)
    for reason, path in found.items():
        assert f"`{reason}`" in section("Reasons"), f"{reason} of {path}"

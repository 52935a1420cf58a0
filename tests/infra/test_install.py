"""The environment is made once, and again exactly when what it is made from changed."""

from pathlib import Path

from infra.laptop.install import fingerprint, is_current, python_of, write_stamp


def sources(folder: Path, constraints: str = "numpy==2.0", project: str = "[project]") -> list[Path]:
    (folder / "constraints.txt").write_text(constraints)
    (folder / "pyproject.toml").write_text(project)
    return [folder / "constraints.txt", folder / "pyproject.toml"]


def test_any_change_of_the_inputs_changes_the_fingerprint(tmp_path: Path) -> None:
    first = fingerprint(sources(tmp_path), "3.11.2", "dev")
    assert fingerprint(sources(tmp_path), "3.11.2", "dev") == first
    others = [
        fingerprint(sources(tmp_path, constraints="numpy==2.1"), "3.11.2", "dev"),
        fingerprint(sources(tmp_path, project="[project]\n"), "3.11.2", "dev"),
        fingerprint(sources(tmp_path), "3.13.0", "dev"),
        fingerprint(sources(tmp_path), "3.11.2", "dev,kubernetes"),
    ]
    assert first not in others
    assert len(set(others)) == len(others)


def test_an_environment_is_current_only_with_its_stamp_and_its_python(tmp_path: Path) -> None:
    venv = tmp_path / ".venv"
    assert not is_current(venv, "a")
    (venv / "bin").mkdir(parents=True)
    write_stamp(venv, "a")
    assert not is_current(venv, "a"), "the stamp alone is no environment"
    (venv / "bin" / "python").touch()
    assert is_current(venv, "a")
    assert not is_current(venv, "b")


def test_the_python_of_an_environment_is_read_from_its_configuration(tmp_path: Path) -> None:
    assert python_of(tmp_path) is None
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11.2\n")
    assert python_of(tmp_path) == "3.11.2"

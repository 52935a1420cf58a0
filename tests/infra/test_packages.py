"""A missing system package is installed where that is allowed; elsewhere one line is printed and nothing happens."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "infra" / "laptop" / "packages.sh"
LIBRARIES = "\tlibEGL.so.1 (libc6,x86-64) => /lib/libEGL.so.1\n\tlibGL.so.1 (libc6,x86-64) => /lib/libGL.so.1\n"


class Machine:
    """A machine of stub programs: those in `has` exist, `ldconfig` lists `libraries`."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.calls = folder / "calls"
        self.stub("python3", "exit 0")
        self.stub("chromium", "exit 0")
        self.stub("ffmpeg", "exit 0")
        self.stub("apt-get", f'echo "apt-get $*" >> {self.calls}')
        self.stub("sudo", f'echo "sudo $*" >> {self.calls}; exit 1')
        self.libraries(LIBRARIES)
        self.user(1000)
        for program in ("grep", "env"):
            (self.bin / program).symlink_to(f"/usr/bin/{program}")

    def stub(self, name: str, body: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.bin / name).chmod(0o755)

    def libraries(self, text: str) -> None:
        listing = self.bin / "libraries.txt"
        listing.write_text(text)
        self.stub("ldconfig", f'while IFS= read -r line; do echo "$line"; done < {listing}')

    def user(self, number: int) -> None:
        self.stub("id", f"echo {number}")

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        # The script adds the system's folders for programs; the stubs come first.
        return subprocess.run(
            ["/bin/sh", str(SCRIPT), *arguments],
            env={"PATH": str(self.bin), **environment},
            capture_output=True,
            text=True,
        )

    def called(self) -> str:
        return self.calls.read_text() if self.calls.exists() else ""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_nothing_happens_where_nothing_is_missing(machine: Machine) -> None:
    done = machine.run("test")
    assert (done.returncode, done.stdout, done.stderr, machine.called()) == (0, "", "", "")


def test_a_user_without_rights_gets_the_line_to_run(machine: Machine) -> None:
    machine.libraries("")
    done = machine.run()
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "sudo apt-get update && sudo apt-get install -y --no-install-recommends libegl1 libgl1"
    )
    assert "apt-get" not in machine.called().replace("sudo -n true", "")


def test_root_installs_exactly_what_is_missing(machine: Machine) -> None:
    machine.user(0)
    machine.libraries("\tlibGL.so.1 (libc6,x86-64) => /lib/libGL.so.1\n")
    assert machine.run().returncode == 0
    assert machine.called().splitlines() == [
        "apt-get update -q",
        "apt-get install -q -y --no-install-recommends libegl1",
    ]


def test_passwordless_sudo_is_used(machine: Machine) -> None:
    machine.stub("sudo", f'echo "sudo $*" >> {machine.calls}; shift; "$@"')
    machine.libraries("")
    assert machine.run().returncode == 0
    assert "apt-get install -q -y --no-install-recommends libegl1 libgl1" in machine.called()


def test_the_other_renderer_needs_another_library(machine: Machine) -> None:
    machine.libraries("")
    assert machine.run(MEGAHOUR_MUJOCO_GL="osmesa").stderr.rstrip().endswith("libosmesa6")


def test_only_tests_need_a_browser_and_ffmpeg(machine: Machine) -> None:
    for program in ("chromium", "ffmpeg"):
        (machine.bin / program).unlink()
        assert machine.run().returncode == 0
        assert program in machine.run("test").stderr

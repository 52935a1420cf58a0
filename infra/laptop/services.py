"""Dagster on one machine: `python -m infra.laptop.services` runs code server, webserver and daemon until it is stopped.

It owns what it started: when it ends, on a signal, with the process that started it (`--until-closed`: the end of its
standard input) or because one of the three ended, nothing of Dagster stays. Jobs of the local cluster do stay, they are
not Dagster's. A second one on the same instance attaches to the first: it prints its address and ends.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from megahour.files import write_atomically
from megahour.settings import SettingsError, load_settings
from resources.clusters.processes import marked
from resources.clusters.supervise import MARK as JOB_MARK

ROOT = Path(__file__).resolve().parents[2]
CONFIG = Path(__file__).with_name("dagster.yaml")
MARK = "MEGAHOUR_DAGSTER"
"""In the environment of everything that is started here: the instance's folder."""

HOST = "127.0.0.1"
PORT = 3000
START_S = 120
STOP_S = 5.0
POLL_S = 0.2
LOG_TAIL = 20
LOCK_TRIES = 3


class ServiceError(RuntimeError):
    """Dagster did not start, or one of its processes ended; the message ends with what it said last."""


@dataclass(frozen=True)
class Home:
    """The instance's folder and the files in it."""

    folder: Path

    @property
    def lock(self) -> Path:
        return self.folder / "services.lock"

    @property
    def address(self) -> Path:
        """The URL of the UI, there while it answers."""
        return self.folder / "services.json"

    def log(self, service: str) -> Path:
        return self.folder / "services" / f"{service}.log"


def home_of(environment: Mapping[str, str]) -> Home:
    """`DAGSTER_HOME`, else `.dagster/` of this tree."""
    return Home(Path(environment.get("DAGSTER_HOME") or ROOT / ".dagster").expanduser().absolute())


def wanted_port(environment: Mapping[str, str]) -> int:
    """`MEGAHOUR_PORT`, or 0 for any.

    Raises:
        ServiceError: it is no port.
    """
    text = environment.get("MEGAHOUR_PORT", "0") or "0"
    if not text.isdecimal() or int(text) > 65535:
        raise ServiceError(f"MEGAHOUR_PORT is {text!r}: give it a number up to 65535, or leave it out")
    return int(text)


def free_port(preferred: int = 0) -> int:
    """A port that nobody listens on: the preferred one where it is free."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ServiceError(f"There is no free port on {HOST}")


def running_address(home: Home) -> str | None:
    """The URL of services that somebody runs on this instance, None when nobody does."""
    try:
        with home.lock.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pass
    except FileNotFoundError:
        return None
    else:
        return None
    try:
        return str(json.loads(home.address.read_text())["url"])
    except (FileNotFoundError, ValueError, KeyError):
        return None


def leftovers(home: Home) -> list[int]:
    """Living processes that were started for this instance, without the cluster's jobs and what is under them."""
    jobs = set()
    found = marked(MARK, str(home.folder))
    for pid in found:
        try:
            if f"{JOB_MARK}=".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                jobs.add(pid)
        except OSError:
            jobs.add(pid)
    return [pid for pid in found if pid not in jobs and pid != os.getpid()]


def kill_all(home: Home) -> None:
    """Kill what runs for this instance. Every stage may be killed at any point, and then the next start repeats it; one
    that is asked to stop would tell Dagster that it failed, and need a person."""
    while alive := leftovers(home):
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)


class Services:
    """The three processes. Not for several threads."""

    def __init__(self, home: Home, port: int) -> None:
        self.home = home
        self.port = port
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.url = f"http://{HOST}:{port}"

    def start(self, ending: Callable[[], bool]) -> bool:
        """Start the code server, then the two that ask it; False when it was told to end meanwhile.

        Raises:
            ServiceError: one of them does not come up.
        """
        self.home.log("x").parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(CONFIG, self.home.folder / "dagster.yaml")
        code_port = free_port()
        workspace = self.home.folder / "workspace.yaml"
        server = f"{{host: {HOST}, port: {code_port}, location_name: megahour}}"
        workspace.write_text(f"load_from:\n  - grpc_server: {server}\n")
        code = ("-m", "dagster", "api", "grpc", "-h", HOST, "-p", str(code_port), "-m", "definitions")
        self._spawn("code-server", *code, "--location-name", "megahour")
        # The others look for the code location once a minute only: they start when it answers.
        if not self._wait("code-server", lambda: listens(code_port), ending):
            return False
        self._spawn("daemon", "-m", "dagster._daemon", "run", "-w", str(workspace))
        web = ("-m", "dagster_webserver", "-h", HOST, "-p", str(self.port), "-w", str(workspace))
        self._spawn("webserver", *web)
        if not self._wait("webserver", lambda: answers(f"{self.url}/server_info"), ending):
            return False
        write_atomically(self.home.address, json.dumps({"url": self.url, "pid": os.getpid()}).encode())
        return True

    def check(self) -> None:
        """See that all are alive.

        Raises:
            ServiceError: one has ended.
        """
        for service, child in self.children.items():
            if (code := child.poll()) is not None:
                tail = "\n".join(self.home.log(service).read_text(errors="replace").splitlines()[-LOG_TAIL:])
                raise ServiceError(f"Dagster's {service} ended with code {code}. It said last:\n{tail}")

    def stop(self) -> None:
        """End all that was started here."""
        self.home.address.unlink(missing_ok=True)
        if (daemon := self.children.get("daemon")) is not None:
            # It goes first: it starts others.
            daemon.terminate()
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(STOP_S)
        kill_all(self.home)
        for child in self.children.values():
            child.wait()

    def _spawn(self, service: str, *arguments: str) -> None:
        environment = {**os.environ, "DAGSTER_HOME": str(self.home.folder), MARK: str(self.home.folder)}
        with self.home.log(service).open("wb") as log:
            self.children[service] = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait(self, service: str, ready: Callable[[], bool], ending: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + START_S
        while not ready():
            self.check()
            if ending():
                return False
            if time.monotonic() > deadline:
                log = self.home.log(service)
                raise ServiceError(f"Dagster's {service} did not answer within {START_S} s, see {log}")
            time.sleep(POLL_S)
        return True


def listens(port: int) -> bool:
    """Whether somebody accepts connections on the port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def answers(url: str) -> bool:
    """Whether the address answers."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return int(response.status) == 200
    except OSError:
        return False


def is_closed(descriptor: int) -> bool:
    """Whether the other end of a pipe is gone; what comes through it is thrown away."""
    readable, _, _ = select.select([descriptor], [], [], 0)
    return bool(readable) and os.read(descriptor, 4096) == b""


def serve(home: Home, port: int, until_closed: bool) -> None:
    """Run the services until told to end.

    Raises:
        ServiceError: they did not start, or one of them ended.
    """
    told: list[int] = []

    def tell(number: int, _frame: FrameType | None) -> None:
        told.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, tell)

    def ending() -> bool:
        return bool(told) or (until_closed and is_closed(0))

    kill_all(home)
    services = Services(home, port)
    try:
        if services.start(ending):
            print(f"Dagster is at {services.url}" + ("" if until_closed else " (Ctrl-C ends it)"), flush=True)
            while not ending():
                services.check()
                time.sleep(POLL_S)
    finally:
        services.stop()


def take(lock: IO[str]) -> bool:
    """Hold the lock; False when others do. Those who only look hold it for a moment, so it is tried for a while."""
    for _ in range(LOCK_TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(POLL_S)
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description="Run Dagster's webserver, daemon and code server on this machine.")
    parser.add_argument("--until-closed", action="store_true", help="end when standard input ends")
    options = parser.parse_args()
    home = home_of(os.environ)
    home.folder.mkdir(parents=True, exist_ok=True)
    with home.lock.open("a") as lock:
        if not take(lock):
            print(f"Dagster runs already on {home.folder}, at {running_address(home) or 'an address to come'}")
            return 0
        try:
            load_settings()
            wanted = wanted_port(os.environ)
            serve(home, wanted or free_port(PORT), options.until_closed)
        except (ServiceError, SettingsError) as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

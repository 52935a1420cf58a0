"""A proxy before an HTTP server on this machine that counts requests, and can hold them until others have come too."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

WAIT_S = 60


@dataclass
class Proxy:
    """Requests that passed, by their first line. All bytes pass unchanged, so signatures hold.

    While `meeting` is set each request waits there for the others: it fails where they are not made at the same time.
    """

    port: int
    requests: list[str] = field(default_factory=list)
    meeting: threading.Barrier | None = None

    def taken(self) -> list[str]:
        """The methods of the requests since the last call."""
        methods = [line.split(" ")[0] for line in self.requests]
        self.requests.clear()
        return methods


@contextmanager
def counting_proxy(backend: int) -> Iterator[Proxy]:
    """Serve on a free port whatever the server on the port `backend` serves."""
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = Proxy(listener.getsockname()[1])

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", backend))
                for where in ((client, server, True), (server, client, False)):
                    threading.Thread(target=_pump, args=(proxy, *where), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield proxy
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _pump(proxy: Proxy, source: socket.socket, target: socket.socket, counted: bool) -> None:
    with suppress(OSError, threading.BrokenBarrierError):
        while data := source.recv(65536):
            # Reads have no body, and no client sends one before the last was answered: a request is one piece.
            if counted and data.startswith((b"GET ", b"HEAD ", b"PUT ", b"POST ")):
                proxy.requests.append(data.split(b"\r\n", 1)[0].decode())
                if proxy.meeting is not None:
                    proxy.meeting.wait(WAIT_S)
            target.sendall(data)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)

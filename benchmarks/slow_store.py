"""A store far away: a proxy that holds every answer back, then lets it through at a limited rate.

It stands in front of an S3 server on this machine. All bytes pass unchanged, the `Host` header too, so signatures hold.
Requests wait side by side, as on a real store; the rate is one for all of them together.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

REQUEST_S = 0.020
BYTES_PER_S = 100e6
PIECE_BYTES = 64 * 1024
HEAD_BYTES = 256 * 1024
START_S = 30


@dataclass
class Link:
    """When bytes may pass. All times are seconds of one clock; the rate is shared by all requests.

    `passed` is what was let through: (asked at, free to go at, bytes), the head of an answer as 0 bytes.
    """

    request_s: float = REQUEST_S
    bytes_per_s: float = BYTES_PER_S
    free_at: float = 0.0
    passed: list[tuple[float, float, int]] = field(default_factory=list)

    def head(self, asked_at: float) -> float:
        """When the first byte of the answer to a request asked at `asked_at` may leave."""
        return self._pass(asked_at, asked_at + self.request_s, 0)

    def body(self, ready_at: float, size_bytes: int) -> float:
        """When `size_bytes` that are ready at `ready_at` have gone through, after all that went before them."""
        self.free_at = max(self.free_at, ready_at) + size_bytes / self.bytes_per_s
        return self._pass(ready_at, self.free_at, size_bytes)

    def _pass(self, asked_at: float, goes_at: float, size_bytes: int) -> float:
        self.passed.append((asked_at, goes_at, size_bytes))
        return goes_at


@dataclass(frozen=True)
class Count:
    """What went through: requests, and bytes of the answers' bodies."""

    requests: int
    size_bytes: int


class SlowStore:
    """The handle on a proxy in a process of its own. `address` is `http://host:port`."""

    def __init__(self, connection: Connection[Any, Any], address: str) -> None:
        self._connection = connection
        self.address = address

    def count(self) -> Count:
        """What went through since the last call."""
        self._connection.send(None)
        return Count(*self._connection.recv())


@contextmanager
def slow_store(
    backend: tuple[str, int], request_s: float = REQUEST_S, bytes_per_s: float = BYTES_PER_S
) -> Iterator[SlowStore]:
    """A proxy before the HTTP server at `backend`, in a process of its own so that its work is not the reader's."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, backend, request_s, bytes_per_s), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(START_S):
            raise RuntimeError(f"The slow store before {backend} did not start in {START_S} s")
        yield SlowStore(ours, f"http://127.0.0.1:{ours.recv()}")
    finally:
        ours.close()
        process.join(START_S)
        process.kill()


def _serve(connection: Connection[Any, Any], backend: tuple[str, int], request_s: float, bytes_per_s: float) -> None:
    asyncio.run(_answer(connection, backend, Link(request_s, bytes_per_s)))


async def _answer(connection: Connection[Any, Any], backend: tuple[str, int], link: Link) -> None:
    server = await start(backend, link)
    connection.send(server.sockets[0].getsockname()[1])
    with suppress(EOFError, OSError):
        while True:
            await asyncio.to_thread(connection.recv)
            connection.send((sum(not size for *_, size in link.passed), sum(size for *_, size in link.passed)))
            link.passed.clear()
    server.close()


async def start(backend: tuple[str, int], link: Link, clock: Callable[[], float] = time.monotonic) -> asyncio.Server:
    """Serve on a free port of this machine. Every connection has one of its own to `backend`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*backend, limit=HEAD_BYTES)
        try:
            while await _one_request(reader, writer, up_reader, up_writer, link, clock):
                pass
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # Either side hung up, or the server stops.
        finally:
            for each in (writer, up_writer):
                each.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0, limit=HEAD_BYTES)


async def _one_request(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    up_reader: asyncio.StreamReader,
    up_writer: asyncio.StreamWriter,
    link: Link,
    clock: Callable[[], float],
) -> bool:
    """Pass one request on and its answer back; whether the connection lives on."""
    head = await reader.readuntil(b"\r\n\r\n")
    asked_at = clock()
    up_writer.write(head)
    async for piece in _body(head, reader):
        up_writer.write(piece)
        await up_writer.drain()
    answer = await up_reader.readuntil(b"\r\n\r\n")
    status = int(answer.split(b" ", 2)[1])
    # The server's own time lies inside the wait, so the wait is what a request costs and not more.
    goes_at = link.head(asked_at)
    await _until(goes_at, clock)
    writer.write(answer)
    if not head.startswith(b"HEAD ") and status not in (204, 304):
        async for piece in _body(answer, up_reader, until_closed=True):
            # Counted from the answer's start, not from now: a timer that wakes late must not lower the rate.
            await _until(link.body(goes_at, len(piece)), clock)
            writer.write(piece)
            await writer.drain()
    return _header(head, b"connection").lower() != b"close" and _header(answer, b"connection").lower() != b"close"


async def _until(moment: float, clock: Callable[[], float]) -> None:
    if (wait := moment - clock()) > 0:
        await asyncio.sleep(wait)


def _header(head: bytes, name: bytes) -> bytes:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip()
    return b""


async def _body(head: bytes, reader: asyncio.StreamReader, until_closed: bool = False) -> AsyncIterator[bytes]:
    """The bytes after a head, in pieces, as they come (RFC 9112, section 6.3)."""
    if _header(head, b"transfer-encoding").lower() == b"chunked":
        while True:
            line = await reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            yield line + await reader.readexactly(size + 2)
            if size == 0:
                return
    length = _header(head, b"content-length")
    if length:
        left = int(length)
        while left:
            piece = await reader.readexactly(min(left, PIECE_BYTES))
            left -= len(piece)
            yield piece
    elif until_closed:
        while piece := await reader.read(PIECE_BYTES):
            yield piece

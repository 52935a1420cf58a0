"""The slow store holds back as long as it says, and changes no byte."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from benchmarks.slow_store import Link, start

BODY = bytes(range(256)) * 1000
ANSWERS = {
    b"GET /whole": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
    b"GET /pieces": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n",
    b"HEAD /whole": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY),
    b"PUT /whole": b"HTTP/1.1 204 No Content\r\n\r\n",
}


def test_requests_wait_side_by_side_and_share_the_rate() -> None:
    link = Link(request_s=0.020, bytes_per_s=1000.0)
    assert link.head(5.0) == 5.020
    assert link.head(5.0) == 5.020, "a second request does not wait for the first"
    assert link.body(5.020, 100) == pytest.approx(5.120)
    assert link.body(5.020, 100) == pytest.approx(5.220), "the second body comes after the first"
    assert link.body(9.0, 100) == pytest.approx(9.1), "what was not used is not saved up"
    assert link.head(5.0) == 5.020, "a head does not wait for other bodies"
    assert [size for *_, size in link.passed] == [0, 0, 100, 100, 100, 0]


def through_proxy(link: Link, talk: Callable[[int], Awaitable[None]]) -> list[bytes]:
    """Run `talk(port)` against a proxy in front of a server that knows `ANSWERS`; gives what that server received."""
    received: list[bytes] = []

    async def backend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                received.append(head + (await reader.readexactly(5) if head.startswith(b"PUT") else b""))
                writer.write(ANSWERS[head.split(b" HTTP")[0]])
        except asyncio.IncompleteReadError:
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(backend, "127.0.0.1", 0)
        proxy = await start(server.sockets[0].getsockname(), link)
        await talk(proxy.sockets[0].getsockname()[1])
        proxy.close()
        server.close()

    asyncio.run(run())
    return received


def test_every_byte_passes_unchanged_over_one_connection() -> None:
    asked = [
        b"GET /whole HTTP/1.1\r\nHost: 127.0.0.1:9\r\nAuthorization: signed over the host\r\n\r\n",
        b"HEAD /whole HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PUT /whole HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12345",
        b"GET /pieces HTTP/1.1\r\nHost: a\r\n\r\n",
    ]
    link = Link(request_s=0.0, bytes_per_s=1e12)

    async def talk(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for request in asked:
            writer.write(request)
            wanted = ANSWERS[request.split(b" HTTP")[0]]
            assert await reader.readexactly(len(wanted)) == wanted
        writer.close()

    assert through_proxy(link, talk) == asked
    assert sum(not size for *_, size in link.passed) == len(asked)
    bodies = len(BODY) + len(b"3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n")
    assert sum(size for *_, size in link.passed) == bodies


def test_nothing_arrives_before_its_time() -> None:
    link = Link(request_s=0.05, bytes_per_s=4e6)
    arrived: list[float] = []

    async def talk(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /whole HTTP/1.1\r\nHost: a\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        arrived.append(time.monotonic())
        await reader.readexactly(len(BODY))
        arrived.append(time.monotonic())
        assert head.startswith(b"HTTP/1.1 200")
        writer.close()

    through_proxy(link, talk)
    (asked_at, head_at, _), *pieces = link.passed
    assert head_at == asked_at + 0.05
    assert pieces[-1][1] == pytest.approx(head_at + len(BODY) / 4e6)
    assert arrived[0] >= head_at
    assert arrived[1] >= pieces[-1][1]

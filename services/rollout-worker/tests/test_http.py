"""The HTTP client against raw sockets: whole answers, broken ones, connections used again and not."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from longshore_rollout_worker.clients.http import ConnectionBroken, HttpClient

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Longshore-Queued-Ms: 7\r\n\r\nhi"


@asynccontextmanager
async def server(*answers: bytes, close: bool = False) -> AsyncIterator[tuple[str, list[bytes], Callable[[], int]]]:
    """Sends the answers in turn; gives its URL, the requests, and how many connections were made."""
    requests: list[bytes] = []
    connections = 0
    left = list(answers)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while left:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            requests.append(head + await reader.readexactly(length))
            writer.write(left.pop(0))
            await writer.drain()
            if close:
                break
        writer.close()

    listener = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/v1/x", requests, lambda: connections
    finally:
        listener.close()


async def test_a_request_is_sent_as_it_was_given_and_the_connection_is_used_again() -> None:
    client = HttpClient(4, 5.0)
    async with server(OK, OK, OK) as (url, requests, connections):
        for _ in range(3):
            answer = await client.post(url, {"authorization": "Bearer t"}, b"body")
        assert (answer.status, answer.body, answer.headers["x-longshore-queued-ms"]) == (200, b"hi", "7")
        host = url.split("/")[2].encode()
        assert requests[0] == (
            b"POST /v1/x HTTP/1.1\r\nhost: " + host + b"\r\ncontent-length: 4\r\nauthorization: Bearer t\r\n\r\nbody"
        )
        assert connections() == 1
        await client.close()


async def test_parallel_calls_have_a_connection_each() -> None:
    client = HttpClient(2, 5.0)
    async with server(*[OK] * 8) as (url, _, connections):
        await asyncio.gather(*(client.post(url, {}, b"") for _ in range(8)))
        assert connections() == 8
        await client.close()


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: 1\r\n\r\n",
            b"abcde",
        ),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
)
async def test_bodies(raw: bytes, body: bytes) -> None:
    client = HttpClient(4, 5.0)
    async with server(raw, OK) as (url, _, connections):
        assert (await client.post(url, {}, b"")).body == body
        assert (await client.post(url, {}, b"")).body == b"hi"
        assert connections() == 1
        await client.close()


async def test_a_body_without_length_ends_with_the_connection() -> None:
    async with server(b"HTTP/1.1 500 Oh\r\n\r\nwhy", close=True) as (url, _, _):
        answer = await HttpClient(4, 5.0).post(url, {}, b"")
        assert (answer.status, answer.body) == (500, b"why")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 70_000,
    ],
)
async def test_what_is_no_whole_answer_is_a_broken_connection(raw: bytes) -> None:
    """cloudflare/sandbox-sdk#873: a stream that broke off was taken for a complete one."""
    async with server(raw, close=True) as (url, _, _):
        with pytest.raises(ConnectionBroken):
            await HttpClient(4, 5.0).post(url, {}, b"")


async def test_a_server_that_is_silent_or_absent_is_a_broken_connection() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    with pytest.raises(ConnectionBroken, match=r"within 0\.1 s"):
        await HttpClient(4, 0.1).post(f"http://127.0.0.1:{port}/", {}, b"")
    listener.close()
    await asyncio.sleep(0.01)
    with pytest.raises(ConnectionBroken):
        await HttpClient(4, 1.0).post(f"http://127.0.0.1:{port}/", {}, b"")


async def test_an_idle_connection_that_the_server_cut_is_not_used_again() -> None:
    client = HttpClient(4, 5.0)
    async with server(OK, OK, close=True) as (url, _, connections):
        await client.post(url, {}, b"")
        await asyncio.sleep(0.05)
        assert (await client.post(url, {}, b"")).status == 200
        assert connections() == 2


async def test_a_cancelled_call_does_not_leave_half_an_answer_for_the_next() -> None:
    client = HttpClient(4, 5.0)
    answered = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if not answered.is_set():
            answered.set()
            await asyncio.sleep(0.2)
            writer.write(OK.replace(b"hi", b"no"))
        else:
            writer.write(OK)
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(slow, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
    first = asyncio.create_task(client.post(url, {}, b""))
    await answered.wait()
    first.cancel()
    assert (await client.post(url, {}, b"")).body == b"hi"
    listener.close()


@pytest.mark.parametrize("url", ["ftp://x/", "nonsense", "http:///v1"])
async def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConnectionBroken):
        await HttpClient(4, 1.0).post(url, {}, b"")


async def test_a_header_cannot_smuggle_another() -> None:
    async with server(OK) as (url, requests, _):
        with pytest.raises(ConnectionBroken):
            await HttpClient(4, 1.0).post(url, {"a": "b\r\nx: y"}, b"")
        assert requests == []

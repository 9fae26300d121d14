"""One client can neither hold a connection with half a head nor fill memory with one; others notice nothing."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest
import uvicorn

from gateway.http_protocol import bounded_protocol

HEAD_BYTES_MAX = 2_048
DEADLINE_S = 0.2
REFUSED_431 = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
REFUSED_408 = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


async def size_of_body(scope, receive, send):
    """Answer with the number of body bytes; `/slow` waits three deadlines in the middle of its answer."""
    size_bytes, more = 0, True
    while more:
        message = await receive()
        size_bytes += len(message.get("body", b""))
        more = message.get("more_body", False)
    text = str(size_bytes).encode()
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", str(len(text) + 1).encode())],
        }
    )
    await send({"type": "http.response.body", "body": b"=", "more_body": True})
    if scope["path"] == "/slow":
        await asyncio.sleep(3 * DEADLINE_S)
    await send({"type": "http.response.body", "body": text})


@asynccontextmanager
async def connection():
    config = uvicorn.Config(
        size_of_body,
        http=bounded_protocol(header_bytes_max=HEAD_BYTES_MAX, header_deadline_s=DEADLINE_S),
        lifespan="off", log_config=None, server_header=False, date_header=False,
    )  # fmt: skip
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        try:
            async with asyncio.timeout(10):
                yield reader, writer
        finally:
            writer.close()
            server.should_exit = True
            await serving


async def answer(reader):
    """Return the body of the next answer, whose status must be 200."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return await reader.readexactly(length)


def post(body=b"", path=b"/", padding=b""):
    return b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\npad: %s\r\n\r\n%s" % (
        path, len(body), padding, body,
    )  # fmt: skip


@pytest.mark.parametrize(
    "head", [b"pad: " + b"x" * HEAD_BYTES_MAX, b"p: x\r\n" * HEAD_BYTES_MAX, b"x" * (1 << 20)]
)
async def test_a_head_that_is_too_large_is_refused_before_it_ends(head):
    async with connection() as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\n" + head)
        assert await reader.readexactly(len(REFUSED_431)) == REFUSED_431


async def test_a_large_head_that_comes_byte_by_byte_is_refused_as_well():
    async with connection() as (reader, writer):
        for piece in (b"GET / HTTP/1.1\r\npad: ", *[b"x" * 64] * (HEAD_BYTES_MAX // 64)):
            writer.write(piece)
            await writer.drain()
        assert await reader.read() == REFUSED_431


@pytest.mark.parametrize("cut", [1, 3, 4, 40])
async def test_a_head_within_the_bound_is_served_and_its_body_never_counts(cut):
    async with connection() as (reader, writer):
        writer.write(post())
        assert await answer(reader) == b"=0"
        request = post(b"b" * 300_000, padding=b"x" * (HEAD_BYTES_MAX - 200))
        second_from = request.index(b"\r\n\r\n") + cut
        writer.write(request[:second_from])
        for _ in range(5):  # the server runs on this loop, and reads what is there within two turns
            await asyncio.sleep(0)
        writer.write(request[second_from:])
        assert await answer(reader) == b"=300000"


async def test_half_a_head_is_refused_at_the_deadline():
    async with connection() as (reader, writer):
        began = asyncio.get_running_loop().time()
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-le")
        assert await reader.read() == REFUSED_408
        assert asyncio.get_running_loop().time() - began < 10 * DEADLINE_S


async def test_a_drip_of_bytes_does_not_move_the_deadline():
    async with connection() as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nx: ")

        async def drip():
            while True:
                writer.write(b"y")
                await asyncio.sleep(DEADLINE_S / 10)

        dripping = asyncio.create_task(drip())
        try:
            async with asyncio.timeout(10 * DEADLINE_S):
                assert await reader.readexactly(len(REFUSED_408)) == REFUSED_408
        finally:
            dripping.cancel()


async def test_a_connection_that_says_nothing_is_ended():
    async with connection() as (reader, _):
        assert await reader.read() == REFUSED_408


async def test_a_connection_is_used_again_and_again():
    async with connection() as (reader, writer):
        for size_bytes in (0, 1, 70_000):
            writer.write(post(b"b" * size_bytes))
            assert await answer(reader) == b"=%d" % size_bytes


async def test_half_a_head_on_a_used_connection_is_refused_too():
    async with connection() as (reader, writer):
        writer.write(post(b"b"))
        assert await answer(reader) == b"=1"
        writer.write(b"POST / HT")
        assert await reader.read() == REFUSED_408


async def test_pipelined_requests_are_answered_in_order():
    async with connection() as (reader, writer):
        writer.write(b"".join(post(b"b" * size_bytes) for size_bytes in (3, 0, 5_000, 7)))
        assert [await answer(reader) for _ in range(4)] == [b"=3", b"=0", b"=5000", b"=7"]


@pytest.mark.parametrize("behind", [b"\r\n", b"POST / HT"])
async def test_an_answer_longer_than_the_deadline_is_never_cut_by_what_follows_the_request(behind):
    async with connection() as (reader, writer):
        writer.write(post(b"body", path=b"/slow"))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.write(behind)
        assert await reader.readexactly(2) == b"=4"


async def test_a_large_head_behind_a_running_answer_ends_the_connection_without_a_false_answer():
    async with connection() as (reader, writer):
        writer.write(post(b"body", path=b"/slow"))
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"POST / HTTP/1.1\r\nx: " + b"y" * 2 * HEAD_BYTES_MAX)
        assert await reader.read() == b"="


async def test_what_is_no_http_is_answered_and_ended():
    async with connection() as (reader, writer):
        writer.write(b"\x16\x03\x01 hello\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 Bad Request\r\n")

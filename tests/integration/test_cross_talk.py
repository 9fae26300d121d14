"""No caller ever sees a byte of another caller's answer, whatever a backend sends and when."""

import asyncio
import json

import pytest

from tests.integration.scripted_backend import (
    DONE,
    FINISH,
    STREAM_HEAD,
    answer_plainly,
    completion,
    framed,
    piece,
    response,
    stream_of,
)

STRANGER = b"SOMEBODY-ELSE"
EXTRA = {
    "another answer": response(completion(STRANGER.decode())),
    "another stream": stream_of(piece(STRANGER.decode()), FINISH, DONE),
    "a bare line": STRANGER + b"\r\n",
}


@pytest.fixture(params=[True, False], ids=["trusted", "untrusted"])
def trusted(request):
    return request.param


@pytest.mark.parametrize("extra", EXTRA.values(), ids=EXTRA.keys())
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_bytes_written_with_an_answer_reach_nobody(
    start_gateway, backend, trusted, extra, stream
):
    async def script(exchange):
        await answer_plainly(exchange)
        exchange.send(extra)

    backend.script = script
    gateway = await start_gateway(backend.port, trusted=trusted)
    for _ in range(4):
        answer = await gateway.chat(stream=stream)
        # What isn't HTTP may spoil the answer that it came with, never the next one.
        assert answer.status == 200 or (answer.status == 502 and extra.startswith(STRANGER))
        assert STRANGER not in answer.body
    assert len({each.connection_number for each in backend.exchanges}) == 4


@pytest.mark.parametrize("extra", EXTRA.values(), ids=EXTRA.keys())
async def test_bytes_written_while_a_connection_is_idle_reach_nobody(
    start_gateway, backend, trusted, extra
):
    gateway = await start_gateway(backend.port, trusted=trusted)
    for _ in range(4):
        assert (await gateway.chat()).status == 200
        last = backend.exchanges[-1]
        if not last.closed.is_set():
            last.send(extra)
        # By the time the gateway has answered something else, it has read what lay on its sockets.
        assert (await gateway.get("/healthz")).status == 200
        answer = await gateway.chat()
        assert answer.status == 200
        assert STRANGER not in answer.body


async def test_a_clean_connection_to_a_trusted_replica_is_used_again(start_gateway, backend):
    gateway = await start_gateway(backend.port, trusted=True)
    for stream in (False, True, False):
        assert (await gateway.chat(stream=stream)).status == 200
    assert backend.connection_count == 1


async def test_an_untrusted_replica_never_gets_a_second_request_on_a_connection(
    start_gateway, backend
):
    gateway = await start_gateway(backend.port, trusted=False)
    for stream in (False, True, False):
        assert (await gateway.chat(stream=stream)).status == 200
        await asyncio.wait_for(backend.exchanges[-1].closed.wait(), 5)
    assert backend.connection_count == 3


async def test_the_rest_of_an_abandoned_stream_reaches_nobody(start_gateway, backend, trusted):
    async def script(exchange):
        if exchange.text != "leaves":
            await answer_plainly(exchange)
            return
        exchange.send(STREAM_HEAD, framed(piece("first ")))
        await exchange.closed.wait()
        exchange.send(framed(piece(STRANGER.decode()), FINISH, DONE))

    backend.script = script
    gateway = await start_gateway(backend.port, trusted=trusted)
    for _ in range(5):
        async with gateway.open_chat("leaves", stream=True) as response:
            assert b"first" in await response.content.readany()
            response.close()
        answers = [await gateway.chat(stream=stream) for stream in (False, True)]
        assert [answer.status for answer in answers] == [200, 200]
        assert not any(STRANGER in answer.body for answer in answers)


async def test_parallel_callers_each_get_their_own_answer(start_gateway, backend, trusted):
    async def echo(exchange):
        text = exchange.text
        if exchange.json.get("stream"):
            exchange.send(stream_of(piece(text), FINISH, DONE))
        else:
            exchange.send(response(completion(text)))

    backend.script = echo
    gateway = await start_gateway(backend.port, trusted=trusted)

    async def ask(number):
        answer = await gateway.chat(f"caller {number:03}", stream=number % 2 == 0)
        if number % 2:
            return answer.json["choices"][0]["message"]["content"]
        first = answer.body.split(b"\n\n")[0].removeprefix(b"data: ")
        return json.loads(first)["choices"][0]["delta"]["content"]

    said = await asyncio.gather(*(ask(number) for number in range(60)))
    assert said == [f"caller {number:03}" for number in range(60)]

"""A client's leaving ends the work on its request, and nothing else."""

import asyncio

import pytest

from gateway.disconnect import ClientWatch


class Client:
    """A `receive` that says nothing until `leave`."""

    def __init__(self):
        self._messages = asyncio.Queue()

    async def receive(self):
        return await self._messages.get()

    def leave(self):
        self._messages.put_nowait({"type": "http.disconnect"})

    def send_late_body(self):
        self._messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})


async def turns(count=5):
    """Let every other task that can run do so."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_block_is_cancelled_and_the_cancellation_ends_with_it():
    client, ended = Client(), []
    async with ClientWatch(client.receive) as watch:
        client.leave()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")
    assert watch.has_left
    assert ended == ["cleaned up"]
    assert asyncio.current_task().cancelling() == 0
    await turns()  # nobody else's await is cancelled later


async def test_a_client_that_stays_disturbs_nothing():
    client = Client()
    async with ClientWatch(client.receive) as watch:
        client.send_late_body()
        await turns()
    client.leave()
    await turns()
    assert not watch.has_left
    assert len(asyncio.all_tasks()) == 1


async def test_a_client_that_leaves_at_the_very_end_disturbs_nothing_behind_the_block():
    client = Client()
    async with ClientWatch(client.receive) as watch:
        client.leave()
        with pytest.raises(asyncio.CancelledError):
            await turns()
        # The block ends all the same, as if its cleanup had swallowed the cancellation.
    assert watch.has_left
    assert asyncio.current_task().cancelling() == 0
    await turns()


@pytest.mark.parametrize("leaves", [False, True])
async def test_what_the_block_raises_goes_through_whether_or_not_the_client_left(leaves):
    client = Client()
    watch = ClientWatch(client.receive)

    async def fail():
        async with watch:
            if leaves:
                client.leave()
            try:
                await turns()
            finally:
                raise KeyError

    with pytest.raises(KeyError):
        await fail()
    assert watch.has_left is leaves
    assert asyncio.current_task().cancelling() == 0


async def serve(client, started, ended):
    async with ClientWatch(client.receive) as watch:
        started.set()
        await asyncio.Event().wait()
    ended.append(watch.has_left)


async def test_a_cancellation_from_elsewhere_goes_on():
    client, started, ended = Client(), asyncio.Event(), []
    task = asyncio.create_task(serve(client, started, ended))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == []


async def test_a_cancellation_from_elsewhere_goes_on_although_the_client_left_as_well():
    client, started, ended = Client(), asyncio.Event(), []
    task = asyncio.create_task(serve(client, started, ended))
    await started.wait()
    client.leave()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == []


async def test_a_timeout_around_the_watch_is_still_a_timeout():
    ended = []
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(serve(Client(), asyncio.Event(), ended), 0.01)
    assert ended == []


async def test_a_timeout_inside_the_watch_does_not_swallow_the_client_s_leaving():
    client = Client()
    async with ClientWatch(client.receive) as watch:
        client.leave()
        async with asyncio.timeout(10):
            await asyncio.Event().wait()
        pytest.fail("the block went on after the client had left")
    assert watch.has_left

"""The embedded engine says how it is, is started again when it ends, and ends with the gateway."""

import asyncio
import socket

import pytest

from gateway.engine_process import EngineProcess

pytestmark = pytest.mark.engine


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def engine_on(port, tmp_path):
    # A file where the data directory should be: the engine serves, but never gets a model.
    data_dir = tmp_path / "data"
    data_dir.write_text("")
    return EngineProcess(port=port, data_dir=data_dir, log_path=tmp_path / "logs" / "engine.log")


async def until(holds, running):
    async with asyncio.timeout(60):
        while not holds():
            assert not running.done()
            await asyncio.sleep(0.02)


async def stop(running):
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_an_engine_that_ends_says_so_and_where_its_log_is(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        engine = engine_on(taken.getsockname()[1], tmp_path)
        assert engine.state == "starting"
        running = asyncio.create_task(engine.run())
        await until(lambda: engine.state.startswith("exited"), running)
        assert engine.state == f"exited with code 1; see {tmp_path / 'logs' / 'engine.log'}"
        await stop(running)
    assert len(asyncio.all_tasks()) == 1
    assert (tmp_path / "logs" / "engine.log").read_text()


async def test_a_running_engine_s_own_state_is_reported_and_it_ends_with_us(tmp_path):
    port = free_port()
    engine = engine_on(port, tmp_path)
    running = asyncio.create_task(engine.run())
    await until(lambda: engine.state not in ("starting", "loading"), running)
    assert engine.url == f"http://127.0.0.1:{port}"
    assert not engine.state.startswith("exited")
    await stop(running)
    assert len(asyncio.all_tasks()) == 1
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection("127.0.0.1", port)

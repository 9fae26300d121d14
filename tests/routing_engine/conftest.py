"""One small training for every test that only needs artefacts of a real one."""

from contextlib import contextmanager

import pytest

from tests.routing_engine.labelled_prompts import own_rows, write_rows


@contextmanager
def one_thread():
    """Small tensors on many threads are slower than on one, the more so on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def one_torch_thread():
    """Lets torch compute on one thread during a module's tests."""
    pytest.importorskip("torch")
    with one_thread():
        yield


@pytest.fixture(scope="session")
def own_prompts(tmp_path_factory):
    """A file of labelled prompts about three subjects in two languages."""
    return write_rows(tmp_path_factory.mktemp("prompts") / "own.jsonl", own_rows())


@pytest.fixture(scope="session")
def trained(tmp_path_factory, own_prompts):
    """A directory with the gate and table that were trained on `own_prompts` with seed 0. Read only."""
    pytest.importorskip("torch")
    from routing_engine.training.dataset import read_prompts
    from routing_engine.training.first_stage import train_first_stage

    directory = tmp_path_factory.mktemp("trained")
    with one_thread():
        train_first_stage(read_prompts(own_prompts), directory, seed=0)
    return directory

"""One small training for every test that only needs artefacts of a real one."""

import pytest

from tests.routing_engine.labelled_prompts import own_rows, write_rows


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
    train_first_stage(read_prompts(own_prompts), directory, seed=0)
    return directory

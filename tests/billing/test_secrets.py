"""The pepper file: made once, private, never replaced; a weak one is refused."""

import threading

import pytest

from billing.errors import WeakPepper
from billing.secrets import ensure_pepper, load_pepper


def test_pepper_is_made_once_and_private(tmp_path):
    path = tmp_path / "secrets" / "pepper"
    pepper = ensure_pepper(path)
    assert len(pepper) == 64
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert ensure_pepper(path) == load_pepper(path) == pepper
    assert [item.name for item in path.parent.iterdir()] == ["pepper"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "fewer than 32"), (b"ab" * 31, "fewer than 32"), (b"no hex", "hexadecimal")],
)
def test_weak_pepper_is_refused_and_left_alone(tmp_path, content, reason):
    path = tmp_path / "pepper"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(WeakPepper, match=reason):
        ensure_pepper(path)
    assert path.read_bytes() == content


def test_pepper_that_others_may_read_is_refused(tmp_path):
    path = tmp_path / "pepper"
    ensure_pepper(path)
    path.chmod(0o640)
    with pytest.raises(WeakPepper, match="chmod 600"):
        load_pepper(path)


def test_missing_pepper_is_named(tmp_path):
    with pytest.raises(WeakPepper, match="there is no pepper"):
        load_pepper(tmp_path / "pepper")


def test_two_starters_agree_on_one_pepper(tmp_path):
    found = []
    barrier = threading.Barrier(8)

    def start():
        barrier.wait()
        found.append(ensure_pepper(tmp_path / "pepper"))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(found), len(set(found))) == (8, 1)

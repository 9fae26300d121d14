"""The canonical expert anchor is found at the end of a text and nowhere else."""

import pytest

from routing_engine.engine.anchors import canonical_anchor, split_anchor


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("写快速排序【专家锚定：python-algorithm】", ("写快速排序", "python-algorithm")),
        ("sort \n【专家锚定：c-systems】 \n", ("sort", "c-systems")),
        ("【专家锚定：general】", ("", "general")),
        ("【专家锚定：general】 and more", ("【专家锚定：general】 and more", None)),
        ("a【专家锚定：Not An Id】", ("a【专家锚定：Not An Id】", None)),
        ("a【专家锚定: general】", ("a【专家锚定: general】", None)),
        ("plain ", ("plain ", None)),
        ("", ("", None)),
    ],
)
def test_closing_anchor_is_split_off(text: str, expected: tuple[str, str | None]) -> None:
    assert split_anchor(text) == expected


def test_of_two_anchors_only_the_closing_one_counts() -> None:
    text = canonical_anchor("a") + canonical_anchor("b")
    assert split_anchor(text) == (canonical_anchor("a"), "b")

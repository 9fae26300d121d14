"""The table of traditional characters."""

import pytest

from term_db.chinese_script import TRADITIONAL_TO_SIMPLIFIED


@pytest.mark.parametrize(("traditional", "simplified"), ["處处", "數数", "後后", "勞劳", "鏈链"])
def test_common_characters_are_mapped(traditional, simplified):
    assert TRADITIONAL_TO_SIMPLIFIED[traditional] == simplified


def test_every_entry_maps_one_character_to_another():
    assert len(TRADITIONAL_TO_SIMPLIFIED) > 700
    for traditional, simplified in TRADITIONAL_TO_SIMPLIFIED.items():
        assert len(traditional) == len(simplified) == 1
        assert traditional != simplified


def test_simplified_characters_are_not_mapped_on():
    assert not TRADITIONAL_TO_SIMPLIFIED.keys() & set(TRADITIONAL_TO_SIMPLIFIED.values())

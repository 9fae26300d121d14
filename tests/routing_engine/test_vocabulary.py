"""The experts' vocabulary: read whole or refused by name, and the practice prompts made of it."""

from collections import Counter

import pytest

from routing_engine.errors import TrainingDataError
from routing_engine.training.dataset import TRAIN, packaged_prompts, read_prompts
from routing_engine.training.vocabulary import (
    COPIES,
    ExpertVocabulary,
    Vocabulary,
    packaged_vocabulary,
    read_vocabulary,
)

DOCUMENT = """
frames_en = "what is {}; {};"
frames_zh = '''
什么是{};
{}怎么办
'''

[[experts]]
id = "baking"
domain = "home"
description_en = "Bread; and cakes."
terms_en = "sourdough;  rye\\n loaf ;; yeast"
terms_zh = "酵母; 面粉"
terms_fr = "levain; farine"

[[experts]]
id = "tenancy"
"""


@pytest.fixture
def vocabulary(tmp_path):
    return read_vocabulary(written(tmp_path, DOCUMENT))


def written(tmp_path, content):
    path = tmp_path / "experts.toml"
    path.write_text(content, encoding="utf-8")
    return path


def test_a_vocabulary_is_read_as_written(vocabulary):
    assert vocabulary == Vocabulary(
        experts=(
            ExpertVocabulary(
                "baking",
                "home",
                {"en": "Bread; and cakes."},
                {
                    "en": ("sourdough", "rye loaf", "yeast"),
                    "zh": ("酵母", "面粉"),
                    "fr": ("levain", "farine"),
                },
            ),
            ExpertVocabulary("tenancy", "", {}, {}),
        ),
        frames={"en": ("what is {}", "{}"), "zh": ("什么是{}", "{}怎么办")},
    )
    assert vocabulary.domains == {"baking": "home"}


def test_practice_prompts_use_each_term_equally_often_in_its_own_language(vocabulary):
    prompts = vocabulary.practice_prompts(seed=1)
    assert {(row.label, row.split, row.concept_ids) for row in prompts} == {("baking", TRAIN, ())}
    used = Counter(
        (row.lang, term)
        for row in prompts
        for term in ("sourdough", "rye loaf", "yeast", "酵母", "面粉", "levain", "farine")
        if term in row.text
    )
    assert used == {
        **{("en", term): COPIES for term in ("sourdough", "rye loaf", "yeast")},
        **{("zh", term): COPIES for term in ("酵母", "面粉")},
        **{("fr", term): COPIES for term in ("levain", "farine")},
    }
    assert [row.text for row in prompts if row.text == "Bread; and cakes."] == ["Bread; and cakes."]
    assert not [row.text for row in prompts if "{}" in row.text]


def test_the_same_seed_gives_the_same_practice_prompts(vocabulary):
    assert vocabulary.practice_prompts(5) == vocabulary.practice_prompts(5)
    assert vocabulary.practice_prompts(5) != vocabulary.practice_prompts(6)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("experts =", "can't be read"),
        ("", "has no [[experts]]"),
        ("experts = 3", "has no [[experts]]"),
        ('experts = ["baking"]', "has no [[experts]]"),
        ('[[experts]]\nid = "a"\n[[experts]]\ndomain = "home"', "expert 2 has no 'id'"),
        ('[[experts]]\nid = ""', "expert 1 has no 'id'"),
        ("[[experts]]\nid = 7", "expert 1 has no 'id'"),
        ('[[experts]]\nid = "a"\ndomain = 7', "'domain' of 'a' must be a string"),
        ('[[experts]]\nid = "a"\nterms_en = ["x"]', "'terms_en' of 'a' must be a string"),
        ('[[experts]]\nid = "a"\ndescription_zh = 1', "'description_zh' of 'a' must be a string"),
        ('frames_en = 1\n[[experts]]\nid = "a"', "'frames_en' of the top level must be a string"),
        ('[[experts]]\nid = "a"\n[[experts]]\nid = "a"', "expert 'a' stands there twice"),
    ],
)
def test_a_bad_entry_is_named(tmp_path, content, reason):
    path = written(tmp_path, content)
    with pytest.raises(TrainingDataError) as caught:
        read_vocabulary(path)
    assert caught.value.path == str(path)
    assert caught.value.reason.startswith(reason)


def test_a_missing_file_and_another_encoding_are_refused(tmp_path):
    with pytest.raises(TrainingDataError, match="can't be read"):
        read_vocabulary(tmp_path / "nowhere.toml")
    (tmp_path / "experts.toml").write_bytes(b'x = "\xff"')
    with pytest.raises(TrainingDataError, match="can't be read"):
        read_vocabulary(tmp_path / "experts.toml")


def test_the_packaged_vocabulary_is_about_exactly_the_experts_of_the_packaged_prompts():
    vocabulary = read_vocabulary(packaged_vocabulary())
    labels = {row.label for row in read_prompts(packaged_prompts())}
    assert {each.expert_id for each in vocabulary.experts} == labels == vocabulary.domains.keys()
    for each in vocabulary.experts:
        assert each.terms.keys() == each.descriptions.keys() == {"en", "zh"}, each.expert_id
        assert min(len(terms) for terms in each.terms.values()) >= 30, each.expert_id
    frames = [frame for lang in vocabulary.frames.values() for frame in lang]
    assert [frame for frame in frames if frame.count("{}") != 1] == []

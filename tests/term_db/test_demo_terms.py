"""The demo dictionary that comes with the package."""

from pathlib import Path

import pytest

import term_db
from term_db.interchange import parse_table
from term_db.normalise import normalise
from term_db.snapshot import compile_snapshot
from term_db.types import DictionaryVersion, TermAction
from term_db.variants import find_conflicts

PATH = Path(term_db.__file__).parent / "data" / "demo_terms.tsv"
PARSED = parse_table(PATH.read_text(encoding="utf-8"), source=PATH.name, delimiter="\t")
SNAPSHOT = compile_snapshot(PARSED.concepts, DictionaryVersion(1))
EXPERTS = {
    "general",
    "python-algorithm",
    "c-systems",
    "database-sql",
    "contract-law",
    "labour-law",
    "internal-medicine",
    "nutrition",
    "corporate-accounting",
    "personal-finance",
}


def test_it_is_sound_and_covers_every_expert():
    assert PARSED.problems == ()
    assert find_conflicts(PARSED.concepts) == ()
    assert len(PARSED.concepts) >= 60
    assert {concept.expert_hint for concept in PARSED.concepts} - {None} == EXPERTS
    assert {concept.action for concept in PARSED.concepts} == set(TermAction)


@pytest.mark.parametrize(
    ("prompt", "becomes", "hints"),
    [
        ("Implement qsort", "Implement quicksort", ["python-algorithm"]),
        ("用快排实现", "用快速排序实现", ["python-algorithm"]),
        ("尽快排查这个问题", "尽快排查这个问题", []),
        ("需要约定时间", "需要约定时间", []),
        ("公司需要支付遣散费吗", "公司需要支付经济补偿金吗", ["labour-law"]),
        ("違反勞動合同", "違反勞動合同", ["labour-law"]),
        ("a home loan", "a mortgage", ["personal-finance"]),
        ("智能合约怎么写", "智能合约怎么写", [None]),
        ("血压高怎么办", "高血压怎么办", ["internal-medicine"]),
        ("int *p = malloc(4);", "int *p = malloc(4);", ["c-systems"]),
    ],
)
def test_prompts_become(prompt, becomes, hints):
    result = normalise(SNAPSHOT, prompt)
    assert result.text == becomes
    assert [match.expert_hint for match in result.matches] == hints
    assert normalise(SNAPSHOT, becomes).text == becomes


def test_every_preferred_form_stays_as_it_is():
    for concept in PARSED.concepts:
        for term in concept.terms:
            once = normalise(SNAPSHOT, term.text).text
            assert normalise(SNAPSHOT, once).text == once

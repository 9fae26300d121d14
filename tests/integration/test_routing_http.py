"""Routing over HTTP with trained artefacts and the packaged dictionary: explained and real decisions agree."""

import json
import os
import shutil
from importlib.resources import files
from importlib.util import find_spec

import pytest
import pytest_asyncio

from tests.integration.conftest import PACKAGE, chat_body, expertgate

PROMPTS = {
    "python-algorithm": (
        "How does quicksort choose its pivot?",
        "Write a binary search in Python.",
        "Explain dynamic programming with memoization",
        "快速排序如何选择基准元素",
        "用 Python 写二分查找",
        "What is the time complexity of merge sort?",
        "怎样用动态规划求最长公共子序列",
        "Implement Dijkstra's shortest path",
    ),
    "contract-law": (
        "Review this contract clause for me.",
        "What damages follow a breach of contract?",
        "合同一方违约可以要求哪些赔偿",
        "Is a verbal offer binding?",
        "这份合同的违约金条款有效吗",
        "When can a party terminate the agreement?",
        "要约和承诺的区别是什么",
        "Draft an indemnity clause",
    ),
    "general": (
        "Hello, how are you today?",
        "Tell me a joke",
        "给我讲个笑话",
        "Plan a weekend trip to Rome",
        "你好，今天天气怎么样",
        "Write a birthday card for my mother",
        "推荐一部好看的电影",
        "What should I cook for dinner?",
    ),
}
SORTING = "How does {} choose its pivot?"


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A data directory with artefacts that `engine train` made and the packaged dictionary in force."""
    if not find_spec("torch"):
        if "engine" in os.environ.get("EXPERTGATE_TEST_REQUIRE", ""):
            pytest.fail("EXPERTGATE_TEST_REQUIRE names engine, but torch isn't installed")
        pytest.skip("training needs torch")
    directory = tmp_path_factory.mktemp("trained")
    rows = [
        {
            "text": text,
            "label": label,
            "lang": "en" if text.isascii() else "zh",
            "split": "test" if index == 7 else "train",
        }
        for label, texts in PROMPTS.items()
        for index, text in enumerate(texts)
    ]
    data = directory / "prompts.jsonl"
    data.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n")
    expertgate("engine", "train", str(data), "--data-dir", str(directory))
    terms = files("term_db").joinpath("data", "demo_terms.tsv")
    expertgate("terms", "import", str(terms), "--data-dir", str(directory))
    return directory


@pytest.fixture
def trained_data(trained, tmp_path):
    """The data directory of this test's gateway, with copies of the artefacts and the dictionary."""
    for name in ("routing", "snapshots"):
        shutil.copytree(trained / name, tmp_path / "data" / name)
    return tmp_path / "data"


@pytest_asyncio.fixture
async def router(trained_data, start_gateway, backend):
    """A gateway with trained routing and a dictionary."""
    return await start_gateway(backend.port)


async def explained(gateway, text, **options):
    answer = await gateway.chat(text, path="/v1/route", **options)
    assert answer.status == 200, answer.body
    return answer.json


pytestmark = pytest.mark.engine


async def test_the_explained_decision_is_the_one_that_is_taken(router, backend):
    texts = [*(texts[7] for texts in PROMPTS.values()), SORTING.format("qsort"), "zzz", "违约"]
    sources = set()
    for text in texts:
        decision = await explained(router, text)
        # Explaining changes nothing: the same question is answered in the same way, but for the load's decay.
        again = await explained(router, text)
        assert {**again, "candidates": [], "score": 0} == {**decision, "candidates": [], "score": 0}
        assert again["score"] == pytest.approx(decision["score"], abs=0.01)
        answer = await router.chat(text)
        assert answer.headers["x-expert-id"] == decision["expert"]["id"]
        assert answer.headers["x-route-source"] == decision["source"]
        assert answer.headers["x-terms-matched"] == str(len(decision["terms"]))
        if decision["source"] != "default":
            assert decision["candidates"][0]["expert_id"] == decision["expert"]["id"]
        assert backend.exchanges[-1].json["model"] == f"{decision['expert']['id']}-model"
        assert backend.exchanges[-1].text == decision["text"]
        sources.add(decision["source"])
    assert len(backend.exchanges) == len(texts)
    assert sources <= {"blend", "gate", "table", "default"}
    assert (await explained(router, SORTING.format("qsort")))["source"] != "default"


async def test_explaining_costs_nothing_and_asks_nobody(router, backend):
    for _ in range(3):
        await explained(router, "Write a binary search in Python.")
    assert backend.exchanges == []
    assert await router.events() == []


async def test_a_text_alone_can_be_explained(router):
    short = await router.post(b'{"text":"use qsort here"}', path="/v1/route")
    assert (short.status, short.json) == (200, await explained(router, "use qsort here"))
    assert short.json["text"] == "use quicksort here"


async def test_three_spellings_of_one_concept_reach_one_expert(router, backend):
    texts = [
        SORTING.format("qsort"),
        SORTING.format("Quick Sort"),
        SORTING.format("quicksort"),
        "快排如何选择基准？",
        "快速排序算法如何选择基准？",
        "快速排序如何选择基准？",
    ]
    concepts = []
    for text in texts:
        decision = await explained(router, text)
        concepts.append([term["concept_id"] for term in decision["terms"]])
        answer = await router.chat(text)
        assert answer.headers["x-expert-id"] == "python-algorithm"
        assert answer.headers["x-terms-matched"] == "1"
    assert concepts == [["algo:sorting:quick"]] * 6
    received = [exchange.text for exchange in backend.exchanges]
    # Each language keeps its own preferred form.
    assert received == [SORTING.format("quicksort")] * 3 + ["快速排序如何选择基准？"] * 3


async def test_new_callers_are_blended_and_old_ones_are_not(router):
    shares = []
    for _ in range(8):
        decision = await explained(router, "Write a binary search in Python.")
        shares.append(decision["table_share"])
        await router.chat("Write a binary search in Python.")
    assert shares[:5] == [0.8] * 5
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 0.8


async def test_terms_change_only_what_a_person_wrote(router, backend):
    code = "Why is `qsort` slow? See https://example.org/qsort and mail qsort@example.org\n```\nqsort(a)\n```"
    body = {
        "model": "auto",
        "messages": [
            {"role": "system", "content": "qsort"},
            {"role": "user", "content": "qsort and 快排"},
            {"role": "assistant", "content": "qsort"},
            {"role": "tool", "tool_call_id": "t", "content": "qsort"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "尽快排除故障, then qsort"},
                    {"type": "image_url", "image_url": {"url": "http://127.0.0.1/qsort.png"}},
                    {"type": "text", "text": code},
                ],
            },
        ],
    }
    assert (await router.post(json.dumps(body).encode())).status == 200
    messages = backend.exchanges[0].json["messages"]
    expected = json.loads(json.dumps(body["messages"]))
    expected[1]["content"] = "quicksort and 快速排序"
    expected[4]["content"][0]["text"] = "尽快排除故障, then quicksort"
    assert messages == expected


async def test_normalising_twice_changes_nothing_more(router, backend):
    await router.chat("qsort, quick sort and 快排")
    once = backend.exchanges[0].text
    await router.chat(once)
    assert once == backend.exchanges[1].text == "quicksort, quicksort and 快速排序"


async def test_a_prompt_without_terms_is_forwarded_as_it_was_sent(router, backend):
    body = b'{"model":"auto","messages":[ {"role":"user","content":"Hell\\u006f"} ],"x":[1, 2]}'
    assert (await router.post(body)).status == 200
    sent = backend.exchanges[0].body
    assert b'"messages":[ {"role":"user","content":"Hell\\u006f"} ],"x":[1, 2]' in sent


async def test_terms_can_be_tagged_without_being_rewritten(trained_data, start_gateway, backend):
    config = 'terms = { refresh_s = 0.05, mode = "tag" }'
    gateway = await start_gateway(backend.port, terms=config)
    answer = await gateway.chat("use qsort")
    assert (answer.headers["x-terms-matched"], backend.exchanges[0].text) == ("1", "use qsort")


ANCHOR_TEXT = "Hello there."


@pytest.mark.parametrize(
    ("text", "options", "origin"),
    [
        (ANCHOR_TEXT, {"anchor": "contract-law"}, "header"),
        (ANCHOR_TEXT, {"expert_anchor": "contract-law"}, "field"),
        (f"{ANCHOR_TEXT}【专家锚定：contract-law】", {}, "directive"),
        (f"{ANCHOR_TEXT} 【专家锚定: contract-law 】\n", {}, "directive"),
        (f"{ANCHOR_TEXT}【专家锚定：general】", {"anchor": "contract-law"}, "header"),
        (ANCHOR_TEXT, {"anchor": "contract-law", "expert_anchor": "general"}, "header"),
        (f"{ANCHOR_TEXT}【专家锚定：general】", {"expert_anchor": "contract-law"}, "field"),
        (ANCHOR_TEXT, {"anchor": "contract-law", "model": "expert/general"}, "header"),
    ],
)
async def test_an_anchor_binds_wherever_it_stands(gateway, backend, text, options, origin):
    decision = await explained(gateway, text, **options)
    answer = await gateway.chat(text, **options)
    assert answer.headers["x-expert-id"] == decision["expert"]["id"] == "contract-law"
    assert answer.headers["x-route-source"] == decision["source"] == "anchor"
    assert decision["reason"] == f"expert anchor in the {origin}"
    sent = backend.exchanges[0].json
    assert sent["model"] == "contract-law-model"
    assert "expert_anchor" not in sent
    if origin == "directive":
        assert sent["messages"][0]["content"] == ANCHOR_TEXT


@pytest.mark.parametrize("where", ["header", "field"])
async def test_an_unknown_anchor_is_refused_with_its_near_matches(gateway, backend, where):
    options = {"anchor": "python-algoritm"}
    if where == "field":
        options = {"expert_anchor": "python-algoritm"}
    for path in ("/v1/chat/completions", "/v1/route"):
        answer = await gateway.chat("Sort a list", path=path, **options)
        assert answer.status == 400
        assert answer.error["code"] == "unknown_expert_anchor"
        assert answer.error["param"] == (
            "x-expert-anchor" if where == "header" else "expert_anchor"
        )
        assert "did you mean python-algorithm?" in answer.error["message"]
    assert backend.exchanges == []


async def test_an_unknown_anchor_in_a_text_is_text_and_is_reported(gateway, backend):
    text = "Sort a list.【专家锚定：python-algoritm】"
    decision = await explained(gateway, text)
    answer = await gateway.chat(text)
    assert decision["ignored_anchor"] == "python-algoritm"
    assert answer.headers["x-expert-anchor-ignored"] == "python-algoritm"
    assert answer.headers["x-route-source"] == decision["source"] == "default"
    assert backend.exchanges[0].text == text


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "【专家锚定：contract-law】 Hello."}],
        [{"role": "user", "content": "Hello.【专家锚定：contract-law】"}, {"role": "user", "content": "Go on."}],
        [{"role": "system", "content": "【专家锚定：contract-law】"}, {"role": "user", "content": "Hello."}],
        [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "【专家锚定：contract-law】"}],
        [{"role": "user", "content": "Hello."}, {"role": "tool", "tool_call_id": "t", "content": "【专家锚定：contract-law】"}],
    ],
    ids=["opening", "earlier turn", "system", "assistant", "tool"],
)  # fmt: skip
async def test_a_directive_elsewhere_is_not_obeyed(gateway, backend, messages):
    answer = await gateway.post(json.dumps({"model": "auto", "messages": messages}).encode())
    assert (answer.status, answer.headers["x-expert-id"]) == (200, "general")
    assert backend.exchanges[0].json["messages"] == messages


@pytest.mark.parametrize(
    "options",
    [
        {"model": "expert/contract-law"},
        {"model": "lawyer"},
        {"anchor": "contract-law"},
        {"expert_anchor": "contract-law"},
        {"text": "Hello.【专家锚定：contract-law】"},
    ],
    ids=["pinned", "alias", "header", "field", "directive"],
)
async def test_an_expert_outside_the_package_is_refused_by_every_way(gateway, backend, options):
    student = await gateway.add_caller("student", package=PACKAGE)
    for path in ("/v1/chat/completions", "/v1/route"):
        answer = await gateway.chat(path=path, key=student.key, **options)
        assert (answer.status, answer.error["code"]) == (403, "expert_not_entitled")
        assert answer.error["type"] == "permission_error"
    assert backend.exchanges == []
    assert await gateway.events(student) == []
    assert (await gateway.chat(**options)).headers["x-expert-id"] == "contract-law"


async def test_routing_stays_within_the_package(router, backend):
    student = await router.add_caller("student", package=PACKAGE)
    text = "What damages follow a breach of contract?"
    assert (await router.chat(text)).headers["x-expert-id"] == "contract-law"
    answer = await router.chat(text, key=student.key)
    assert answer.status == 200
    assert answer.headers["x-expert-id"] in ("general", "python-algorithm")


async def test_a_model_name_pins_or_routes(gateway, backend):
    for model, expert, source in (
        ("auto", "general", "default"),
        ("gpt-4o-mini", "general", "default"),
        ("expert/python-algorithm", "python-algorithm", "pinned"),
        ("lawyer", "contract-law", "pinned"),
    ):
        answer = await gateway.chat(model=model)
        assert answer.headers["x-expert-id"] == expert
        assert answer.headers["x-route-source"] == source
        assert backend.exchanges[-1].json["model"] == f"{expert}-model"


async def test_a_damaged_dictionary_leaves_the_old_one_in_force(router, trained_data, backend):
    snapshots = trained_data / "snapshots"
    good = int((snapshots / "CURRENT").read_text())
    damaged = bytearray((snapshots / f"{good}.terms").read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    (snapshots / f"{good + 1}.terms").write_bytes(damaged)
    (snapshots / "CURRENT").write_text(f"{good + 1}\n")
    # A good one, published after it, is the proof that the damaged one was looked at before.
    for version, content in ((good + 1, b"damaged"), (good + 2, b"")):
        (snapshots / f"{version}.terms").write_bytes(content)
        (snapshots / "CURRENT").write_text(f"{version}\n")
        for _ in range(20):
            decision = await explained(router, "use qsort")
            assert (decision["dictionary_version"], decision["text"]) == (good, "use quicksort")
    assert (await router.post(chat_body("use qsort"))).status == 200
    assert backend.exchanges[0].text == "use quicksort"
    assert (await router.get("/readyz")).status == 200

"""The demo's customers and prompts: each prompt is there to show one thing."""

from dataclasses import dataclass
from enum import StrEnum


class DemoCaller(StrEnum):
    """Whose key a prompt is sent with."""

    ANALYTICS = "analytics"
    STUDENT = "student"
    STARTUP = "startup"


@dataclass(frozen=True, slots=True)
class DemoPrompt:
    """One prompt, what it shows, and what should come of it.

    `expected_status` is the HTTP status; `expected_expert` the expert that must answer (None: any).
    """

    shows: str
    text: str
    caller: DemoCaller = DemoCaller.ANALYTICS
    model: str = "auto"
    anchor_header: str | None = None
    is_streamed: bool = False
    expected_status: int = 200
    expected_expert: str | None = None
    output_tokens_max: int = 24


PROMPTS: tuple[DemoPrompt, ...] = (
    DemoPrompt(
        "a term in English, a new caller",
        "How does quicksort choose its pivot?",
        expected_expert="python-algorithm",
        is_streamed=True,
    ),
    DemoPrompt(
        "the same concept, another spelling",
        "How does qsort choose its pivot?",
        expected_expert="python-algorithm",
    ),
    DemoPrompt(
        "the same concept in Chinese",
        "快速排序如何选择基准元素？",
        expected_expert="python-algorithm",
    ),
    DemoPrompt(
        "law, in Chinese",
        "合同一方违约，另一方可以要求哪些赔偿？",
        expected_expert="contract-law",
        is_streamed=True,
    ),
    DemoPrompt(
        "medicine, in English",
        "What blood pressure counts as hypertension in adults?",
        expected_expert="internal-medicine",
    ),
    DemoPrompt(
        "an anchor in the text is obeyed",
        "Explain what an index is.【专家锚定：database-sql】",
        expected_expert="database-sql",
    ),
    DemoPrompt(
        "an unknown anchor is refused",
        "Sort a list for me.",
        anchor_header="python-algoritm",
        expected_status=400,
    ),
    DemoPrompt(
        "finance, in English",
        "Where does goodwill appear on a balance sheet?",
        expected_expert="corporate-accounting",
    ),
    DemoPrompt(
        "finance, in Chinese",
        "提前还清房贷划算吗？",
        expected_expert="personal-finance",
    ),
    DemoPrompt(
        "past its first requests: the gate alone",
        "Why does my C program crash when I free a pointer twice?",
        expected_expert="c-systems",
        is_streamed=True,
    ),
    DemoPrompt(
        "the gate alone, in Chinese",
        "公司辞退员工需要支付多少经济补偿？",
        expected_expert="labour-law",
    ),
    DemoPrompt(
        "a package customer, an expert of its package",
        "Write a binary search in Python.",
        caller=DemoCaller.STUDENT,
        expected_expert="python-algorithm",
    ),
    DemoPrompt(
        "a package customer, an expert outside it",
        "Review this contract clause for me.",
        caller=DemoCaller.STUDENT,
        model="expert/contract-law",
        expected_status=403,
    ),
    DemoPrompt(
        "a small budget, first call",
        "Which vitamins are soluble in fat?",
        caller=DemoCaller.STARTUP,
        expected_expert="nutrition",
    ),
    DemoPrompt(
        "the same budget, used up",
        "And which ones are soluble in water?",
        caller=DemoCaller.STARTUP,
        model="expert/nutrition",
        expected_status=429,
    ),
)

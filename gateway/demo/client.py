"""Sends one demo prompt through the gateway's HTTP interface and keeps what came back."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2
import msgspec

from gateway.demo.prompts import DemoPrompt


@dataclass(slots=True)
class Sent:
    """What became of one prompt; `surprise` says what wasn't as the demo expects."""

    prompt: DemoPrompt
    status: int
    request_id: str
    event_id: str = ""
    expert: str = ""
    source: str = ""
    reason: str = ""
    answer: str = ""
    error: str = ""
    concepts: list[str] = field(default_factory=list)

    @property
    def surprise(self) -> str:
        """What differs from the expectation; empty when nothing does."""
        prompt = self.prompt
        if self.status != prompt.expected_status:
            return f"status {self.status} instead of {prompt.expected_status} {self.error}"
        if prompt.expected_expert is not None and self.expert != prompt.expected_expert:
            return f"went to {self.expert}, not to {prompt.expected_expert}"
        return ""


def send(
    client: httpx2.Client, prompt: DemoPrompt, key: str, *, show: Callable[[str], None]
) -> Sent:
    """Send `prompt` and return what came back; `show` gets the pieces of a streamed answer."""
    headers = {"authorization": f"Bearer {key}"}
    if prompt.anchor_header is not None:
        headers["x-expert-anchor"] = prompt.anchor_header
    body = {
        "model": prompt.model,
        "messages": [{"role": "user", "content": prompt.text}],
        "max_tokens": prompt.output_tokens_max,
        "temperature": 0,
        "stream": prompt.is_streamed,
    }
    concepts = _concepts(client, headers, body)
    with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
        sent = Sent(
            prompt=prompt,
            status=response.status_code,
            request_id=response.headers.get("x-request-id", ""),
            event_id=response.headers.get("x-usage-event-id", ""),
            expert=response.headers.get("x-expert-id", ""),
            source=response.headers.get("x-route-source", ""),
            reason=response.headers.get("x-route-reason", ""),
            concepts=concepts,
        )
        if response.status_code != 200:
            response.read()
            sent.error = response.json()["error"]["message"]
        elif prompt.is_streamed:
            sent.answer = _read_stream(response, show)
        else:
            response.read()
            sent.answer = response.json()["choices"][0]["message"]["content"]
    return sent


def _concepts(client: httpx2.Client, headers: dict[str, str], body: dict[str, Any]) -> list[str]:
    """Return the concepts that the dictionary finds in the prompt, as `/v1/route` explains it."""
    unbound = {name: value for name, value in headers.items() if name != "x-expert-anchor"}
    answer = client.post("/v1/route", json={**body, "model": "auto"}, headers=unbound)
    answer.raise_for_status()
    return list(dict.fromkeys(term["concept_id"] for term in answer.json()["terms"]))


def _read_stream(response: httpx2.Response, show: Callable[[str], None]) -> str:
    pieces = []
    for line in response.iter_lines():
        data = line.removeprefix("data: ")
        if data == line or data == "[DONE]":
            continue
        chunk = msgspec.json.decode(data)
        if "error" in chunk:
            raise ConnectionError(chunk["error"]["message"])
        for choice in chunk["choices"]:
            piece = choice["delta"].get("content") or ""
            pieces.append(piece)
            show(piece)
    return "".join(pieces)

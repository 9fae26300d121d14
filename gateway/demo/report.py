"""What the demo prints and leaves behind: the table of prompts, the invoice, `summary.json`, snippets."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from billing.documents.pdf import has_chinese_font
from billing.money import decimal_text
from billing.types import LineKind, RatedUsage
from gateway.demo.accounts import POINT_PRICE_MICROS
from gateway.demo.books import Closing
from gateway.demo.client import Sent

_POINT = 1_000_000


def show_result(console: Console, sent: Sent) -> None:
    """Print one line under a prompt: where it went and why, or how it was refused."""
    if sent.prompt.is_streamed and sent.answer:
        console.print()
    if sent.error:
        console.print(f"   [yellow]refused {sent.status}[/]: {escape(sent.error)}", highlight=False)
    else:
        console.print(
            f"   → [green]{sent.expert}[/]  [dim]{sent.source}: {sent.reason}[/]", highlight=False
        )


def show_prompts(console: Console, sent: Sequence[Sent], usage: Mapping[str, RatedUsage]) -> None:
    """Print the table: prompt, terms found, expert and why, tokens, base points, cost."""
    table = Table(title="What was asked, who answered, what it cost", show_lines=True)
    table.add_column("prompt, terms found", ratio=5, overflow="fold")
    table.add_column("expert and why", ratio=4, overflow="fold")
    for name in ("tokens", "points", "EUR"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in sent:
        rated = usage.get(each.event_id)
        terms = f"\n[dim]{', '.join(each.concepts)}[/]" if each.concepts else ""
        if each.error:
            verdict = f"[yellow]refused, {each.status}[/]\n[dim]{each.prompt.shows}[/]"
        else:
            verdict = f"[green]{each.expert}[/]\n[dim]{each.source}: {each.reason}[/]"
        table.add_row(
            f"{escape(each.prompt.text)}{terms}",
            verdict,
            _tokens(rated),
            "" if rated is None else _points(rated.micropoints),
            "" if rated is None else _cost(rated.micropoints),
        )
    console.print(table)


def show_closing(console: Console, closing: Closing) -> None:
    """Print the invoice's lines, where its documents are, and the result of the check."""
    invoice = closing.invoice
    table = Table(title=f"Invoice {invoice.number} for {invoice.customer_name}")
    table.add_column("line", overflow="fold", min_width=30)
    table.add_column("base points", justify="right")
    table.add_column("amount", justify="right")
    for line in invoice.lines:
        points = _points(line.micropoints) if line.micropoints else ""
        name = line.description
        if line.kind is LineKind.SLA_SURCHARGE:
            name = f"service level {name}, surcharge"
        table.add_row(name, points, f"{decimal_text(line.amount)} {line.amount.currency}")
    table.add_section()
    table.add_row(
        "[bold]total", "", f"[bold]{decimal_text(invoice.total)} {invoice.total.currency}"
    )
    console.print(table)
    console.print(f"PDF   {closing.pdf_path}", soft_wrap=True, highlight=False)
    console.print(f"JSON  {closing.json_path}", soft_wrap=True, highlight=False)
    if not has_chinese_font():
        console.print(
            "[yellow]this machine has no Chinese font[/]: Chinese names on the PDF are illegible until one is"
            " installed, for example Debian's fonts-noto-cjk"
        )
    checked = closing.reconciliation
    if checked.ok:
        console.print(
            "[green]reconciled[/]: the invoice equals the sum of its usage events, difference 0"
        )
    else:
        console.print(f"[red]not reconciled[/]: {'; '.join(map(str, checked.findings))}")


def show_snippets(console: Console, url: str, key: str) -> None:
    """Print how to send a request oneself."""
    console.print("\n[bold]Try it[/]")
    console.print(
        f"""curl {url}/v1/chat/completions \\
  -H 'Authorization: Bearer {key}' \\
  -H 'Content-Type: application/json' \\
  -d '{{"model": "auto", "max_tokens": 40, "messages": [{{"role": "user", "content": "快排的最坏情况是什么？"}}]}}'

# pip install openai
from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="{key}")
answer = client.chat.completions.create(
    model="auto", max_tokens=40,
    messages=[{{"role": "user", "content": "What is the worst case of qsort?"}}],
)
print(answer.choices[0].message.content)
""",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )


def write_summary(
    path: Path, sent: Sequence[Sent], usage: Mapping[str, RatedUsage], closing: Closing
) -> None:
    """Write `summary.json`: prompts, invoice, and whether they agree."""
    invoice = closing.invoice
    checked = closing.reconciliation
    summary = {
        "prompts": [_summary_of(each, usage.get(each.event_id)) for each in sent],
        "invoice": {
            "number": invoice.number,
            "customer": invoice.customer_id,
            "total": {
                "minor_units": invoice.total.minor_units,
                "currency": invoice.total.currency,
                "text": decimal_text(invoice.total),
            },
            "lines": [
                {
                    "kind": line.kind.value,
                    "description": line.description,
                    "expert": line.expert_id,
                    "calls": line.calls,
                    "micropoints": line.micropoints,
                    "covered_micropoints": line.covered_micropoints,
                    "minor_units": line.amount.minor_units,
                }
                for line in invoice.lines
            ],
            "pdf": str(closing.pdf_path),
            "json": str(closing.json_path),
        },
        "reconciled": checked.ok,
        "difference": {
            "micropoints": checked.difference_micropoints,
            "minor_units": checked.difference_minor_units,
        },
    }
    path.write_text(json.dumps(summary, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _summary_of(sent: Sent, rated: RatedUsage | None) -> dict[str, Any]:
    usage = None if rated is None else rated.event.outcome.usage
    return {
        "request_id": sent.request_id,
        "event_id": sent.event_id or None,
        "prompt": sent.prompt.text,
        "shows": sent.prompt.shows,
        "customer": sent.prompt.caller.value,
        "streamed": sent.prompt.is_streamed,
        "status": sent.status,
        "concepts": sent.concepts,
        "expert": sent.expert or None,
        "route_source": sent.source or None,
        "reason": sent.reason or sent.error,
        "tokens": {
            "input": 0 if usage is None else usage.input_tokens,
            "output": 0 if usage is None else usage.output_tokens,
        },
        "micropoints": 0 if rated is None else rated.micropoints,
        "answer": sent.answer,
    }


def _tokens(rated: RatedUsage | None) -> str:
    if rated is None:
        return ""
    usage = rated.event.outcome.usage
    return f"{usage.input_tokens}/{usage.output_tokens}"


def _points(micropoints: int) -> str:
    return f"{micropoints // _POINT}.{micropoints % _POINT:06d}".rstrip("0").rstrip(".")


def _cost(micropoints: int) -> str:
    """Return the money of one request, cut to a hundredth of a cent: invoices round once per line, not here."""
    micros = micropoints * POINT_PRICE_MICROS // _POINT
    return f"{micros // 1_000_000}.{micros % 1_000_000 // 100:04d}"

"""The billing commands end to end on real books: from an empty folder to an exported invoice."""

import csv
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
import typer
from typer.testing import CliRunner

from billing.catalog import apply_catalog
from billing.cli import APPS, reconcile
from billing.errors import (
    BillingError,
    NothingToInvoice,
    PeriodNotOver,
    StoreUnavailable,
    UnknownRecord,
)
from billing.store.accounts import SqlAccountsStore
from billing.store.engine import open_database
from billing.store.ledger import SqlLedgerStore
from tests.billing.books import BEFORE, a_catalog, an_event

NOW = datetime.now(UTC)
MONTH = f"{NOW:%Y-%m}"


@pytest.fixture
def app():
    found = typer.Typer()
    for one in APPS:
        found.add_typer(one)
    found.command("reconcile")(reconcile)
    return found


@pytest.fixture
def run(app, tmp_path):
    """Run a command on the books of a temporary folder; returns exit code and standard output."""

    def act(*words, as_json=True):
        end = ["--data-dir", str(tmp_path)] + (["--json"] if as_json else [])
        result = CliRunner().invoke(app, [*words, *end], env={"COLUMNS": "200"})
        if isinstance(result.exception, BillingError):
            raise result.exception
        if not as_json:
            return result.exit_code, result.output
        return result.exit_code, json.loads(result.stdout) if result.stdout else None

    return act


@pytest.fixture
def books(run, tmp_path):
    run("db", "upgrade")
    with open_database(f"sqlite:///{tmp_path}/books.sqlite") as database:
        apply_catalog(SqlAccountsStore(database), a_catalog(), BEFORE)
        run("customers", "create", "acme", "--name", "Acme 有限公司", "--sla-tier", "gold")
        yield SqlLedgerStore(database)


def test_fresh_folder_is_refused_until_upgraded(run):
    # A reading command names the place and makes no empty books there.
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"no books at .*books\.sqlite.*db upgrade"):
            run("customers", "list")
    assert run("db", "check")[0] == 1
    assert run("db", "upgrade") == (0, {"revision": "0001"})
    assert run("db", "check") == (0, {"ok": True, "differences": []})
    assert run("customers", "list") == (0, [])


def test_customer_is_created_shown_and_changed(books, run):
    assert run("customers", "set-budget", "acme", "12.5")[1]["budget_micropoints"] == 12_500_000
    assert run("customers", "set-budget", "acme", "none")[1]["budget_micropoints"] is None
    changed = run("customers", "set-terms", "acme", "--point-price", "0.03")[1]
    assert changed["point_price_micros"] == 30_000
    assert run("customers", "show", "acme")[1] == changed
    code, text = run("customers", "list", as_json=False)
    assert (code, "Acme 有限公司" in text) == (0, True)


def test_key_is_printed_once_and_revoked(books, run, tmp_path):
    _, created = run("keys", "create", "--customer", "acme", "--name", "ci")
    assert created["key"].startswith("eg_")
    _, (listed,) = run("keys", "list")
    assert listed == {name: value for name, value in created.items() if name != "key"}
    assert created["key"] not in (tmp_path / "books.sqlite").read_bytes().decode("latin-1")
    assert (tmp_path / "secrets" / "pepper").stat().st_mode & 0o777 == 0o600
    assert run("keys", "revoke", created["key_id"])[1]["revoked_at"] is not None
    assert run("keys", "list", "--customer", "nobody")[1] == []


def test_subscription_starts_and_is_cancelled(books, run):
    _, started = run(
        "subscriptions", "start", "--customer", "acme", "--package", "dev", "--at", "2026-01-01"
    )
    assert started["started_at"] == "2026-01-01 00:00:00+00:00"
    _, ended = run("subscriptions", "cancel", started["subscription_id"], "--at", "2026-02-01")
    assert run("subscriptions", "list", "--customer", "acme")[1] == [ended]


def test_month_is_closed_early_exported_and_voided(books, run, tmp_path):
    books.record_events(
        [an_event(NOW - timedelta(seconds=2), tokens=(50_000, 0))], journal_id="j", position=1
    )
    start = NOW.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    if NOW - timedelta(seconds=3) < start:
        pytest.skip("the month began this very second")
    _, (draft,) = run("invoices", "preview", "--period", MONTH, "--customer", "acme")
    with pytest.raises(PeriodNotOver):
        run("invoices", "finalise", "--period", MONTH)
    _, (invoice,) = run("invoices", "finalise", "--period", MONTH, "--cutoff", "now")
    assert invoice["lines"] == draft["lines"]
    assert (invoice["total"]["decimal"], invoice["status"]) == ("1.15", "finalised")
    number = invoice["number"]
    assert run("invoices", "show", number)[1] == invoice
    assert [item["number"] for item in run("invoices", "list")[1]] == [number]
    code, text = run("invoices", "show", number, as_json=False)
    assert (code, "1.15 EUR" in text) == (0, True)

    _, written = run("invoices", "export", number, "--format", "json")
    content = (tmp_path / "invoices" / f"{number}.json").read_bytes()
    assert (written["size_bytes"], json.loads(content)) == (len(content), invoice)
    path = tmp_path / "a.pdf"
    run("invoices", "export", number, "-o", str(path))
    first = path.read_bytes()
    run("invoices", "export", number, "-o", str(path))
    assert first.startswith(b"%PDF-")
    assert path.read_bytes() == first

    assert run("reconcile")[1]["ok"] is True
    assert run("invoices", "void", number)[1][0]["status"] == "void"
    code, result = run("reconcile")
    assert (code, result["events"], result["invoices"], result["findings"]) == (0, 1, 1, [])


def test_nothing_to_invoice_is_an_error_for_one_customer_only(books, run):
    assert run("invoices", "finalise", "--period", "2026-01") == (0, [])
    with pytest.raises(NothingToInvoice):
        run("invoices", "finalise", "--period", "2026-01", "--customer", "acme")


def test_usage_is_listed_and_exported(books, run, tmp_path):
    events = [an_event(f"2026-03-0{day}", event_id=f"e{day}") for day in range(1, 5)]
    books.record_events(events, journal_id="j", position=1)
    listed = run("usage", "list", "--since", "2026-03-02", "--until", "2026-03-04")[1]
    assert [item["event_id"] for item in listed] == ["e2", "e3"]
    assert len(run("usage", "list", "--limit", "1")[1]) == 1
    path = tmp_path / "usage.csv"
    code, _ = run("usage", "export", "-o", str(path), "--customer", "acme", as_json=False)
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert (code, [row["event_id"] for row in rows]) == (0, ["e1", "e2", "e3", "e4"])
    assert (rows[0]["micropoints"], rows[0]["occurred_at"]) == (
        "1000000",
        "2026-03-01T00:00:00+00:00",
    )
    code, text = run("usage", "export", "--format", "jsonl", as_json=False)
    assert (code, len(text.splitlines())) == (0, 4)


def test_reconcile_fails_on_quarantined_usage_and_can_retry(books, run):
    books.record_events([an_event("2026-03-01", customer="late")], journal_id="j", position=1)
    code, result = run("reconcile")
    assert (code, result["ok"]) == (1, False)
    run("customers", "create", "late", "--name", "Late")
    code, result = run("reconcile", "--retry-quarantined")
    assert (code, result["ok"], len(result["booked_from_quarantine"])) == (0, True, 1)


@pytest.mark.parametrize(
    "words",
    [
        ("usage", "list", "--since", "yesterday"),
        ("invoices", "finalise"),
        ("invoices", "export", "EG-1", "--format", "docx"),
        ("customers", "create"),
    ],
)
def test_bad_usage_exits_with_two(books, run, words):
    assert run(*words, as_json=False)[0] == 2


def test_unknown_ids_are_package_errors(books, run):
    with pytest.raises(UnknownRecord, match="EG-2026-000009"):
        run("invoices", "show", "EG-2026-000009")
    with pytest.raises(UnknownRecord, match="'nobody'"):
        run("customers", "show", "nobody")


def test_names_with_markup_are_printed_as_they_are(books, run):
    run("customers", "create", "evil", "--name", "[red]x[/red] \\[b]")
    assert "[red]x[/red]" in run("customers", "list", as_json=False)[1]


def test_importing_the_commands_loads_nothing_heavy():
    code = (
        "import sys, billing.cli;"
        "print([name for name in ('sqlalchemy', 'typst', 'alembic', 'pydantic') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"

"""The demo's view of the books: waits for usage to arrive, closes the month early, checks the invoice."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from billing.closing import finalise
from billing.documents.json_document import invoice_json
from billing.documents.pdf import invoice_pdf
from billing.errors import StoreUnavailable
from billing.periods import month_of
from billing.reconcile import Reconciliation, reconcile
from billing.secrets import ensure_pepper
from billing.store.accounts import SqlAccountsStore
from billing.store.checks import read_book_sums
from billing.store.engine import Database
from billing.store.invoices import SqlBooksStore
from billing.store.ledger import SqlLedgerStore
from billing.types import CustomerId, Invoice, RatedUsage
from gateway.app import open_books
from gateway.settings import load_settings

SHIPPED_TIMEOUT_S = 30.0
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Closing:
    """A finalised invoice, where its documents are, and whether it equals the usage it bills."""

    invoice: Invoice
    json_path: Path
    pdf_path: Path
    reconciliation: Reconciliation


@dataclass(frozen=True, slots=True)
class DemoBooks:
    """The books of the demo's data directory."""

    database: Database
    data_dir: Path
    pepper: bytes

    @property
    def accounts(self) -> SqlAccountsStore:
        """Customers, keys and catalog."""
        return SqlAccountsStore(self.database)

    def wait_for_usage(self, event_ids: Sequence[str]) -> Mapping[str, RatedUsage]:
        """Return the usage of these events by id, once all of it has been shipped to the books.

        Raises:
            StoreUnavailable: it didn't arrive in time.
        """
        wanted = set(event_ids)
        deadline = time.monotonic() + SHIPPED_TIMEOUT_S
        while True:
            found: dict[str, RatedUsage] = {
                rated.event.intent.event_id: rated
                for rated in SqlLedgerStore(self.database).usage()
                if rated.event.intent.event_id in wanted
            }
            if len(found) == len(wanted):
                return found
            if time.monotonic() > deadline:
                raise StoreUnavailable(f"{len(wanted) - len(found)} usage events did not arrive")
            time.sleep(POLL_S)

    def close(self, customer_id: CustomerId) -> Closing:
        """Close the customer's month up to now, write the invoice, and check it against its usage."""
        now = datetime.now(UTC)
        store = SqlBooksStore(self.database)
        invoice = finalise(store, customer_id, month_of(now, "UTC").label, now, cutoff=now)
        directory = self.data_dir / "invoices"
        directory.mkdir(parents=True, exist_ok=True)
        json_path = directory / f"{invoice.number}.json"
        pdf_path = directory / f"{invoice.number}.pdf"
        json_path.write_bytes(invoice_json(invoice))
        pdf_path.write_bytes(invoice_pdf(invoice))
        checked = reconcile(read_book_sums(self.database))
        return Closing(invoice, json_path, pdf_path, checked)


@contextmanager
def open_demo(data_dir: Path, config: Path) -> Iterator[DemoBooks]:
    """Yield the demo's books with the catalog of `config` in force."""
    settings = load_settings(config)
    catalog = settings.catalog_document.to_catalog(os.environ)
    with open_books(settings, catalog) as database:
        yield DemoBooks(database, data_dir, ensure_pepper(data_dir / "secrets" / "pepper"))

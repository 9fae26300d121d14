"""Assembly of one gateway worker: opens everything, wires it, closes it in reverse. The only place that does.

`open_gateway` is an async context manager, so that the server and the tests build the same thing.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as HttpRoute

from billing.catalog import Catalog, apply_catalog
from billing.faults import arm_from_environment
from billing.holds import HoldBook
from billing.ids import EventIdMint
from billing.meter import Meter
from billing.ports import LedgerStore
from billing.secrets import ensure_pepper
from billing.settings import BillingSettings
from billing.shipper import Shipper
from billing.store.accounts import SqlAccountsStore
from billing.store.engine import Database, open_database, require_current
from billing.store.ledger import SqlLedgerStore
from gateway.accounts import Accounts, AccountsWatcher
from gateway.admission import Admitter, CallerHistory, Experts
from gateway.backends.aiohttp_backend import AiohttpBackend, BackendTimeouts
from gateway.context import BodyLimits
from gateway.endpoints.chat import ChatCompletions
from gateway.endpoints.models import Models
from gateway.endpoints.operations import Operations, Readiness
from gateway.endpoints.route import Route
from gateway.engine_process import EngineProcess
from gateway.limits import load_spent, set_limits
from gateway.load import LoadWindow
from gateway.middleware.anchor import BindAnchor
from gateway.middleware.authenticate import Authenticate
from gateway.middleware.normalise import Normalise, NormaliseTerms
from gateway.middleware.problems import ProblemResponses
from gateway.problems import METHOD_NOT_ALLOWED, NOT_FOUND, body_of
from gateway.proxy import ChatProxy
from gateway.settings import GatewaySettings
from gateway.telemetry import Telemetry
from routing_engine.client import EngineClient, Router, near_matches
from term_db.dictionary import Dictionary
from term_db.errors import TermDbError
from term_db.normalise import normalise
from term_db.types import NormalisedText, TermAction

log = logging.getLogger("expertgate.gateway")

PUBLIC_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
CHAT_PATHS = frozenset({"/v1/chat/completions", "/v1/route"})
BACKLOG_MAX = 100_000
"""Journal records that the books may lag behind before readiness says so."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running worker: its ASGI application, and what operators and the demo need beside it."""

    app: Starlette
    database: Database
    shipper: Shipper
    meter: Meter
    engine: EngineProcess | None


def utc_now() -> datetime:
    """Return the current instant."""
    return datetime.now(UTC)


def open_books(settings: GatewaySettings, catalog: Catalog) -> Database:
    """Open the books, bring an SQLite file up to date, and put the file's catalog in force.

    Raises:
        SchemaOutdated: a PostgreSQL store is at another revision; `expertgate db upgrade` mends it.
        InvalidCatalog: the catalog would rewrite prices, or drop what a customer uses.
    """
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    url = settings.store_url
    if url.startswith("sqlite"):
        from billing.store.migration import upgrade

        upgrade(url)
    with ExitStack() as undo:
        database = undo.enter_context(open_database(url))
        require_current(database)
        changes = apply_catalog(SqlAccountsStore(database), catalog, utc_now(), actor="serve")
        if changes:
            log.info("catalog_applied", extra={"change_count": len(changes)})
        undo.pop_all()
    return database


@asynccontextmanager
async def open_gateway(
    settings: GatewaySettings,
    *,
    clock: Callable[[], datetime] = utc_now,
    billing: BillingSettings | None = None,
) -> AsyncIterator[Gateway]:
    """Yield a worker that serves; on leaving, running outcomes are made durable and shipped.

    Raises:
        JournalLocked: another gateway uses the data directory.
        SchemaOutdated: the books need `expertgate db upgrade`.
        CorruptSnapshot: the dictionary in force can't be loaded.
        ArtefactError: a routing artefact can't be used.
    """
    billing = billing or BillingSettings()
    arm_from_environment()
    catalog = settings.catalog_document.to_catalog(os.environ)
    async with AsyncExitStack() as stack:
        database = stack.enter_context(await asyncio.to_thread(open_books, settings, catalog))
        accounts, ledger = SqlAccountsStore(database), SqlLedgerStore(database)
        pepper = ensure_pepper(settings.data_dir / "secrets" / "pepper")
        meter, shipper = _open_metering(settings.data_dir, ledger, billing, stack)
        if not await asyncio.to_thread(shipper.drain, billing.drain_timeout_s):
            log.warning("books_lag_behind", extra={"backlog": shipper.backlog_records})
        holds = HoldBook()
        watcher = AccountsWatcher(
            accounts,
            refresh_s=settings.accounts.refresh_s,
            clock=clock,
            on_change=lambda accounts: set_limits(holds, accounts),
        )
        load_spent(holds, watcher.current, ledger.spent_since, clock())
        # What can be refused is read before the task group, which would wrap the refusal in a group of its own.
        dictionary = Dictionary(settings.data_dir / "snapshots")
        router = Router.load(settings.data_dir / "routing", catalog.experts, catalog.default_expert)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        tasks_running: list[asyncio.Task[None]] = []
        stack.callback(lambda: [task.cancel() for task in tasks_running])
        tasks_running.append(tasks.create_task(watcher.watch()))
        tasks_running.append(
            tasks.create_task(_watch_dictionary(dictionary, settings.terms.refresh_s))
        )
        engine_process = None
        if settings.engine.embedded:
            engine_process = EngineProcess(
                port=settings.engine.port,
                data_dir=settings.data_dir,
                log_path=settings.data_dir / "engine.log",
            )
            tasks_running.append(tasks.create_task(engine_process.run()))
        backend = AiohttpBackend(
            BackendTimeouts(
                connect_s=settings.backend.connect_timeout_s,
                idle_s=settings.backend.idle_timeout_s,
                total_s=settings.backend.total_timeout_s,
            )
        )
        stack.push_async_callback(backend.close)
        telemetry = Telemetry()
        stack.callback(telemetry.close)
        engine_url = settings.routing.engine_url or (engine_process.url if engine_process else "")
        engine_client = None
        if engine_url:
            session = await stack.enter_async_context(aiohttp.ClientSession(trust_env=False))
            engine_client = EngineClient(session, engine_url)
        experts = Experts(
            by_id={expert.expert_id: expert for expert in catalog.experts},
            aliases=settings.aliases,
            default_expert=catalog.default_expert,
            catalog_version=accounts.catalog_state().version,
        )
        load = LoadWindow(settings.routing.expert_capacity)
        admitter = Admitter(
            experts=experts,
            accounts=lambda: watcher.current,
            router=router,
            engine=engine_client,
            engine_deadline_s=settings.routing.engine_deadline_ms / 1000,
            holds=holds,
            callers=CallerHistory(ledger.request_counts()),
            load=load,
            mint=EventIdMint(),
            clock=clock,
        )
        proxy = ChatProxy(
            backend=backend,
            meter=meter,
            holds=holds,
            load=load,
            telemetry=telemetry,
            clock=clock,
            answer_bytes_max=settings.backend.answer_bytes_max,
        )
        operations = Operations(
            telemetry=telemetry, readiness=lambda: _readiness(meter, shipper, engine_process)
        )
        app = build_app(
            settings,
            experts=experts,
            admitter=admitter,
            proxy=proxy,
            operations=operations,
            accounts=lambda: watcher.current,
            pepper=pepper,
            dictionary=dictionary,
        )
        yield Gateway(app, database, shipper, meter, engine_process)


def build_app(
    settings: GatewaySettings,
    *,
    experts: Experts,
    admitter: Admitter,
    proxy: ChatProxy,
    operations: Operations,
    accounts: Callable[[], Accounts],
    pepper: bytes,
    dictionary: Dictionary,
) -> Starlette:
    """Return the ASGI application: routes inside, middleware outside, problems outermost."""
    models = Models(experts)
    limits = BodyLimits(settings.server.body_bytes_max, settings.server.body_deadline_s)
    known_ids = tuple(experts.by_id)
    mode = TermAction(settings.terms.mode)

    def terms() -> tuple[Normalise, int]:
        snapshot = dictionary.snapshot

        def with_snapshot(text: str) -> NormalisedText:
            return normalise(snapshot, text, mode=mode)

        return with_snapshot, snapshot.version

    app = Starlette(
        routes=[
            HttpRoute("/v1/chat/completions", ChatCompletions(admitter, proxy), methods=["POST"]),
            HttpRoute("/v1/route", Route(admitter), methods=["POST"]),
            HttpRoute("/v1/models", models.list, methods=["GET"]),
            HttpRoute("/v1/models/{model:path}", models.show, methods=["GET"]),
            HttpRoute("/healthz", operations.healthz, methods=["GET"]),
            HttpRoute("/readyz", operations.readyz, methods=["GET"]),
            HttpRoute("/metrics", operations.metrics, methods=["GET"]),
        ],
        middleware=[
            Middleware(ProblemResponses),
            Middleware(
                Authenticate,
                lookup=lambda key: accounts().principal_for(key, pepper),
                public_paths=PUBLIC_PATHS,
            ),
            Middleware(NormaliseTerms, terms=terms, paths=CHAT_PATHS, limits=limits),
            Middleware(
                BindAnchor,
                experts=lambda: experts.by_id,
                near_matches=lambda expert_id: near_matches(expert_id, known_ids),
                paths=CHAT_PATHS,
                limits=limits,
            ),
        ],
        exception_handlers={404: _not_found, 405: _method_not_allowed},
    )
    # A redirect would make clients send their prompt twice, and some drop the key on the way.
    app.router.redirect_slashes = False
    return app


def _open_metering(
    data_dir: Path, ledger: LedgerStore, billing: BillingSettings, stack: AsyncExitStack
) -> tuple[Meter, Shipper]:
    meter = Meter(
        data_dir / "journal" / "0",
        second_directory=billing.second_journal_dir,
        segment_bytes=billing.segment_size_bytes,
        slots=billing.requests_in_flight_max,
    )
    meter.open()
    try:
        shipper = Shipper(
            meter,
            ledger,
            batch_events_max=billing.ship_batch_events_max,
            interval_s=billing.ship_interval_s,
            kept_segments=billing.segments_kept_count,
        )
        shipper.start()
    except BaseException:
        meter.close()
        raise

    async def drain() -> None:
        await asyncio.to_thread(shipper.drain, billing.drain_timeout_s)

    # In reverse: the last outcomes become durable, are shipped, and then the shipper ends.
    stack.callback(shipper.stop)
    stack.push_async_callback(drain)
    stack.callback(meter.close)
    return meter, shipper


async def _watch_dictionary(dictionary: Dictionary, refresh_s: float) -> None:
    """Serve a newly published dictionary soon; a damaged one is reported and the old one served on."""
    while True:
        await asyncio.sleep(refresh_s)
        try:
            if await asyncio.to_thread(dictionary.refresh):
                log.info("dictionary_loaded", extra={"version": dictionary.snapshot.version})
        except (TermDbError, OSError) as exc:
            log.error("dictionary_refused", extra={"error": str(exc)})


def _readiness(meter: Meter, shipper: Shipper, engine: EngineProcess | None) -> Readiness:
    parts = {
        "journal": "ready" if meter.is_healthy else "can't be written",
        "books": "ready"
        if shipper.backlog_records < BACKLOG_MAX
        else f"{shipper.backlog_records} records behind",
    }
    if engine is not None:
        parts["engine"] = engine.state
    return Readiness(all(state == "ready" for state in parts.values()), parts)


async def _not_found(request: Request, _: Exception) -> Response:
    error = LookupError(f"there is nothing at {request.method} {request.scope['path']}")
    return JSONResponse(body_of(error, NOT_FOUND), status_code=NOT_FOUND.status)


async def _method_not_allowed(request: Request, exc: Exception) -> Response:
    error = LookupError(f"{request.scope['path']} does not answer to {request.method}")
    allowed = getattr(exc, "headers", None) or {}
    return JSONResponse(
        body_of(error, METHOD_NOT_ALLOWED), status_code=METHOD_NOT_ALLOWED.status, headers=allowed
    )

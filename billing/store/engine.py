"""Connections to the books: one writer and many readers on SQLite, pools with timeouts on PostgreSQL.

Owns how transactions begin, what durability they have, and the translation of the driver's exceptions; no
query. SQLite runs in WAL mode with `synchronous=FULL`, its writer is a pool of one that begins IMMEDIATE.
"""

import sqlite3
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from billing.errors import InvalidInput, SchemaOutdated, StoreUnavailable
from billing.store.schema import HEAD_REVISION

BUSY_TIMEOUT_MS = 5_000
"""How long SQLite waits for another process's lock before the transaction is given up."""

READERS_MAX = 8
"""Connections a process may hold for reading; more wait, up to `POOL_TIMEOUT_S`."""

POOL_TIMEOUT_S = 10
STATEMENT_TIMEOUT_MS = 5_000
LOCK_TIMEOUT_MS = 2_000
IDLE_IN_TRANSACTION_TIMEOUT_MS = 10_000
CONNECT_TIMEOUT_S = 5
RECYCLE_S = 1_800

_SQLITE_WRITER = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
    "PRAGMA wal_autocheckpoint=1000",
    "PRAGMA journal_size_limit=67108864",
    "PRAGMA mmap_size=0",
    "PRAGMA cache_size=-65536",
    "PRAGMA temp_store=MEMORY",
    "PRAGMA trusted_schema=OFF",
    "PRAGMA cell_size_check=ON",
)
_SQLITE_READER = (
    "PRAGMA query_only=ON",
    "PRAGMA wal_autocheckpoint=0",
    "PRAGMA mmap_size=0",
    "PRAGMA trusted_schema=OFF",
)


class _Turns:
    """A first-come-first-served lock: a busy shipper can't starve a closing of the one writer."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: deque[threading.Event] = deque()
        self._is_taken = False

    @contextmanager
    def taken(self, timeout_s: float) -> Iterator[None]:
        """Hold the lock during the block.

        Raises:
            StoreUnavailable: it did not become free in time.
        """
        self._take(timeout_s)
        try:
            yield
        finally:
            self._pass_on()

    def _take(self, timeout_s: float) -> None:
        with self._mutex:
            if not self._is_taken:
                self._is_taken = True
                return
            turn = threading.Event()
            self._waiting.append(turn)
        if turn.wait(timeout_s):
            return
        with self._mutex:
            if turn.is_set():
                # The turn came while we gave up: it is ours, and used.
                return
            self._waiting.remove(turn)
        raise StoreUnavailable("the store is busy: another writer did not finish in time")

    def _pass_on(self) -> None:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._is_taken = False


class Database:
    """An open store; `writing` and `reading` are the only ways to a connection.

    Every block is one transaction: it commits when the block ends and rolls back when it raises.
    """

    def __init__(self, writer: Engine, reader: Engine) -> None:
        self._writer, self._reader = writer, reader
        self._turns = _Turns() if writer.dialect.name == "sqlite" else None

    @property
    def is_sqlite(self) -> bool:
        """Return whether the store is a SQLite file."""
        return self._writer.dialect.name == "sqlite"

    @property
    def engine(self) -> Engine:
        """Return the engine that writes; for migrations and schema checks."""
        return self._writer

    @contextmanager
    def writing(self, *, is_long: bool = False) -> Iterator[Connection]:
        """Yield a connection inside a write transaction; `is_long` lifts the statement timeout.

        Raises:
            StoreUnavailable: the store can't be reached or stayed locked; nothing was written (unless
                the commit itself failed, which the caller resolves by id).
        """
        turn = self._turns.taken(POOL_TIMEOUT_S) if self._turns else nullcontext()
        with translated_exceptions(), turn, self._writer.begin() as connection:
            if is_long and not self.is_sqlite:
                connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection that sees one snapshot and can't write.

        Raises:
            StoreUnavailable: the store can't be reached.
        """
        with translated_exceptions(), self._reader.begin() as connection:
            yield connection

    def close(self) -> None:
        """Close every connection; readers first, so that the writer leaves a checkpointed file."""
        self._reader.dispose()
        self._writer.dispose()

    def __enter__(self) -> "Database":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_database(url: str, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> Database:
    """Return the store at `url` (`sqlite:///path` or `postgresql://…`); the schema is not looked at.

    Args:
        url: where the books are.
        busy_timeout_ms: how long SQLite waits for another process's lock.

    Raises:
        InvalidInput: the URL names no store that is supported.
    """
    parsed = parse_url(url)
    if parsed.drivername == "sqlite+pysqlite":
        return _open_sqlite(parsed, busy_timeout_ms)
    return _open_postgres(parsed)


def parse_url(url: str) -> URL:
    """Return `url` with its driver made explicit.

    Raises:
        InvalidInput: it isn't a URL, or not of a SQLite file or PostgreSQL database.
    """
    try:
        parsed = make_url(url)
    except sa.exc.ArgumentError:
        raise InvalidInput("store", "not a URL; use sqlite:///path or postgresql://…") from None
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        if not parsed.database or parsed.database == ":memory:":
            raise InvalidInput("store", "a SQLite store is a file: sqlite:///path/to/books.sqlite")
        return parsed.set(drivername="sqlite+pysqlite")
    if parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    raise InvalidInput("store", f"{parsed.drivername} is not supported; use sqlite or postgresql")


@contextmanager
def translated_exceptions() -> Iterator[None]:
    """Turn the driver's connection and lock failures into `StoreUnavailable`."""
    try:
        yield
    except PoolTimeout as exc:
        raise StoreUnavailable("the store is busy: no connection became free in time") from exc
    except OperationalError as exc:
        # The original message only: SQLAlchemy's own repeats the statement and its parameters.
        raise StoreUnavailable(f"the store can't be used: {_first_line(exc)}") from exc
    except DBAPIError as exc:
        if exc.connection_invalidated:
            raise StoreUnavailable(f"the store's connection broke: {_first_line(exc)}") from exc
        raise


def require_current(database: Database) -> None:
    """Return when the store's schema is the one this version needs.

    Raises:
        SchemaOutdated: it is older, newer, half migrated or missing.
        StoreUnavailable: the store can't be reached.
    """
    with database.reading() as connection:
        found: list[str] = []
        if sa.inspect(connection).has_table("alembic_version"):
            found = list(
                connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalars()
            )
    if found != [HEAD_REVISION]:
        raise SchemaOutdated(", ".join(found) or None, HEAD_REVISION)


def _first_line(exc: DBAPIError) -> str:
    lines = str(exc.orig).strip().splitlines()
    return lines[0] if lines else type(exc.orig).__name__


def _open_sqlite(url: URL, busy_timeout_ms: int) -> Database:
    Path(str(url.database)).parent.mkdir(parents=True, exist_ok=True)
    timeout_s = busy_timeout_ms / 1000
    writer = sa.create_engine(
        url,
        pool_size=1,
        max_overflow=0,
        pool_timeout=POOL_TIMEOUT_S,
        connect_args={"timeout": timeout_s},
    )
    reader = sa.create_engine(
        url,
        pool_size=READERS_MAX,
        max_overflow=0,
        pool_timeout=POOL_TIMEOUT_S,
        connect_args={"timeout": timeout_s},
    )
    _on_sqlite_connect(writer, _SQLITE_WRITER, begin="BEGIN IMMEDIATE")
    _on_sqlite_connect(reader, _SQLITE_READER, begin="BEGIN")
    return Database(writer, reader)


def _on_sqlite_connect(engine: Engine, pragmas: tuple[str, ...], *, begin: str) -> None:
    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        # pysqlite's own transaction control would begin late and commit early; we emit BEGIN.
        connection.isolation_level = None
        for pragma in pragmas:
            connection.execute(pragma)

    def start(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", start)


def _open_postgres(url: URL) -> Database:
    options = (
        f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c lock_timeout={LOCK_TIMEOUT_MS}"
        f" -c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION_TIMEOUT_MS}"
    )
    common: dict[str, Any] = {
        "pool_pre_ping": True,
        "pool_recycle": RECYCLE_S,
        "pool_timeout": POOL_TIMEOUT_S,
        "max_overflow": 0,
        "connect_args": {"connect_timeout": CONNECT_TIMEOUT_S, "options": options},
    }
    writer = sa.create_engine(url, pool_size=4, **common)
    reader = sa.create_engine(
        url,
        pool_size=READERS_MAX,
        execution_options={
            "isolation_level": "REPEATABLE READ",
            "postgresql_readonly": True,
        },
        **common,
    )
    return Database(writer, reader)

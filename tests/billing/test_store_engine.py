"""How the books are opened: URLs, durability, one writer in order of arrival, translated failures."""

import sqlite3
import threading

import pytest
import sqlalchemy as sa

from billing.errors import InvalidInput, StoreUnavailable
from billing.store import schema
from billing.store.engine import open_database, parse_url
from tests.billing.books import BEFORE, Books, a_customer


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("sqlite:///a.sqlite", "sqlite+pysqlite"),
        ("postgresql://u@h/d", "postgresql+psycopg"),
        ("postgres://u@h/d", "postgresql+psycopg"),
        ("postgresql+psycopg://u@h/d", "postgresql+psycopg"),
    ],
)
def test_driver_is_made_explicit(url, driver):
    assert parse_url(url).drivername == driver


@pytest.mark.parametrize(
    "url", ["", "books.sqlite", "sqlite://", "sqlite:///:memory:", "mysql://u@h/d"]
)
def test_other_stores_are_refused(url):
    with pytest.raises(InvalidInput, match="store"):
        parse_url(url)


def test_sqlite_is_durable_and_enforces_keys(sqlite_template):
    with open_database(f"sqlite:///{sqlite_template}") as database:
        with database.writing() as connection:
            found = {
                name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
                for name in ("journal_mode", "synchronous", "foreign_keys", "mmap_size")
            }
        assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "mmap_size": 0}


def test_readers_can_not_write(database):
    with (
        pytest.raises((StoreUnavailable, sa.exc.DBAPIError), match=r"readonly|read-only"),
        database.reading() as connection,
    ):
        connection.execute(sa.delete(schema.customers))


def test_block_that_raises_leaves_nothing(database):
    row = sa.insert(schema.epochs).values(name="x", value=1)
    with pytest.raises(sa.exc.IntegrityError), database.writing() as connection:
        assert [connection.execute(row).rowcount, connection.execute(row)] == []
    with database.reading() as connection:
        assert connection.execute(sa.select(schema.epochs)).all() == []


def test_reader_sees_one_snapshot(database):
    books = Books(database).open()
    query = sa.select(sa.func.count()).select_from(schema.customers)
    with database.reading() as connection:
        before = connection.execute(query).scalar()
        books.accounts.add_customer(a_customer("new"), now=BEFORE, actor="test")
        assert connection.execute(query).scalar() == before == 1


def test_database_locked_by_another_process_is_unavailable_not_wrong(tmp_path, sqlite_template):
    import shutil

    path = tmp_path / "books.sqlite"
    shutil.copy(sqlite_template, path)
    with open_database(f"sqlite:///{path}", busy_timeout_ms=50) as database:
        with database.writing():
            pass
        other = sqlite3.connect(path)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"), database.writing():
            pass
        other.rollback()
        other.close()
        with database.writing():
            pass


def test_writers_are_served_in_order_of_arrival(sqlite_template):
    order = []
    with open_database(f"sqlite:///{sqlite_template}") as database:
        arrived = [threading.Event() for _ in range(5)]

        def write(index):
            arrived[index].set()
            with database.writing():
                order.append(index)

        threads = [threading.Thread(target=write, args=(index,)) for index in range(5)]
        with database.writing():
            for index, thread in enumerate(threads):
                thread.start()
                arrived[index].wait()
                while len(database._turns._waiting) <= index:
                    pass
        for thread in threads:
            thread.join()
    assert order == [0, 1, 2, 3, 4]


def test_unreachable_postgres_is_named_without_its_password():
    with open_database("postgresql://u:secret@127.0.0.1:1/d") as database:
        with pytest.raises(StoreUnavailable) as caught, database.reading():
            pass
        assert "secret" not in str(caught.value)

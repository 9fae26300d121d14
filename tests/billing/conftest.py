"""Stores for the billing tests: every test that takes `database` runs on SQLite and on PostgreSQL."""

import os
import shutil
import uuid

import pytest
import sqlalchemy as sa

from billing.store import migration
from billing.store.engine import open_database
from billing.store.schema import metadata

POSTGRES = "postgresql+psycopg://postgres@127.0.0.1:5432"


@pytest.fixture(scope="session")
def postgres_url():
    """A migrated PostgreSQL database of this session's own, dropped at its end."""
    admin = sa.create_engine(f"{POSTGRES}/postgres", isolation_level="AUTOCOMMIT")
    name = f"expertgate_test_{uuid.uuid4().hex[:12]}"
    try:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
    except sa.exc.OperationalError:
        admin.dispose()
        if "postgres" in os.environ.get("EXPERTGATE_TEST_REQUIRE", ""):
            pytest.fail("EXPERTGATE_TEST_REQUIRE names postgres, but 127.0.0.1:5432 is unreachable")
        pytest.skip("no PostgreSQL at 127.0.0.1:5432")
    try:
        yield f"{POSTGRES}/{name}"
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
        admin.dispose()


@pytest.fixture(scope="session")
def migrated_postgres_url(postgres_url):
    migration.upgrade(postgres_url)
    return postgres_url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory):
    path = tmp_path_factory.mktemp("books") / "template.sqlite"
    migration.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store_url(request, tmp_path):
    """The URL of an empty, migrated store."""
    if request.param == "sqlite":
        path = tmp_path / "books.sqlite"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    url = request.getfixturevalue("migrated_postgres_url")
    yield url
    engine = sa.create_engine(url)
    names = ", ".join(table.name for table in metadata.sorted_tables)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"TRUNCATE {names} RESTART IDENTITY")
    engine.dispose()


@pytest.fixture
def database(store_url):
    """An open, empty, migrated store."""
    with open_database(store_url) as opened:
        yield opened

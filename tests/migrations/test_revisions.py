"""The migrations make exactly the metadata, go back, and a wrong schema is refused; on both databases."""

import uuid

import pytest
import sqlalchemy as sa

from billing.errors import SchemaOutdated
from billing.store import migration
from billing.store.engine import open_database, require_current
from billing.store.schema import HEAD_REVISION, metadata

POSTGRES = "postgresql+psycopg://postgres@127.0.0.1:5432"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def empty_url(request, tmp_path):
    """The URL of a store without a schema."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'books.sqlite'}"
        return
    import os

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
    yield f"{POSTGRES}/{name}"
    with admin.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    admin.dispose()


def tables(url):
    with open_database(url) as database, database.reading() as connection:
        return set(sa.inspect(connection).get_table_names())


def change(url, statement):
    with open_database(url) as database, database.writing() as connection:
        connection.exec_driver_sql(statement)


def test_upgrade_makes_exactly_the_metadata_and_is_repeatable(empty_url):
    migration.upgrade(empty_url)
    migration.upgrade(empty_url)
    assert migration.check(empty_url) == []
    assert tables(empty_url) == {*metadata.tables, "alembic_version"}


def test_downgrade_leaves_nothing_and_can_go_up_again(empty_url):
    migration.upgrade(empty_url)
    migration.downgrade(empty_url, "base")
    assert tables(empty_url) == {"alembic_version"}
    migration.upgrade(empty_url)
    assert migration.check(empty_url) == []


def test_head_of_the_scripts_is_what_the_code_needs():
    assert migration.script_heads() == (HEAD_REVISION,)


@pytest.mark.parametrize(
    ("statement", "difference"),
    [
        ("DROP TABLE audit_log", "audit_log"),
        ("ALTER TABLE customers ADD COLUMN colour TEXT", "colour"),
        ("DROP INDEX ix_usage_lines_open", "ix_usage_lines_open"),
        ("UPDATE alembic_version SET version_num = '0000'", "revision is 0000"),
    ],
)
def test_check_names_every_difference(empty_url, statement, difference):
    migration.upgrade(empty_url)
    change(empty_url, statement)
    found = migration.check(empty_url)
    assert len(found) >= 1
    assert difference in " ".join(found)


def test_missing_check_constraint_is_found(empty_url):
    migration.upgrade(empty_url)
    if empty_url.startswith("sqlite"):
        change(empty_url, "DROP TABLE invoice_counters")
        change(
            empty_url,
            "CREATE TABLE invoice_counters (series TEXT NOT NULL, last_number INTEGER NOT NULL,"
            " CONSTRAINT pk_invoice_counters PRIMARY KEY (series)) STRICT",
        )
    else:
        change(
            empty_url,
            "ALTER TABLE invoice_counters DROP CONSTRAINT ck_invoice_counters_last_number_positive",
        )
    assert migration.check(empty_url) == [
        "invoice_counters: CHECK ck_invoice_counters_last_number_positive is missing"
    ]


@pytest.mark.parametrize("revision", [None, "0000", "9999"])
def test_serving_on_another_schema_is_refused(empty_url, revision):
    if revision is not None:
        migration.upgrade(empty_url)
        change(empty_url, f"UPDATE alembic_version SET version_num = '{revision}'")
    with open_database(empty_url) as database:
        with pytest.raises(SchemaOutdated, match="expertgate db upgrade") as caught:
            require_current(database)
        assert (caught.value.found, caught.value.needed) == (revision, HEAD_REVISION)


def test_current_schema_is_served(empty_url):
    migration.upgrade(empty_url)
    with open_database(empty_url) as database:
        require_current(database)


def test_sqlite_tables_are_strict_and_equal_to_the_metadatas_text(tmp_path):
    def text(path):
        with open_database(f"sqlite:///{path}") as database, database.reading() as connection:
            rows = connection.exec_driver_sql(
                "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'alembic%' AND sql IS NOT NULL"
            )
            return {
                name: sorted(part.strip().rstrip(",") for part in sql.splitlines())
                for name, sql in rows
            }

    migrated, created = tmp_path / "migrated.sqlite", tmp_path / "created.sqlite"
    migration.upgrade(f"sqlite:///{migrated}")
    with open_database(f"sqlite:///{created}") as database:
        metadata.create_all(database.engine)
    assert text(migrated) == text(created)
    with open_database(f"sqlite:///{migrated}") as database, database.reading() as connection:
        strict = connection.exec_driver_sql(
            "SELECT count(*) FROM pragma_table_list WHERE strict AND name IN"
            f" ({', '.join(repr(name) for name in metadata.tables)})"
        ).scalar()
    assert strict == len(metadata.tables)

"""Bringing a store's schema up to date, and proving that it is.

Owns the use of alembic (loaded only when called); the revisions are in `migrations/versions`. The
configuration is built here, so there is no `alembic.ini`.
"""

from importlib.resources import files
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from billing.store.engine import Database, open_database
from billing.store.schema import HEAD_REVISION, metadata

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy.engine import Connection


def upgrade(url: str, revision: str = "head") -> None:
    """Bring the schema of the store at `url` to `revision`, in one transaction per call."""
    _run(url, "upgrade", revision)


def downgrade(url: str, revision: str) -> None:
    """Take the schema of the store at `url` back to `revision` (`base` is empty)."""
    _run(url, "downgrade", revision)


def check(url: str) -> list[str]:
    """Return how the store's schema differs from this version's, one line each; empty when it is equal."""
    with open_database(url) as database, database.reading() as connection:
        return differences(connection)


def differences(connection: "Connection") -> list[str]:
    """Return how the connected schema differs from the metadata; see `check`."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    context = MigrationContext.configure(connection)
    found = []
    heads = context.get_current_heads()
    if heads != (HEAD_REVISION,):
        found.append(f"revision is {', '.join(heads) or 'none'}, not {HEAD_REVISION}")
    found += [repr(difference) for difference in compare_metadata(context, metadata)]
    return found + _check_differences(connection)


def script_heads() -> tuple[str, ...]:
    """Return the newest revisions among the shipped migration scripts."""
    from alembic.script import ScriptDirectory

    return tuple(ScriptDirectory.from_config(_config()).get_heads())


def _check_differences(connection: "Connection") -> list[str]:
    # Alembic's comparison leaves CHECK constraints out; their names say what they check.
    inspector = sa.inspect(connection)
    present = set(inspector.get_table_names())
    found = []
    for table in metadata.sorted_tables:
        if table.name not in present:
            continue
        wanted = {
            str(constraint.name)
            for constraint in table.constraints
            if isinstance(constraint, sa.CheckConstraint)
        }
        there = {str(item["name"]) for item in inspector.get_check_constraints(table.name)}
        found += [f"{table.name}: CHECK {name} is missing" for name in sorted(wanted - there)]
        found += [f"{table.name}: CHECK {name} is not ours" for name in sorted(there - wanted)]
    return found


def _config() -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    config.set_main_option("path_separator", "os")
    return config


def _run(url: str, command_name: str, revision: str) -> None:
    from alembic import command

    database: Database = open_database(url)
    config = _config()
    act: Any = getattr(command, command_name)
    try:
        with database.writing(is_long=True) as connection:
            config.attributes["connection"] = connection
            act(config, revision)
    finally:
        database.close()

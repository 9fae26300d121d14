"""`expertgate customers`, `keys` and `subscriptions`: who may use what, and who pays."""

from dataclasses import asdict, replace
from typing import Annotated

import typer

from billing.commands.shared import (
    DEFAULT_ACTOR,
    DEFAULT_DATA_DIR,
    Actor,
    AsJson,
    DataDir,
    Row,
    Store,
    instant_of,
    now_utc,
    open_books,
    print_row,
    print_rows,
)
from billing.types import (
    ApiKey,
    Customer,
    CustomerId,
    KeyId,
    MicroPoints,
    PackageId,
    ProjectId,
    SlaTierId,
    SubscriptionId,
)

customers_app = typer.Typer(
    name="customers", help="Who pays: create, list, show, change terms.", no_args_is_help=True
)
keys_app = typer.Typer(
    name="keys", help="Credentials: create (shown once), list, revoke.", no_args_is_help=True
)
subscriptions_app = typer.Typer(
    name="subscriptions", help="Packages of customers: start, list, cancel.", no_args_is_help=True
)

CustomerArgument = Annotated[str, typer.Argument(help="Customer id.", show_default=False)]
CustomerOption = Annotated[str | None, typer.Option("--customer", help="Only this customer.")]
BudgetOption = Annotated[
    str | None, typer.Option("--budget-points", help="Base points per month; none is no limit.")
]


@customers_app.command("create")
def create_customer(
    customer_id: CustomerArgument,
    name: Annotated[str, typer.Option("--name", help="Name on invoices.")],
    currency: Annotated[str, typer.Option("--currency", help="ISO 4217 code.")] = "EUR",
    point_price: Annotated[
        str, typer.Option("--point-price", help="Price of one base point, e.g. 0.02.")
    ] = "0.02",
    sla_tier: Annotated[
        str, typer.Option("--sla-tier", help="A tier of the catalog.")
    ] = "standard",
    time_zone: Annotated[str, typer.Option("--time-zone", help="Where its months begin.")] = "UTC",
    budget_points: BudgetOption = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    store: Store = None,
    actor: Actor = DEFAULT_ACTOR,
    as_json: AsJson = False,
) -> None:
    """Create a customer."""
    from billing import accounts
    from billing.store.accounts import SqlAccountsStore

    customer = Customer(
        customer_id=CustomerId(customer_id),
        name=name,
        currency=currency,
        point_price_micros=accounts.micros_from_text("--point-price", point_price),
        sla_tier_id=SlaTierId(sla_tier),
        time_zone=time_zone,
        budget=_budget(budget_points),
    )
    with open_books(store, data_dir) as database:
        accounts.create_customer(SqlAccountsStore(database), customer, now=now_utc(), actor=actor)
    print_row(_customer_row(customer), as_json=as_json)


@customers_app.command("list")
def list_customers(
    data_dir: DataDir = DEFAULT_DATA_DIR, store: Store = None, as_json: AsJson = False
) -> None:
    """List every customer."""
    from billing.store.accounts import SqlAccountsStore

    with open_books(store, data_dir) as database:
        rows = [_customer_row(item) for item in SqlAccountsStore(database).customers()]
    print_rows(rows, title="customers", as_json=as_json)


@customers_app.command("show")
def show_customer(
    customer_id: CustomerArgument,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Show a customer's terms."""
    from billing.store.accounts import SqlAccountsStore

    with open_books(store, data_dir) as database:
        customer = SqlAccountsStore(database).customer(CustomerId(customer_id))
    print_row(_customer_row(customer), as_json=as_json)


@customers_app.command("set-budget")
def set_budget(
    customer_id: CustomerArgument,
    points: Annotated[str, typer.Argument(help="Base points per month, or 'none'.")],
    data_dir: DataDir = DEFAULT_DATA_DIR,
    store: Store = None,
    actor: Actor = DEFAULT_ACTOR,
    as_json: AsJson = False,
) -> None:
    """Limit what a customer may use in a calendar month, or lift the limit."""
    from billing import accounts
    from billing.store.accounts import SqlAccountsStore

    budget = None if points == "none" else _budget(points)
    with open_books(store, data_dir) as database:
        customer = accounts.set_budget(
            SqlAccountsStore(database),
            CustomerId(customer_id),
            budget,
            now=now_utc(),
            actor=actor,
        )
    print_row(_customer_row(customer), as_json=as_json)


@customers_app.command("set-terms")
def set_terms(
    customer_id: CustomerArgument,
    name: Annotated[str | None, typer.Option("--name", help="Name on invoices.")] = None,
    point_price: Annotated[
        str | None, typer.Option("--point-price", help="Price of one base point.")
    ] = None,
    sla_tier: Annotated[
        str | None, typer.Option("--sla-tier", help="A tier of the catalog.")
    ] = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    store: Store = None,
    actor: Actor = DEFAULT_ACTOR,
    as_json: AsJson = False,
) -> None:
    """Change name, point price or SLA tier; usage that isn't invoiced yet is billed on the new terms."""
    from billing import accounts
    from billing.store.accounts import SqlAccountsStore

    with open_books(store, data_dir) as database:
        books = SqlAccountsStore(database)
        customer = books.customer(CustomerId(customer_id))
        if name is not None:
            customer = replace(customer, name=name)
        if point_price is not None:
            micros = accounts.micros_from_text("--point-price", point_price)
            customer = replace(customer, point_price_micros=micros)
        if sla_tier is not None:
            customer = replace(customer, sla_tier_id=SlaTierId(sla_tier))
        accounts.require_valid(customer)
        books.change_customer(customer, now=now_utc(), actor=actor)
    print_row(_customer_row(customer), as_json=as_json)


@keys_app.command("create")
def create_key(
    customer: Annotated[str, typer.Option("--customer", help="Who it belongs to.")],
    name: Annotated[str, typer.Option("--name", help="What it is for.")] = "default",
    project: Annotated[
        str | None,
        typer.Option("--project", help="A project of the customer. [default: its first]"),
    ] = None,
    budget_points: BudgetOption = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    store: Store = None,
    actor: Actor = DEFAULT_ACTOR,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it once; only its digest is kept."""
    import secrets

    from billing import accounts
    from billing.keys import SECRET_BYTES
    from billing.secrets import ensure_pepper
    from billing.store.accounts import SqlAccountsStore

    with open_books(store, data_dir) as database:
        key, text = accounts.create_key(
            SqlAccountsStore(database),
            customer_id=CustomerId(customer),
            name=name,
            pepper=ensure_pepper(data_dir / "secrets" / "pepper"),
            random_bytes=secrets.token_bytes(SECRET_BYTES),
            key_id=KeyId(f"key-{secrets.token_hex(6)}"),
            now=now_utc(),
            actor=actor,
            project_id=None if project is None else ProjectId(project),
            budget=_budget(budget_points),
        )
    print_row({"key": text} | dict(_key_row(key)), as_json=as_json)
    if not as_json:
        typer.echo("Keep the key now: it is not stored and can't be shown again.", err=True)


@keys_app.command("list")
def list_keys(
    customer: CustomerOption = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """List keys without their secrets."""
    from billing.store.accounts import SqlAccountsStore

    with open_books(store, data_dir) as database:
        keys = SqlAccountsStore(database).keys()
    rows = [_key_row(key) for key in keys if customer in (None, key.customer_id)]
    print_rows(rows, title="keys", as_json=as_json)


@keys_app.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(help="Key id (not the key).", show_default=False)],
    data_dir: DataDir = DEFAULT_DATA_DIR,
    store: Store = None,
    actor: Actor = DEFAULT_ACTOR,
    as_json: AsJson = False,
) -> None:
    """End a key's life; gateways refuse it within a second."""
    from billing.store.accounts import SqlAccountsStore

    with open_books(store, data_dir) as database:
        key = SqlAccountsStore(database).revoke_key(KeyId(key_id), now=now_utc(), actor=actor)
    print_row(_key_row(key), as_json=as_json)


@subscriptions_app.command("start")
def start_subscription(
    customer: Annotated[str, typer.Option("--customer", help="Who subscribes.")],
    package: Annotated[str, typer.Option("--package", help="A package of the catalog.")],
    at: Annotated[str, typer.Option("--at", help="When it starts: 'now' or ISO 8601.")] = "now",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    store: Store = None,
    actor: Actor = DEFAULT_ACTOR,
    as_json: AsJson = False,
) -> None:
    """Start a subscription; from then on the customer may use only the experts of its packages."""
    import secrets

    from billing import accounts
    from billing.store.accounts import SqlAccountsStore

    with open_books(store, data_dir) as database:
        subscription = accounts.start_subscription(
            SqlAccountsStore(database),
            subscription_id=SubscriptionId(f"sub-{secrets.token_hex(6)}"),
            customer_id=CustomerId(customer),
            package_id=PackageId(package),
            started_at=instant_of(at, "--at"),
            now=now_utc(),
            actor=actor,
        )
    print_row(asdict(subscription), as_json=as_json)


@subscriptions_app.command("list")
def list_subscriptions(
    customer: CustomerOption = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """List subscriptions, ended ones included."""
    from billing.store.accounts import SqlAccountsStore

    with open_books(store, data_dir) as database:
        found = SqlAccountsStore(database).subscriptions()
    rows = [asdict(item) for item in found if customer in (None, item.customer_id)]
    print_rows(rows, title="subscriptions", as_json=as_json)


@subscriptions_app.command("cancel")
def cancel_subscription(
    subscription_id: Annotated[str, typer.Argument(help="Subscription id.", show_default=False)],
    at: Annotated[str, typer.Option("--at", help="When it ends: 'now' or ISO 8601.")] = "now",
    data_dir: DataDir = DEFAULT_DATA_DIR,
    store: Store = None,
    actor: Actor = DEFAULT_ACTOR,
    as_json: AsJson = False,
) -> None:
    """End a subscription."""
    from billing.store.accounts import SqlAccountsStore

    with open_books(store, data_dir) as database:
        ended = SqlAccountsStore(database).end_subscription(
            SubscriptionId(subscription_id),
            at=instant_of(at, "--at"),
            now=now_utc(),
            actor=actor,
        )
    print_row(asdict(ended), as_json=as_json)


def _budget(points: str | None) -> MicroPoints | None:
    from billing.accounts import micros_from_text

    return None if points is None else MicroPoints(micros_from_text("--budget-points", points))


def _customer_row(customer: Customer) -> Row:
    row = asdict(customer)
    row["budget_micropoints"] = row.pop("budget")
    return row


def _key_row(key: ApiKey) -> Row:
    row = asdict(key)
    del row["digest"]
    row["budget_micropoints"] = row.pop("budget")
    return row

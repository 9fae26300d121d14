"""The catalog file: what is refused and how it is named, and what applying one changes."""

import json

import pytest

from billing.catalog import apply_catalog, diff, new_rate_cards, parse_amount, parse_catalog
from billing.errors import InvalidCatalog
from billing.store.accounts import SqlAccountsStore
from billing.types import Money, OverageRule, Rates, SlaTier
from routing_engine.types import Expert, Replica
from tests.billing.books import BEFORE, Books, a_catalog, a_customer, a_document, an_expert, at


def test_document_becomes_typed_values():
    catalog = a_catalog()
    expert = catalog.experts[1]
    assert expert == Expert(
        "python-algorithm",
        387,
        "programming",
        "Python 算法",
        (Replica("python-algorithm/0", "http://127.0.0.1:9/v1", "m"),),
    )
    assert dict(catalog.rates)["python-algorithm"] == Rates(0, 2000, 6400, 2000, 6400)
    assert catalog.sla_tiers[1] == SlaTier("gold", "Gold", 150, 10)
    (package,) = catalog.packages
    assert (package.monthly_fee, package.allowance, package.overage) == (
        Money(1900, "EUR"),
        10_000_000,
        OverageRule.CHARGE,
    )


def test_backend_keys_come_from_the_environment_and_stay_out_of_the_document():
    document = a_document()
    replica = document["experts"][0]["replicas"][0]
    replica |= {"api_key_env": "BACKEND_KEY", "base_url": "http://b/v1/", "trusted": False}
    catalog = parse_catalog(document).to_catalog({"BACKEND_KEY": "sk-secret"})
    found = catalog.experts[0].replicas[0]
    assert (found.api_key, found.base_url, found.is_trusted) == ("sk-secret", "http://b/v1", False)
    assert "sk-secret" not in catalog.document
    assert "sk-secret" not in repr(catalog)
    with pytest.raises(
        InvalidCatalog, match=r"experts\.0\.replicas\.0\.api_key_env: .*BACKEND_KEY"
    ):
        parse_catalog(document).to_catalog({})


def test_replicas_come_by_priority_then_in_the_order_of_the_file():
    document = a_document()
    document["experts"][0]["replicas"] = [
        {"base_url": f"http://{name}/v1", "model": "m", "priority": priority}
        for name, priority in (("spare", -1), ("first", 0), ("second", 0), ("best", 5))
    ]
    replicas = parse_catalog(document).to_catalog({}).experts[0].replicas
    assert [replica.base_url for replica in replicas] == [
        f"http://{name}/v1" for name in ("best", "first", "second", "spare")
    ]
    assert [replica.replica_id[-1] for replica in replicas] == ["3", "1", "2", "0"]


def _with(path, value):
    document = a_document()
    place = document
    *parents, last = path.split(".")
    for part in parents:
        place = place[int(part)] if part.isdigit() else place[part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("experts.0.rates.input_1k", 1.5, "experts.0.rates.input_1k"),
        ("experts.0.rates.input_1k", -1, "experts.0.rates.input_1k"),
        ("experts.0.rates.input_1k", 10**6 + 1, "experts.0.rates.input_1k"),
        ("experts.0.rates.input_1k", "1000", "experts.0.rates.input_1k"),
        ("experts.0.rates.output_1k", None, "experts.0.rates.output_1k"),
        ("experts.0.rates.multiplier", 3, "experts.0.rates.multiplier"),
        ("experts.1.id", "general", "experts.1.id"),
        ("experts.1.number", 1, "experts.1.number"),
        ("experts.0.id", "General", "experts.0.id"),
        ("experts.0.replicas", [], "experts.0.replicas"),
        ("experts.0.replicas.0.base_url", "file:///etc/passwd", "experts.0.replicas.0.base_url"),
        ("experts.0.colour", "red", "experts.0.colour"),
        ("default_expert", "nobody", "default_expert"),
        ("packages.0.experts", ["nobody"], "packages.0.experts"),
        ("packages.0.monthly_fee", "19.005", "packages.0.monthly_fee"),
        ("packages.0.monthly_fee", "-1", "packages.0.monthly_fee"),
        ("packages.0.monthly_fee", "1e3", "packages.0.monthly_fee"),
        ("packages.0.currency", "EURO", "packages.0.currency"),
        ("packages.0.currency", "ZZZ", "packages.0.monthly_fee"),
        ("packages.0.overage", "ignore", "packages.0.overage"),
        ("packages.0.allowance_points", -1, "packages.0.allowance_points"),
        ("sla_tiers.0.surcharge_permille", -1, "sla_tiers.0.surcharge_permille"),
        ("sla_tiers", [], "sla_tiers"),
        ("currency", "EUR", "currency"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(path, value, field):
    with pytest.raises(InvalidCatalog) as caught:
        parse_catalog(_with(path, value))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("text", "currency", "minor_units"),
    [
        ("19.00", "EUR", 1900),
        ("19", "EUR", 1900),
        ("19.5", "EUR", 1950),
        ("1000", "JPY", 1000),
        ("10.005", "KWD", 10005),
    ],
)
def test_amounts_are_exact_in_the_currencys_minor_unit(text, currency, minor_units):
    assert parse_amount(text, currency) == Money(minor_units, currency)


@pytest.mark.parametrize(
    ("text", "currency"),
    [("19.001", "EUR"), ("1.5", "JPY"), ("", "EUR"), ("٣", "EUR1"), ("1,00", "EUR")],
)
def test_amounts_finer_than_the_minor_unit_are_refused(text, currency):
    with pytest.raises(ValueError, match=r".+"):
        parse_amount(text, currency)


def test_applying_is_idempotent_and_versions_only_changed_rates(database):
    store = SqlAccountsStore(database)
    first = apply_catalog(store, a_catalog(), BEFORE)
    assert next(change.what for change in first) == "default_expert"
    assert apply_catalog(store, a_catalog(), at("2026-02-01")) == ()
    assert store.catalog_state().version == 1
    document = a_document()
    document["experts"][0] = an_expert("general", 1, input_1k=1500)
    (change,) = apply_catalog(
        store, parse_catalog(document).to_catalog({}), at("2026-05-08"), actor="mei"
    )
    assert change.what == "experts.general"
    assert json.loads(change.after)["rates"]["input_1k"] == 1500

    def in_force(instant):
        return {
            card.expert_id: (card.version, card.rates.input_1k)
            for card in store.rate_cards(at(instant))
        }

    assert in_force("2026-05-07T23:59:59.999999")["general"] == (1, 1000)
    assert in_force("2026-05-08")["general"] == (2, 1500)
    assert in_force("2026-05-08")["python-algorithm"] == (1, 2000)
    assert in_force("2025-12-31") == {}
    assert store.audit_entries()[0].actor == "mei"


def test_change_can_be_scheduled_but_never_backdated(database):
    store = SqlAccountsStore(database)
    apply_catalog(store, a_catalog(), BEFORE)
    dearer = a_catalog(experts=[an_expert("general", 1, input_1k=9), *a_document()["experts"][1:]])
    with pytest.raises(InvalidCatalog, match="in the past"):
        apply_catalog(store, dearer, at("2026-03-01"), effective_from=at("2026-02-01"))
    apply_catalog(store, dearer, at("2026-03-01"), effective_from=at("2026-04-01"))
    assert store.rate_cards(at("2026-03-31"))[1].rates.input_1k == 1000
    assert store.rate_cards(at("2026-04-01"))[1].rates.input_1k == 9
    with pytest.raises(InvalidCatalog, match=r"experts\.0\.rates.*must come after"):
        apply_catalog(store, a_catalog(), at("2026-03-02"))


def test_what_a_customer_uses_can_not_be_dropped(database):
    books = Books(database).open(a_customer(sla_tier_id="gold"))
    books.subscribe()
    epoch = books.accounts.epoch()
    for changes, reason in (
        ({"packages": []}, "'dev' is subscribed to by 'acme'"),
        ({"sla_tiers": [{"id": "standard", "name": "S"}]}, "'gold' is used by 'acme'"),
        ({"packages": [a_document()["packages"][0] | {"currency": "USD"}]}, "paid in EUR"),
    ):
        with pytest.raises(InvalidCatalog, match=reason):
            apply_catalog(books.accounts, a_catalog(**changes), at("2026-02-01"))
    assert (books.accounts.epoch(), books.accounts.catalog_state().version) == (epoch, 1)


def test_catalog_applied_meanwhile_is_not_overwritten(database):
    store = SqlAccountsStore(database)
    stale = store.catalog_state()
    apply_catalog(store, a_catalog(), BEFORE)
    other = a_catalog(packages=[])
    with pytest.raises(InvalidCatalog, match="meanwhile"):
        store.record_catalog(
            other,
            new_rate_cards(stale, other, BEFORE),
            expected_version=stale.version,
            now=BEFORE,
            actor="test",
        )


def test_diff_names_sections_and_ids(database):
    store = SqlAccountsStore(database)
    assert {change.before for change in diff(store.catalog_state(), a_catalog())} == {None}
    apply_catalog(store, a_catalog(), BEFORE)
    (change,) = diff(store.catalog_state(), a_catalog(packages=[]))
    assert (change.what, change.after) == ("packages.dev", None)

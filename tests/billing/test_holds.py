from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from billing.errors import BudgetExceeded
from billing.holds import HoldBook, allowance_scope, customer_scope, key_scope
from billing.types import CustomerId, EventId, KeyId, MicroPoints, SubscriptionId
from tests.billing.metering import event_id

NOW = datetime(2026, 12, 31, 22, 59, 59, tzinfo=UTC)
LATER = NOW + timedelta(seconds=1)
CUSTOMER, KEY = customer_scope(CustomerId("acme")), key_scope(KeyId("k1"))
FIRST, SECOND, THIRD = event_id(1), event_id(2), event_id(3)


def points(amount: int) -> MicroPoints:
    return MicroPoints(amount)


def a_book(customer: int | None = 100, key: int | None = 60) -> HoldBook:
    book = HoldBook()
    book.set_limit(CUSTOMER, None if customer is None else points(customer))
    book.set_limit(KEY, None if key is None else points(key))
    return book


def standing(book: HoldBook, scope: str, now: datetime = NOW) -> tuple[int, int]:
    found = book.standing(scope, now)
    return found.spent, found.held


def test_scopes_of_different_kinds_never_collide() -> None:
    scopes = {customer_scope(CustomerId("x")), key_scope(KeyId("x"))}
    assert len(scopes | {allowance_scope(SubscriptionId("x"))}) == 3


def test_a_hold_that_would_overshoot_any_scope_holds_on_none() -> None:
    book = a_book()
    book.reserve(FIRST, [CUSTOMER, KEY], points(60), NOW)
    with pytest.raises(BudgetExceeded) as caught:
        book.reserve(SECOND, [CUSTOMER, KEY], points(1), NOW)
    error = caught.value
    assert (error.scope, error.limit, error.spent, error.held, error.asked) == (KEY, 60, 0, 60, 1)
    assert error.resets_at == "2027-01-01T00:00:00+00:00"
    assert standing(book, CUSTOMER) == (0, 60)
    book.reserve(SECOND, [CUSTOMER], points(40), NOW)
    assert book.open_holds == 2


def test_settling_spends_the_actual_cost_once_and_frees_the_rest() -> None:
    book = a_book()
    book.reserve(FIRST, [CUSTOMER, KEY], points(60), NOW)
    assert book.settle(FIRST, points(25)) is True
    assert book.settle(FIRST, points(25)) is False
    assert standing(book, CUSTOMER) == standing(book, KEY) == (25, 0)
    assert book.open_holds == 0


def test_releasing_spends_nothing() -> None:
    book = a_book()
    book.reserve(FIRST, [CUSTOMER], points(60), NOW)
    assert book.release(FIRST) is True
    assert book.release(FIRST) is False
    assert standing(book, CUSTOMER) == (0, 0)


@pytest.mark.parametrize("actual", [-1, 61])
def test_a_cost_outside_its_hold_is_a_bug_and_changes_nothing(actual: int) -> None:
    book = a_book()
    book.reserve(FIRST, [CUSTOMER], points(60), NOW)
    with pytest.raises(ValueError, match="held 60"):
        book.settle(FIRST, points(actual))
    assert standing(book, CUSTOMER) == (0, 60)


def test_an_event_has_one_hold_of_zero_or_more() -> None:
    book = a_book()
    book.reserve(FIRST, [CUSTOMER], points(0), NOW)
    with pytest.raises(ValueError, match="hold of 1"):
        book.reserve(FIRST, [CUSTOMER], points(1), NOW)
    with pytest.raises(ValueError, match="hold of -1"):
        book.reserve(SECOND, [CUSTOMER], points(-1), NOW)


def test_a_scope_named_twice_is_held_once() -> None:
    book = a_book()
    book.reserve(FIRST, [CUSTOMER, CUSTOMER], points(60), NOW)
    assert standing(book, CUSTOMER) == (0, 60)


def test_a_new_month_starts_from_zero_and_keeps_old_holds_in_the_old_one() -> None:
    book = HoldBook()
    book.set_limit(CUSTOMER, points(100), time_zone="Europe/Berlin")
    book.reserve(FIRST, [CUSTOMER], points(70), NOW)
    book.reserve(SECOND, [CUSTOMER], points(100), LATER)  # midnight in Berlin
    book.settle(FIRST, points(70))
    assert standing(book, CUSTOMER, LATER) == (0, 100)
    book.settle(SECOND, points(100))
    with pytest.raises(BudgetExceeded):
        book.reserve(THIRD, [CUSTOMER], points(1), LATER)


def test_a_clock_that_steps_back_does_not_reopen_a_month() -> None:
    book = HoldBook()
    book.set_limit(CUSTOMER, points(100), time_zone="Europe/Berlin")
    book.reserve(FIRST, [CUSTOMER], points(100), LATER)
    with pytest.raises(BudgetExceeded):
        book.reserve(SECOND, [CUSTOMER], points(1), NOW)


def test_limits_change_live_and_what_was_spent_survives() -> None:
    book = a_book(customer=100)
    book.reserve(FIRST, [CUSTOMER], points(80), NOW)
    book.settle(FIRST, points(80))
    book.set_limit(CUSTOMER, points(50))
    with pytest.raises(BudgetExceeded) as caught:
        book.reserve(SECOND, [CUSTOMER], points(0), NOW)
    assert caught.value.spent == 80
    book.set_limit(CUSTOMER, None)
    book.reserve(SECOND, [CUSTOMER], points(10**15), NOW)
    book.release(SECOND)
    book.set_limit(CUSTOMER, points(81))
    book.reserve(SECOND, [CUSTOMER], points(1), NOW)
    assert standing(book, CUSTOMER) == (80, 1)
    with pytest.raises(ValueError, match="zero or more"):
        book.set_limit(CUSTOMER, points(-1))


def test_loading_sets_and_never_adds() -> None:
    book = a_book()
    book.reserve(FIRST, [CUSTOMER], points(30), NOW)
    for _ in range(8):
        book.load({CUSTOMER: points(50), "key unknown": points(7)}, NOW)
    assert standing(book, CUSTOMER) == (50, 30)
    assert standing(book, "key unknown") == (7, 0)
    assert standing(book, "key never seen") == (0, 0)
    with pytest.raises(BudgetExceeded):
        book.reserve(SECOND, [CUSTOMER], points(21), NOW)


class HoldBookModel(RuleBasedStateMachine):
    """Spent + held never passes a limit by a reservation, and matches an independent sum."""

    def __init__(self) -> None:
        super().__init__()
        self.book = HoldBook()
        self.limits: dict[str, int] = {}
        self.spent: dict[str, int] = {}
        self.holds: dict[EventId, tuple[int, frozenset[str]]] = {}
        self.number = 0
        for scope in ("a", "b", "c"):
            self.change_limit(scope, 100)

    @rule(scope=st.sampled_from("abc"), limit=st.integers(0, 200))
    def change_limit(self, scope: str, limit: int) -> None:
        self.book.set_limit(scope, points(limit))
        self.limits[scope] = limit

    @rule(scopes=st.frozensets(st.sampled_from("abc"), min_size=1), amount=st.integers(0, 60))
    def reserve(self, scopes: frozenset[str], amount: int) -> None:
        self.number += 1
        fits = all(self.used(scope) + amount <= self.limits[scope] for scope in scopes)
        try:
            self.book.reserve(event_id(self.number), sorted(scopes), points(amount), NOW)
        except BudgetExceeded:
            assert not fits
        else:
            assert fits
            self.holds[event_id(self.number)] = amount, scopes

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        event = data.draw(st.sampled_from(sorted(self.holds)))
        amount, scopes = self.holds.pop(event)
        actual = data.draw(st.integers(0, amount))
        assert self.book.settle(event, points(actual))
        for scope in scopes:
            self.spent[scope] = self.spent.get(scope, 0) + actual

    @rule(scope=st.sampled_from("abc"), amount=st.integers(0, 100))
    def load(self, scope: str, amount: int) -> None:
        self.book.load({scope: points(amount)}, NOW)
        self.spent[scope] = amount

    def held(self, scope: str) -> int:
        return sum(amount for amount, scopes in self.holds.values() if scope in scopes)

    def used(self, scope: str) -> int:
        return self.spent.get(scope, 0) + self.held(scope)

    @invariant()
    def agrees_with_the_model(self) -> None:
        for scope in "abc":
            expected = self.spent.get(scope, 0), self.held(scope)
            assert standing(self.book, scope) == expected

    def teardown(self) -> None:
        for event, (amount, _) in self.holds.items():
            assert self.book.settle(event, points(amount))
        assert self.book.open_holds == 0
        assert all(standing(self.book, scope)[1] == 0 for scope in "abc")


TestHoldBookModel = HoldBookModel.TestCase
TestHoldBookModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

import pytest
from pydantic import ValidationError

from billing.settings import BillingSettings


def test_settings_come_from_prefixed_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPERTGATE_BILLING_SHIP_INTERVAL_S", "0.5")
    settings = BillingSettings()
    assert settings.ship_interval_s == 0.5
    assert settings.second_journal_dir is None


@pytest.mark.parametrize(
    "values", [{"unknown": 1}, {"segment_size_bytes": 1}, {"ship_interval_s": 0}]
)
def test_unknown_and_absurd_settings_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        BillingSettings(**values)  # type: ignore[arg-type]


def test_every_setting_is_described() -> None:
    assert all(field.description for field in BillingSettings.model_fields.values())

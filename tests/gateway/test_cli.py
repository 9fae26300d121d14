"""`config check` and `catalog …`: what is wrong and where, what would change, and nothing half-applied."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from billing.errors import BillingError, InvalidCatalog
from gateway.__main__ import build_cli
from gateway.errors import ConfigError

CONFIG = """\
data_dir = "@DATA@"
default_expert = "general"

[aliases]
"gpt-4o" = "auto"

[server]
port = 8181

[[sla_tiers]]
id = "standard"
name = "Standard"

[[experts]]
id = "general"
number = 1
domain = "general"
name = "General"
replicas = [{ base_url = "http://127.0.0.1:8000/v1", model = "m", api_key_env = "BACKEND_KEY" }]
rates = { input_1k = 2000, output_1k = 4000 }
"""
SECOND = """
[[experts]]
id = "other"
number = 2
domain = "general"
name = "Other"
replicas = [{ base_url = "http://127.0.0.1:8000/v1", model = "m" }]
rates = { per_call = 5, input_1k = 1, output_1k = 1 }
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("BACKEND_KEY", "sk-backend-secret")
    path = tmp_path / "c.toml"

    def write(text=CONFIG):
        path.write_text(text.replace("@DATA@", str(tmp_path / "data")), encoding="utf-8")
        return path

    write()
    return write


@pytest.fixture
def run(config, tmp_path):
    """Run a command on the configuration; returns what it printed, or raises what `main` would report."""

    def act(*words, as_json=True):
        words = (*words, str(tmp_path / "c.toml"), *(["--json"] if as_json else []))
        result = CliRunner().invoke(build_cli(), words, env={"COLUMNS": "200"})
        if isinstance(result.exception, ConfigError | BillingError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout) if as_json else result.stdout

    return act


@pytest.fixture
def books(tmp_path):
    (tmp_path / "data").mkdir()
    words = ["db", "upgrade", "--data-dir", str(tmp_path / "data")]
    assert CliRunner().invoke(build_cli(), words).exit_code == 0


def test_a_right_configuration_is_summarised(run, tmp_path):
    assert run("config", "check") == {
        "ok": True, "file": str(tmp_path / "c.toml"), "listens_on": "127.0.0.1:8181",
        "data_dir": str(tmp_path / "data"), "experts": ["general"], "default_expert": "general",
        "sla_tiers": ["standard"], "packages": [], "aliases": {"gpt-4o": "auto"},
    }  # fmt: skip
    text = run("config", "check", as_json=False)
    assert text.startswith(f"{tmp_path / 'c.toml'}: ok\n")
    assert "listens on: 127.0.0.1:8181" in text


def test_checking_touches_nothing_and_shows_no_secret(run, tmp_path):
    assert "sk-backend-secret" not in run("config", "check", as_json=False)
    assert [path.name for path in tmp_path.iterdir()] == ["c.toml"]


def test_a_wrong_configuration_is_named_by_file_line_and_field(run, config, tmp_path):
    config(CONFIG.replace("port = 8181", "port = 81810"))
    with pytest.raises(ConfigError) as caught:
        run("config", "check")
    line = CONFIG.splitlines().index("port = 8181") + 1
    assert str(caught.value).startswith(f"{tmp_path / 'c.toml'}: line {line}: server.port: ")


def test_a_backend_key_that_the_environment_lacks_is_named(run, monkeypatch):
    monkeypatch.delenv("BACKEND_KEY")
    with pytest.raises(InvalidCatalog, match="BACKEND_KEY"):
        run("config", "check")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["config", "check", "none.toml"], 1, "error: none.toml: can't be read"),
        (["config", "check"], 2, "Missing argument"),
        (["config", "chekc", "x"], 2, "chekc"),
        (["catalog", "apply", "none.toml"], 1, "error: none.toml: can't be read"),
    ],
)
def test_exit_codes_of_the_real_command(tmp_path, words, code, said):
    command = [sys.executable, "-m", "gateway", *words]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_dry_run_tells_all_and_changes_nothing(run, books):
    planned = run("catalog", "apply", "--dry-run")
    assert planned["applied"] is False
    assert "experts.general" in {change["what"] for change in planned["changes"]}
    assert run("catalog", "show") == {"version": 0, "catalog": {}}
    assert run("catalog", "diff") == planned


def test_applying_twice_changes_once(run, books):
    planned = run("catalog", "diff")["changes"]
    applied = run("catalog", "apply")
    assert (applied["applied"], applied["changes"]) == (True, planned)
    assert run("catalog", "apply")["changes"] == []
    assert run("catalog", "apply", as_json=False) == "nothing changes: this catalog is in force\n"
    shown = run("catalog", "show")
    assert shown["version"] == 1
    assert [expert["id"] for expert in shown["catalog"]["experts"]] == ["general"]
    assert "sk-backend-secret" not in json.dumps(shown)


def test_additions_changes_and_removals_are_told_apart(run, config, books):
    run("catalog", "apply")
    config(CONFIG.replace("input_1k = 2000", "input_1k = 3000") + SECOND)
    text = run("catalog", "diff", as_json=False)
    assert "+ experts.other" in text
    assert "~ experts.general" in text
    run("catalog", "apply")
    config(CONFIG.replace("input_1k = 2000", "input_1k = 3000"))
    assert "- experts.other" in run("catalog", "diff", as_json=False)


def test_the_table_shows_the_newest_prices(run, config, books):
    run("catalog", "apply")
    config(CONFIG.replace("input_1k = 2000", "input_1k = 3000"))
    run("catalog", "apply")
    table = run("catalog", "show", as_json=False)
    assert "catalog version 2" in table
    assert "3000" in table
    assert "2000" not in table


def test_a_wrong_catalog_is_refused_whole(run, config, books):
    run("catalog", "apply")
    before = run("catalog", "show")
    config(CONFIG + SECOND.replace("number = 2", "number = 1"))
    with pytest.raises(ConfigError, match=r"experts\.1\.number: '1' is used twice"):
        run("catalog", "apply")
    config()
    assert run("catalog", "show") == before


@pytest.mark.parametrize("command", ["apply", "diff", "show"])
def test_books_that_are_not_there_are_an_error_and_not_made(run, tmp_path, command):
    with pytest.raises(BillingError):
        run("catalog", command)
    assert not (tmp_path / "data").exists()

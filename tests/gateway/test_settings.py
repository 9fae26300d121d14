"""A wrong configuration names file, line and field."""

from importlib.resources import files

import pytest

from gateway.errors import ConfigError
from gateway.settings import line_of, load_settings

RIGHT = """\
data_dir = "data"
default_expert = "general"

[aliases]
"gpt-4o" = "auto"

[server]
port = 8080

[[sla_tiers]]
id = "standard"
name = "Standard"

[[experts]]
id = "general"
number = 1
domain = "general"
name = "General"

[[experts.replicas]]
base_url = "http://127.0.0.1:8000/v1"
model = "m"

[experts.rates]
input_1k = 2000
output_1k = 4000

[[experts]]
id = "other"
number = 2
domain = "general"
name = "Other"

[[experts.replicas]]
base_url = "http://127.0.0.1:8000/v1"
model = "m"

[experts.rates]
input_1k = 2000
output_1k = 4000
"""


def load(tmp_path, text=RIGHT, environ=None):
    path = tmp_path / "c.toml"
    path.write_text(text, encoding="utf-8")
    return load_settings(path, environ or {})


def line_with(text, part, occurrence=1):
    lines = [number for number, line in enumerate(text.splitlines(), 1) if part in line]
    return lines[occurrence - 1]


def test_a_right_file(tmp_path):
    settings = load(tmp_path)
    assert settings.server.port == 8080
    assert [expert.id for expert in settings.experts] == ["general", "other"]
    assert settings.store_url.endswith("/data/books.sqlite")
    assert settings.data_dir.is_absolute()


def test_the_demo_s_own_file_is_right(tmp_path):
    text = files("gateway.demo").joinpath("demo.toml").read_text(encoding="utf-8")
    for name, value in (("@DATA_DIR@", "d"), ("@PORT@", "1"), ("@ENGINE_PORT@", "2")):
        text = text.replace(name, value)
    assert len(load(tmp_path, text).experts) == 10


@pytest.mark.parametrize(
    ("old", "new", "where", "said"),
    [
        ("port = 8080", "port = 70000", "port = 70000", "server.port"),
        ("port = 8080", 'port = "many"', 'port = "many"', "server.port"),
        ("port = 8080", "prot = 8080", "prot", "server.prot: no such setting"),
        ("[server]", "[sever]", "[sever]", "sever: no such setting"),
        ("number = 2", 'number = "two"', 'number = "two"', "experts.1.number"),
        (
            '"gpt-4o" = "auto"',
            '"gpt-4o" = "expert/nobody"',
            '"gpt-4o"',
            "aliases.gpt-4o: 'expert/nobody'",
        ),
        ('default_expert = "general"', 'default_expert = "nobody"', "default_expert", "nobody"),
        ("number = 2", "number = 1", None, "line 30: experts.1.number: '1' is used twice"),
        ('id = "other"', 'id = "general"', None, "used twice"),
        ('id = "other"', 'id = "Other One"', 'id = "Other One"', "experts.1.id"),
        (
            'base_url = "http://127',
            'base_url = "ftp://127',
            'base_url = "ftp',
            "experts.0.replicas.0.base_url",
        ),
        ("input_1k = 2000", "input_1k = 0.5", "input_1k = 0.5", "experts.0.rates.input_1k"),
    ],
)
def test_each_fault_is_named(tmp_path, old, new, where, said):
    text = RIGHT.replace(old, new, 1)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "c.toml"))
    assert said in message
    if where is not None:
        assert f"line {line_with(text, where)}:" in message


def test_all_faults_of_a_file_are_told_at_once(tmp_path):
    text = RIGHT.replace("port = 8080", "port = -1").replace("number = 2", "number = -2")
    with pytest.raises(
        ConfigError, match=r"server\.port.*experts\.1\.number|experts\.1\.number.*server\.port"
    ):
        load(tmp_path, text)


@pytest.mark.parametrize("content", [b"port = ", b"\xff\xfe", b"a = 1\na = 2"])
def test_what_is_no_toml(tmp_path, content):
    path = tmp_path / "c.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"c\.toml"):
        load_settings(path, {})


def test_a_missing_file(tmp_path):
    with pytest.raises(ConfigError, match="can't be read"):
        load_settings(tmp_path / "none.toml", {})


def test_the_environment_overrides_the_file(tmp_path):
    environ = {"EXPERTGATE_SERVER__PORT": "9000", "EXPERTGATE_STORE": "sqlite:///x", "OTHER": "y"}
    settings = load(tmp_path, environ=environ)
    assert (settings.server.port, settings.store_url) == (9000, "sqlite:///x")


def test_a_wrong_value_in_the_environment_is_blamed_on_the_environment(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, environ={"EXPERTGATE_SERVER__PORT": "many"})
    assert "EXPERTGATE_SERVER__PORT: server.port: " in str(caught.value)
    assert "line" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("EXPERTGATE_EXPERTS__0", RIGHT),
        ("EXPERTGATE_SERVER__PORT", RIGHT.replace("[server]\nport = 8080", "")),
    ],
)
def test_a_variable_that_steps_into_no_section_is_named(tmp_path, variable, text):
    with pytest.raises(ConfigError, match=f"^{variable}: "):
        load(tmp_path, f"server = 7\n{text}" if "SERVER" in variable else text, {variable: "1"})


def test_an_unknown_setting_of_a_known_section_is_refused_and_others_names_are_not_ours(tmp_path):
    with pytest.raises(
        ConfigError, match=r"EXPERTGATE_SERVER__PROT: server\.prot: no such setting"
    ):
        load(tmp_path, environ={"EXPERTGATE_SERVER__PROT": "1"})
    assert load(tmp_path, environ={"EXPERTGATE_BILLING": "1", "EXPERTGATE_FAULT": "x"}) == load(
        tmp_path
    )


def test_lines_of_keys_tables_and_arrays_of_tables():
    assert line_of(RIGHT, ("server", "port")) == line_with(RIGHT, "port")
    assert line_of(RIGHT, ("aliases", "gpt-4o")) == line_with(RIGHT, "gpt-4o")
    assert line_of(RIGHT, ("experts", 1, "rates", "output_1k")) == line_with(RIGHT, "output_1k", 2)
    assert line_of(RIGHT, ("experts", 0, "replicas", 0, "model")) == line_with(RIGHT, "model", 1)
    # A field that is missing is blamed on its table.
    assert line_of(RIGHT, ("experts", 1, "domains")) == line_with(RIGHT, "[[experts]]", 2)
    assert line_of(RIGHT, ("nothing",)) == 0


def test_a_missing_field_names_its_table(tmp_path):
    text = RIGHT.replace('domain = "general"\nname = "Other"', 'name = "Other"')
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    line = line_with(text, "[[experts]]", 2)
    assert f"line {line}: experts.1.domain: " in str(caught.value)


def test_aliases_may_name_automatic_routing_and_experts(tmp_path):
    text = RIGHT.replace('"gpt-4o" = "auto"', '"gpt-4o" = "auto"\nlawyer = "expert/other"')
    assert load(tmp_path, text).aliases == {"gpt-4o": "auto", "lawyer": "expert/other"}

"""The settings: every variable of the contract's table, and what refuses the start."""

import re
from pathlib import Path

import pytest

from interpreter import settings
from interpreter.listen import parse_listen

CONTRACT = Path(settings.__file__).with_name("API.md")


def variables_of_the_contract() -> set[str]:
    table = CONTRACT.read_text().split("## Configuration")[1]
    return set(re.findall(r"\bSANDBOX_[A-Z_]*[A-Z]\b", table))


def test_every_variable_of_the_contract_is_there_and_no_other():
    ours = {settings.variable(field) for field in settings.Settings.model_fields}
    assert ours == variables_of_the_contract()


def test_every_variable_has_one_sentence():
    for field, info in settings.Settings.model_fields.items():
        assert info.description is not None, field
        assert info.description.endswith("."), field


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SANDBOX_IDLE_TLL", "5", "did you mean SANDBOX_IDLE_TTL?"),
        ("SANDBOX_FROBNICATE", "5", "cellbox config"),
        ("sandbox_memory_mb", "5", "did you mean SANDBOX_MEMORY_MB?"),
        ("SANDBOX_MEMORY_MB", "1g", "SANDBOX_MEMORY_MB must be a whole number, without a unit (it is '1g')."),
        ("SANDBOX_MEMORY_MB", "0", "SANDBOX_MEMORY_MB"),
        ("SANDBOX_MEMORY_MB", "-1", "SANDBOX_MEMORY_MB"),
        ("SANDBOX_MEMORY_MB", "1e99", "SANDBOX_MEMORY_MB"),
        ("SANDBOX_CPUS", "nan", "SANDBOX_CPUS"),
        ("SANDBOX_CPUS", "inf", "SANDBOX_CPUS"),
        ("SANDBOX_CPUS", "0", "SANDBOX_CPUS"),
        ("SANDBOX_IDLE_TTL", "10 minutes", "SANDBOX_IDLE_TTL must be seconds or a duration like 30s, 10m or 2h"),
        ("SANDBOX_IDLE_TTL", "0", "SANDBOX_IDLE_TTL"),
        ("SANDBOX_IDLE_TTL", "0.5s", "SANDBOX_IDLE_TTL"),
        ("SANDBOX_IDLE_TTL", "inf", "SANDBOX_IDLE_TTL"),
        ("SANDBOX_IDLE_TTL", "9" * 400, "SANDBOX_IDLE_TTL"),
        ("SANDBOX_IDLE_TTL", "-5", "SANDBOX_IDLE_TTL"),
        ("SANDBOX_RUNTIME_BACKEND", "podman", "SANDBOX_RUNTIME_BACKEND"),
        ("SANDBOX_RUNTIME_CHECKS", "ignore", "SANDBOX_RUNTIME_CHECKS"),
        ("SANDBOX_UID", "0", "SANDBOX_UID"),
        ("SANDBOX_DATA_ROOT", "data", "SANDBOX_DATA_ROOT must be an absolute path"),
        ("SANDBOX_DATA_ROOT", "/a/../b", "SANDBOX_DATA_ROOT must be an absolute path"),
        ("SANDBOX_LISTEN", "8090", "SANDBOX_LISTEN must be an address"),
        ("SANDBOX_LISTEN", "127.0.0.1:99999", "SANDBOX_LISTEN must be an address"),
        ("SANDBOX_LISTEN", "unix:rel", "SANDBOX_LISTEN"),
        ("SANDBOX_ALLOWED_HOSTS", "https://a.example", "SANDBOX_ALLOWED_HOSTS"),
        ("SANDBOX_ALLOWED_ORIGINS", "*", "SANDBOX_ALLOWED_ORIGINS"),
        ("SANDBOX_ALLOWED_ORIGINS", "https://a.example/path", "SANDBOX_ALLOWED_ORIGINS"),
        ("SANDBOX_DEFAULT_TIMEOUT", "601", "SANDBOX_DEFAULT_TIMEOUT is above SANDBOX_MAX_TIMEOUT"),
        ("SANDBOX_EGRESS_PORTS", "80,0", "SANDBOX_EGRESS_PORTS"),
        ("SANDBOX_API_KEY", "short", "SANDBOX_API_KEY has a key of less than 16 characters"),
        ("SANDBOX_API_KEY", "a" * 32 + ",short", "SANDBOX_API_KEY has a key of less than 16 characters"),
        ("SANDBOX_API_KEY", "schlüssel-schlüssel", "SANDBOX_API_KEY has a key with a space"),
    ],
)
def test_a_wrong_variable_is_refused_by_name(name, value, said):
    with pytest.raises(settings.SettingsError) as refused:
        settings.load({name: value})
    assert said in str(refused.value)
    if name == "SANDBOX_API_KEY":
        assert value not in str(refused.value)


def test_all_wrong_variables_are_said_at_once():
    with pytest.raises(settings.SettingsError) as refused:
        settings.load({"SANDBOX_X": "1", "SANDBOX_CPUS": "a", "SANDBOX_POOL": "b"})
    assert len(str(refused.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("name", "value", "field", "meant"),
    [
        ("SANDBOX_IDLE_TTL", "30s", "idle_ttl", 30),
        ("SANDBOX_IDLE_TTL", "10m", "idle_ttl", 600),
        ("SANDBOX_IDLE_TTL", "2h", "idle_ttl", 7200),
        ("SANDBOX_IDLE_TTL", "45", "idle_ttl", 45),
        ("SANDBOX_IDLE_TTL", "1.5", "idle_ttl", 1.5),
        ("SANDBOX_IDLE_TTL", "", "idle_ttl", 600),
        ("SANDBOX_UID", "", "uid", None),
        ("SANDBOX_UID", "1000", "uid", 1000),
        ("SANDBOX_API_KEY", "", "keys", ()),
        ("SANDBOX_API_KEY", " , ", "keys", ()),
        ("SANDBOX_API_KEY", "a" * 16 + ", " + "b" * 16, "keys", ("a" * 16, "b" * 16)),
        ("SANDBOX_EGRESS_ALLOWLIST", "", "egress_allowlist", ()),
        ("SANDBOX_EGRESS_PORTS", "80, 8080", "egress_ports", (80, 8080)),
        ("SANDBOX_ALLOWED_HOSTS", "Box.Example.org., b.example", "allowed_hosts", ("box.example.org", "b.example")),
        ("SANDBOX_ALLOWED_ORIGINS", "https://A.example", "allowed_origins", ("https://a.example",)),
    ],
)
def test_a_value_means_what_the_contract_says(name, value, field, meant):
    assert getattr(settings.load({name: value}), field) == meant


def test_defaults_are_those_of_the_contract():
    found = settings.load({})
    assert (found.listen, found.bind, found.image) == ("127.0.0.1:8090", "127.0.0.1", "cellbox-runtime:latest")
    assert (found.runtime_backend, found.network, found.runtime_checks) == ("auto", "none", "warn")
    assert (found.memory_mb, found.cpus, found.pids_limit, found.tmp_mb) == (1024, 1.0, 256, 512)
    assert (found.max_sessions, found.max_concurrent, found.max_queue, found.max_kernels) == (100, 200, 32, 8)
    assert (found.default_timeout, found.max_timeout, found.interrupt_grace) == (60, 600, 2)
    assert (found.max_output_kb, found.max_result_kb, found.max_code_kb) == (1024, 16384, 1024)
    assert (found.max_upload_mb, found.max_download_mb, found.max_spill_mb) == (2048, 8192, 64)
    assert (found.idle_ttl, found.result_ttl, found.drain_timeout) == (600, 600, 30)
    assert (found.pool, found.scope_quota_mb, found.uid, found.gid, found.uid_base) == (0, None, None, None, 200_000)
    assert (found.egress_allowlist, found.egress_ports) == (("@pypi", "@npm"), (80, 443))


def test_the_environment_of_the_process_is_not_mixed_in(monkeypatch):
    monkeypatch.setenv("SANDBOX_MEMORY_MB", "77")
    assert settings.load({}).memory_mb == 1024
    assert settings.load().memory_mb == 77


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SANDBOX_MOUNT_TARGET", "/data"),
        ("SANDBOX_USER_MOUNT_TARGET", "/home/me"),
    ],
)
def test_what_is_not_there_is_not_pretended(name, value):
    (sentence,) = settings.not_built(settings.load({name: value}))
    assert name in sentence


def test_a_network_of_the_engine_is_warned_about():
    (sentence,) = settings.warnings(settings.load({"SANDBOX_NETWORK": "bridge"}))
    assert "SANDBOX_NETWORK=bridge" in sentence


def test_the_defaults_need_nothing_that_is_not_there():
    assert settings.not_built(settings.load({})) == []
    assert settings.warnings(settings.load({})) == []


def test_settings_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        settings.load({}).memory_mb = 5


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("127.0.0.1:8090", True),
        ("127.8.8.8:1", True),
        ("[::1]:8090", True),
        ("localhost:8090", True),
        ("unix:/run/cellbox.sock", True),
        (":8090", False),
        ("0.0.0.0:8090", False),
        ("[::]:8090", False),
        ("10.0.0.1:8090", False),
        ("box.example:8090", False),
        ("localhost.evil.example:8090", False),
    ],
)
def test_only_this_machine_counts_as_local(text, local):
    assert parse_listen(text).is_local is local


@pytest.mark.parametrize("name", ["SANDBOX_PROXY_NETWORK", "SANDBOX_UID"])
def test_doubtful_values_are_warned_about(name):
    assert name in settings.warnings(settings.load({name: "1000"}))[0]

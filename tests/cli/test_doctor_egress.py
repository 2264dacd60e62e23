"""What ``cellbox doctor`` says of the way out."""

from __future__ import annotations

import ipaddress

import pytest

from interpreter import settings
from interpreter.cli import doctor_egress


def findings(monkeypatch, addresses: dict[str, str], **values: str) -> list[tuple[str, str, str]]:
    def answered(names):
        return {name: [ipaddress.ip_address(addresses[name])] if name in addresses else [] for name in names}

    monkeypatch.setattr(doctor_egress, "resolve", answered)
    given = {"network": "proxy", "egress_allowlist": ",".join(addresses), "data_root": "/nonexistent", **values}
    found = settings.load({f"SANDBOX_{name.upper()}": value for name, value in given.items()})
    return [(each.state, each.text, each.remedy) for each in doctor_egress.examine(found)]


def test_without_a_way_out_there_is_nothing_to_say(monkeypatch):
    assert findings(monkeypatch, {"data.example": "198.18.0.7"}, network="none") == []


def test_a_resolver_with_addresses_of_its_own_is_recognised(monkeypatch):
    ((state, text, remedy),) = findings(monkeypatch, {"data.example": "198.19.3.7", "more.example": "198.18.0.8"})
    assert state == "warning"
    assert "fake-ip" in text
    assert "data.example with 198.19.3.7" in text
    assert remedy.startswith("SANDBOX_EGRESS_PRIVATE_CIDRS=198.18.0.0/15 ")


def test_it_is_no_trouble_once_its_addresses_are_allowed(monkeypatch):
    ((state, text, _),) = findings(
        monkeypatch, {"data.example": "198.19.3.7"}, egress_private_cidrs="198.18.0.0/15,10.0.0.0/8"
    )
    assert (state, text) == ("ok", "1 of the allowed hosts have addresses that may be reached")


@pytest.mark.parametrize("address", ["10.1.2.3", "203.0.113.80", "127.0.0.1", "fd00::1"])
def test_other_addresses_that_are_refused_are_named(monkeypatch, address):
    ((state, text, remedy),) = findings(monkeypatch, {"data.example": address, "good.example": "9.9.9.9"})
    assert state == "warning"
    assert address in text
    assert remedy.startswith(f"SANDBOX_EGRESS_PRIVATE_CIDRS={address} ")


def test_a_name_without_an_address_a_wrong_file_and_a_missing_proxy_are_named(monkeypatch, tmp_path):
    (tmp_path / "policies.yaml").write_text("scopes: [no]")
    said = findings(
        monkeypatch,
        {"good.example": "9.9.9.9"},
        egress_allowlist="good.example,gone.example,*.below.example",
        egress_policy_file=str(tmp_path / "policies.yaml"),
        egress_control=str(tmp_path / "nobody"),
    )
    assert [state for state, _, _ in said] == ["error", "error", "warning"]
    assert "scopes has to be a mapping" in said[0][1]
    assert "no proxy listens" in said[1][1]
    assert said[2][1] == "gone.example has no address here"

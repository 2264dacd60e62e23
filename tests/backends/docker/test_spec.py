"""What the engine is told to make: rules S2, S4, S5, S7, S8 and S11, without an engine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from interpreter.backends import inside
from interpreter.backends.base import Limits, SandboxId, SandboxSpec
from interpreter.backends.docker import spec

GOLDEN = Path(__file__).with_name("container.json")
PLACE = spec.Place("0123456789abcdef", "cellbox-runtime:latest")
ACCOUNTS = spec.Accounts(Path("/data/.accounts/200000.passwd"), Path("/data/.accounts/200000.group"))
WANTED = SandboxSpec(
    id=SandboxId("fedcba9876543210"),
    uid=200_000,
    gid=200_001,
    workspace=Path("/data/my-scope/sessions/my-session"),
    user=Path("/data/my-scope/workspace"),
    link_dir=Path("/data/.run/fedcba9876543210"),
    limits=Limits(memory_mib=512, cpus=1.5, pids=100, tmp_mib=64),
    environment={"SECRET": "of-the-tenant"},
)


def built(wanted: SandboxSpec = WANTED, place: spec.Place = PLACE) -> dict[str, Any]:
    shown = spec.binds(wanted, ACCOUNTS)
    return spec.container(wanted, place, shown, ["/opt/cellbox/venv/bin/python", "x"], uid=200_000, gid=200_001)


def test_the_container_is_the_golden_one() -> None:
    """Whoever changes it looks at what that opens. ``json.dumps(built(), indent=2, sort_keys=True)`` writes it anew."""
    assert built() == json.loads(GOLDEN.read_text())


def test_no_destination_lies_inside_a_place_that_a_tenant_can_write() -> None:
    host = built()["HostConfig"]
    writable = [mount["Target"] for mount in host["Mounts"] if not mount["ReadOnly"]] + list(host["Tmpfs"])
    everything = [mount["Target"] for mount in host["Mounts"]] + list(host["Tmpfs"])
    assert len(set(everything)) == len(everything)
    for place in everything:
        parents = {str(parent) for parent in PurePosixPath(place).parents}
        assert not parents & set(writable), place


def test_every_bind_is_a_structured_private_mount() -> None:
    host = built()["HostConfig"]
    assert host["Binds"] == []
    assert "Volumes" not in built()
    for mount in host["Mounts"]:
        assert mount["Type"] == "bind"
        assert mount["BindOptions"] == {"Propagation": "rprivate"}
    assert {mount["Target"] for mount in host["Mounts"] if not mount["ReadOnly"]} == {"/opt/user", "/opt/workspace"}


def test_a_scope_without_a_session_has_one_directory_at_both_places() -> None:
    host = built(replace(WANTED, workspace=WANTED.user))["HostConfig"]
    sources = {mount["Target"]: mount["Source"] for mount in host["Mounts"]}
    assert sources["/opt/user"] == sources["/opt/workspace"] == "/data/my-scope/workspace"


def test_no_name_of_a_scope_or_session_is_in_labels_name_or_environment() -> None:
    made = built()
    told = json.dumps([made["Labels"], made["Env"], made["Hostname"], spec.name(PLACE, WANTED.id)])
    assert "my-" not in told
    assert "of-the-tenant" not in told


@pytest.mark.parametrize(("cpus", "quota"), [(0.001, 1000), (0.5, 50_000), (1.5, 150_000), (64, 6_400_000)])
def test_processor_time_is_a_quota_whatever_the_host_has(cpus: float, quota: int) -> None:
    limits = spec.limits_of(replace(WANTED.limits, cpus=cpus))
    assert (limits["CpuQuota"], limits["CpuPeriod"]) == (quota, 100_000)


def test_a_named_network_and_runtime_are_handed_on() -> None:
    host = built(place=replace(PLACE, runtime="runsc", network="lan"))["HostConfig"]
    assert (host["Runtime"], host["NetworkMode"]) == ("runsc", "lan")
    assert "Dns" not in host


def test_under_gvisor_the_limit_of_processes_holds_inside_and_the_host_has_room_for_its_kernel() -> None:
    """S16: at the limit of its cgroup gVisor's kernel crashes, and with it all that its tenant has."""
    plain, gvisor = spec.limits_of(WANTED.limits), spec.limits_of(WANTED.limits, "runsc")
    (nproc,) = [each for each in gvisor["Ulimits"] if each["Name"] == "nproc"]
    assert nproc["Hard"] == nproc["Soft"] == plain["PidsLimit"]
    assert gvisor["PidsLimit"] >= 2048 + plain["PidsLimit"]
    assert spec.kernel_limits(WANTED.limits, "runsc")["pids.max"] == str(gvisor["PidsLimit"])
    assert built(place=replace(PLACE, runtime="runsc"))["HostConfig"]["PidsLimit"] == gvisor["PidsLimit"]


def test_a_configuration_is_what_an_engine_that_took_it_over_says() -> None:
    wanted = built()["HostConfig"]
    said = {
        **json.loads(json.dumps(wanted)),
        "Binds": None,
        "CapAdd": None,
        "Devices": [],
        "Ulimits": list(reversed(wanted["Ulimits"])),
        "PidMode": "",
        "MaskedPaths": ["/proc/kcore"],
        "ShmSize": 67108864,
    }
    assert spec.ignored(wanted, said) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Memory", 0),
        ("MemorySwap", -1),
        ("PidsLimit", None),
        ("CpuQuota", 0),
        ("Ulimits", None),
        ("CapDrop", None),
        ("CapAdd", ["SYS_ADMIN"]),
        ("SecurityOpt", None),
        ("ReadonlyRootfs", False),
        ("Privileged", True),
        ("LogConfig", {"Type": "json-file", "Config": {}}),
        ("NetworkMode", "bridge"),
        ("IpcMode", "host"),
        ("PidMode", "host"),
        ("UTSMode", "host"),
        ("CgroupnsMode", "host"),
        ("OomScoreAdj", 0),
        ("Devices", [{"PathOnHost": "/dev/sda"}]),
        ("Tmpfs", {"/tmp": ""}),
        ("Mounts", []),
        ("Binds", ["/:/host"]),
    ],
)
def test_what_the_engine_made_otherwise_is_named(key: str, value: Any) -> None:
    wanted = built()["HostConfig"]
    assert spec.ignored(wanted, {**wanted, key: value}) == [key]


def test_a_missing_answer_is_no_agreement() -> None:
    wanted = built()["HostConfig"]
    assert {"Memory", "CapDrop", "ReadonlyRootfs", "Mounts"} <= set(spec.ignored(wanted, {}))


def test_the_names_of_the_ids_inside() -> None:
    assert f"sandbox:x:200000:200001:sandbox:{inside.USER}:/bin/bash\n" in spec.passwd(200_000, 200_001)
    assert "sandbox:x:200001:\n" in spec.group(200_001)

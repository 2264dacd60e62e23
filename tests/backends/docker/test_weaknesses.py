"""Rule S15: what an engine says of itself, judged."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from interpreter.backends.docker import weaknesses
from tests.fakes.engine import INFO, VERSION

DEBIAN = {"Version": "1.1.5+ds1", "Details": {"GitCommit": "1.1.5+ds1-1+deb12u1"}}
FIXES = "runc (1.1.5+ds1-1+deb12u2): CVE-2025-31133, CVE-2025-52565, CVE-2025-52881\n"


def version(**parts: dict[str, Any]) -> dict[str, Any]:
    """The version of a good engine with other parts."""
    made = copy.deepcopy(VERSION)
    made["Components"] = [{**part, **parts.get(part["Name"], {})} for part in made["Components"]]
    return made


def found(said: dict[str, Any], info: dict[str, Any] | None = None, changes: str = "") -> list[str]:
    return weaknesses.found(said, info or INFO, changes=lambda package: changes if package == "runc" else "")


def found_of_gvisor(said: str, changes: str = "", runtime: str = "runsc") -> list[str]:
    """The findings where its program says this of its version, and its package, if there is one, this of its changes."""
    info = {**INFO, "Runtimes": {"runsc": {"path": "/opt/runsc"}}}
    return weaknesses.found(
        VERSION,
        info,
        runtime=runtime,
        changes=lambda package: changes if package == "runsc" else "",
        program=lambda path: said if path == "/opt/runsc" else "",
    )


def test_a_good_engine_is_neither_refused_nor_warned_about() -> None:
    assert weaknesses.refusal(VERSION, INFO, runtime="") is None
    assert found(VERSION) == []


@pytest.mark.parametrize(
    ("name", "number", "good"),
    [
        ("runc", "1.1.15", False),
        ("runc", "1.2.7", False),
        ("runc", "1.2.8", True),
        ("runc", "1.3.2", False),
        ("runc", "1.3.3", True),
        ("runc", "1.4.0", True),
        ("runc", "2.0.0", True),
        ("runc", "", False),
        ("containerd", "1.7.28", False),
        ("containerd", "v1.7.29", True),
        ("containerd", "2.0.6", False),
        ("containerd", "2.1.5", True),
        ("containerd", "2.2.0", True),
    ],
)
def test_versions_with_known_holes(name: str, number: str, good: bool) -> None:
    said = found(version(**{name: {"Version": number}}))
    assert (said == []) is good
    assert all(name in sentence and "CVE-" in sentence for sentence in said)


def test_a_package_of_a_distribution_is_judged_by_its_list_of_changes() -> None:
    (sentence,) = found(version(runc=DEBIAN))
    assert "1.1.5+ds1-1+deb12u1" in sentence
    assert found(version(runc=DEBIAN), changes=FIXES) == []
    (_,) = found(version(runc=DEBIAN), changes=FIXES.replace("CVE-2025-52881", ""))


def test_the_list_of_changes_says_nothing_about_a_version_from_elsewhere() -> None:
    (_,) = found(version(runc={"Version": "1.1.5", "Details": {"GitCommit": "v1.1.5-0-gf19387a6"}}), changes=FIXES)


def test_a_list_of_changes_that_is_not_to_be_seen_is_no_proof_of_holes() -> None:
    (sentence,) = found(version(runc=DEBIAN))
    assert "may have known holes" in sentence
    (sentence,) = found(version(runc=DEBIAN), changes="runc (1.1.5+ds1-1+deb12u1): CVE-2024-21626")
    assert "has known holes" in sentence
    (sentence,) = found(version(runc={"Version": "1.1.5"}))
    assert "has known holes" in sentence


@pytest.mark.parametrize(
    ("said", "holes"),
    [
        ("runsc version release-20221219.0", 4),
        ("runsc version release-20241021.0", 4),
        ("runsc version release-20241028.0", 2),
        ("runsc version release-20250317.0-12-g0123456789ab", 2),
        ("runsc version release-20250319.0", 1),
        ("runsc version release-20260921.0", 1),
        ("runsc version release-20260928.0", 0),
        ("runsc version release-20261116.0", 0),
    ],
)
def test_releases_of_gvisor_with_known_holes(said: str, holes: int) -> None:
    sentences = found_of_gvisor(said)
    assert sum(sentence.count("CVE-") for sentence in sentences) == holes
    assert all("gVisor 20" in sentence and "upgrade to 20260928.0" in sentence for sentence in sentences)
    assert found_of_gvisor(said, runtime="runc") == [], "of the runtime that sandboxes have"


def test_a_package_of_gvisor_is_judged_by_its_list_of_changes() -> None:
    debian = "runsc version 0.0~20240729.0"
    (sentence,) = found_of_gvisor(debian)
    assert "may have known holes" in sentence
    (sentence,) = found_of_gvisor(debian, "golang-gvisor-gvisor (0.0~20240729.0-5): CVE-2025-2713\n")
    assert "has known holes (CVE-2024-10026, CVE-2024-10603, CVE-2026-96812)" in sentence
    assert found_of_gvisor(debian, "CVE-2025-2713 CVE-2024-10026 CVE-2024-10603 CVE-2026-96812") == []
    (_,) = found_of_gvisor(
        "runsc version release-20221219.0", "CVE-2025-2713 CVE-2024-10026 CVE-2024-10603 CVE-2026-96812"
    )


@pytest.mark.parametrize("said", ["", "runsc version VERSION_MISSING", "\x00", "release-2025"])
def test_a_gvisor_of_which_the_version_is_not_to_be_seen_is_named(said: str) -> None:
    (sentence,) = found_of_gvisor(said)
    assert "/opt/runsc --version" in sentence


def test_the_program_of_gvisor_is_asked_only_where_the_engine_is_here(tmp_path: Path) -> None:
    program = tmp_path / "runsc"
    program.write_text('#!/bin/sh\ntouch "$0.asked"\necho runsc version release-20261116.0\n')
    program.chmod(0o755)
    info = {**INFO, "Runtimes": {"runsc": {"path": str(program)}}}
    (_,) = weaknesses.found(VERSION, info, runtime="runsc", here=False)
    assert not (tmp_path / "runsc.asked").exists()
    assert weaknesses.found(VERSION, info, runtime="runsc") == []
    program.unlink()
    (_,) = weaknesses.found(VERSION, info, runtime="runsc")


def test_what_is_old_or_has_no_filter_is_named() -> None:
    (engine,) = found({**VERSION, "Version": "24.0.9"})
    (kernel,) = found({**VERSION, "KernelVersion": "5.4.0-200-generic"})
    (filter_,) = found(VERSION, {**INFO, "SecurityOptions": ["name=seccomp,profile=unconfined"]})
    (none,) = found(VERSION, {**INFO, "SecurityOptions": None})
    assert "24.0.9" in engine
    assert "5.4.0" in kernel
    assert "seccomp" in filter_
    assert "seccomp" in none


def test_an_engine_that_hides_its_parts_is_named() -> None:
    assert len(found({"Version": "28.0.0", "KernelVersion": "6.1", "Components": []})) == 2


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"OSType": "windows"}, "Linux"),
        ({"MemoryLimit": False}, "memory"),
        ({"SwapLimit": False}, "swapaccount=1"),
        ({"PidsLimit": False}, "processes"),
        ({"CpuCfsQuota": False}, "processor time"),
        ({"SecurityOptions": ["name=rootless"]}, "rootless"),
        ({"SecurityOptions": ["name=seccomp,profile=builtin", "name=userns"]}, "userns-remap"),
    ],
)
def test_what_an_engine_must_have(change: dict[str, Any], word: str) -> None:
    refusal = weaknesses.refusal(VERSION, {**INFO, **change}, runtime="")
    assert refusal is not None
    assert word in refusal


def test_an_engine_without_cgroup_namespaces_or_the_runtime_is_refused() -> None:
    assert "too old" in str(weaknesses.refusal({**VERSION, "ApiVersion": "1.40"}, INFO, runtime=""))
    assert "daemon.json" in str(weaknesses.refusal(VERSION, INFO, runtime="runsc"))
    assert weaknesses.refusal(VERSION, INFO, runtime="runc") is None


@pytest.mark.parametrize(
    ("arguments", "network", "word"),
    [
        (None, "none", "--host-uds=open"),
        (["--network=none"], "none", "--host-uds=open"),
        (["--host-uds=none", "--network=none"], "none", "--host-uds=open"),
        (["--host-uds=open", "--network=none"], "lan", "SANDBOX_NETWORK=lan"),
    ],
)
def test_a_wrong_registration_of_gvisor_is_refused_with_the_right_one(
    arguments: list[str] | None, network: str, word: str
) -> None:
    info = {**INFO, "Runtimes": {"runsc": {"path": "/usr/bin/runsc", "runtimeArgs": arguments}}}
    refusal = weaknesses.refusal(VERSION, info, runtime="runsc", network=network)
    assert refusal is not None
    cause, _, remedy = refusal.partition(": ")
    assert word in cause
    assert "systemctl reload docker" in remedy
    right, _ = json.JSONDecoder().raw_decode(remedy[remedy.index("{") :])
    right["runtimes"]["runsc"]["path"] = "/usr/bin/runsc"
    assert (
        weaknesses.refusal(VERSION, {**INFO, "Runtimes": right["runtimes"]}, runtime="runsc", network=network) is None
    )


@pytest.mark.parametrize("flag", ["--host-uds=open", "-host-uds=all", "--fsgofer-host-uds"])
def test_gvisor_may_be_registered_in_each_way_that_lets_sandboxes_connect(flag: str) -> None:
    info = {**INFO, "Runtimes": {"runsc": {"path": "/usr/bin/runsc", "runtimeArgs": [flag]}}}
    assert weaknesses.refusal(VERSION, info, runtime="runsc") is None

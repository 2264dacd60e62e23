"""``cellbox doctor``: what it finds, what it says to type, and that it needs neither service nor engine."""

import json
import os
import re
import resource
import time
from pathlib import Path

import pytest

from interpreter import cli
from interpreter.backends.docker import weaknesses
from interpreter.backends.docker.image import INPUTS, digest, inputs
from interpreter.cli import doctor, doctor_engine, doctor_host
from interpreter.cli.doctor_engine import Engine
from interpreter.settings import Settings
from tests import engines, mounting

NOBODY = "unix:///nowhere/docker.sock"
INFO = {
    "OSType": "linux",
    "MemoryLimit": True,
    "SwapLimit": True,
    "PidsLimit": True,
    "CpuCfsQuota": True,
    "CgroupVersion": "2",
    "CgroupDriver": "systemd",
    "DefaultRuntime": "runc",
    "DockerRootDir": "/var/lib/docker",
    "Runtimes": {"runc": {"path": "runc"}, "runsc": {"path": "/usr/bin/runsc", "runtimeArgs": ["--host-uds=open"]}},
    "SecurityOptions": ["name=seccomp,profile=builtin"],
    "SystemTime": "2026-11-30T12:00:00.123456789Z",
}
VERSION = {
    "Version": "28.5.1",
    "ApiVersion": "1.51",
    "KernelVersion": "6.12.0",
    "Components": [{"Name": "runc", "Version": "1.3.3"}, {"Name": "containerd", "Version": "2.1.5"}],
}
NOON = 1796040000.0
IMAGE = {"Config": {"Labels": {INPUTS: digest(inputs())}}}


def engine(*, info=None, version=None, **fields) -> Engine:
    values = {"image": IMAGE, "asked_at": NOON, **fields}
    return Engine("unix:///var/run/docker.sock", "", {**VERSION, **(version or {})}, {**INFO, **(info or {})}, **values)


def found(one: Engine, *, needed: bool = True, **values):
    return list(doctor_engine.examine(Settings(**values), one, needed=needed))


def wrong(findings):
    return [(each.what, each.state) for each in findings if each.state != "ok"]


def test_a_quota_is_tried_and_what_it_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounting.need()
    assert doctor_host.quota(tmp_path / "data", 16, apart=False).state == "ok"
    assert list(tmp_path.iterdir()) == []
    promised = doctor_host.quota(tmp_path, 2**24 - 1, apart=False)
    assert (promised.state, "df -h" in promised.remedy) == ("warning", True)
    monkeypatch.setattr("interpreter.scopes.images._PATH", "/nowhere")
    lacks = doctor_host.quota(tmp_path, 16, apart=False)
    assert (lacks.state, lacks.text) == ("error", "mkfs.ext4 is missing")
    assert "e2fsprogs" in lacks.remedy


def test_a_good_engine_is_all_ok() -> None:
    findings = found(engine())
    assert wrong(findings) == []
    assert [each.what for each in findings] == ["engine", "image", "runtime", "cgroups"]


@pytest.mark.parametrize(
    ("one", "values", "expected", "typed"),
    [
        (Engine(NOBODY, "it does not answer: start it"), {}, ("engine", "error"), "start it"),
        (engine(info={"PidsLimit": False}), {}, ("engine", "error"), ""),
        (engine(image=None), {}, ("image", "error"), "cellbox image build"),
        (engine(image={"Config": {"Labels": None}}), {}, ("image", "warning"), "cellbox image build"),
        (engine(image={"Config": {"Labels": {INPUTS: "0" * 64}}}), {}, ("image", "warning"), "cellbox image build"),
        (engine(info={"Runtimes": {}}), {"runtime": "kata"}, ("runtime", "error"), '"kata" under "runtimes"'),
        (engine(), {"network": "lan"}, ("network", "error"), "docker network create"),
        (engine(asked_at=NOON + 60), {}, ("clock", "warning"), "timedatectl"),
        (engine(version={"Components": [{"Name": "runc", "Version": "1.1.0"}, {"Name": "containerd", "Version": "2.1.5"}]}),
         {}, ("runtime", "warning"), "upgrade"),
        (engine(version={"Components": [{"Name": "runc", "Version": "1.1.0"}, {"Name": "containerd", "Version": "2.1.5"}]}),
         {"runtime_checks": "refuse"}, ("runtime", "error"), "upgrade"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_engine_says_what_to_type(one, values, expected, typed) -> None:
    findings = found(one, **values)
    assert wrong(findings) == [expected]
    (line,) = [each for each in findings if each.state != "ok"]
    assert line.remedy
    assert typed in line.remedy
    assert wrong(found(one, needed=False, **values)) == []


@pytest.mark.parametrize("runtimes", [{}, {"runsc": {"path": "/usr/bin/runsc"}}])
def test_gvisor_is_registered_with_the_line_that_is_printed(runtimes, monkeypatch) -> None:
    monkeypatch.setattr(weaknesses, "_program", lambda _path: "runsc version release-20261116.0")
    (line,) = [each for each in found(engine(info={"Runtimes": runtimes}), runtime="runsc") if each.state == "error"]
    printed = next(text for text in line.remedy.splitlines() if text.startswith("{"))
    registered = json.loads(printed)["runtimes"]
    assert registered["runsc"]["runtimeArgs"] == ["--host-uds=open", "--network=none"]
    again = {name: {"path": each["path"], "runtimeArgs": each["runtimeArgs"]} for name, each in registered.items()}
    assert wrong(found(engine(info={"Runtimes": again}), runtime="runsc")) == []


@pytest.mark.parametrize(("checks", "state"), [("warn", "warning"), ("refuse", "error")])
def test_a_gvisor_with_known_holes_says_what_to_upgrade_to(checks, state, monkeypatch) -> None:
    monkeypatch.setattr(weaknesses, "_program", lambda _path: "runsc version release-20250319.0")
    findings = found(engine(), runtime="runsc", runtime_checks=checks)
    assert wrong(findings) == [("runtime", state)]
    (line,) = [each for each in findings if each.state == state]
    assert "CVE-2026-96812" in line.text
    assert "upgrade to 20260928.0" in line.remedy
    assert wrong(found(engine(), runtime_checks=checks)) == [], "not the runtime of the sandboxes"


@engines.needed
def test_a_real_engine_is_asked() -> None:
    one = doctor_engine.ask(Settings(image="no-such-image:ever", network="no-such-network"), engines.ADDRESS)
    assert (one.trouble, one.image, one.network) == ("", None, None)
    assert one.version["Version"]
    states = wrong(found(one, image="no-such-image:ever", network="no-such-network"))
    assert {("image", "error"), ("network", "error")} <= set(states)
    assert "engine" not in [what for what, _ in states]


def test_nobody_at_the_socket_is_an_error_only_where_an_engine_is_needed() -> None:
    one = doctor_engine.ask(Settings(), NOBODY)
    assert wrong(found(one)) == [("engine", "error")]
    assert wrong(found(one, needed=False)) == []


# --- this machine ---------------------------------------------------------------------------------------------------


def test_the_backend_is_the_one_a_service_would_use(tmp_path: Path, monkeypatch) -> None:
    there = Settings(data_root=tmp_path)
    monkeypatch.setattr(doctor.shutil, "which", lambda _: None)
    assert doctor.chosen(there, has_image=True)[0] == "docker"
    assert doctor.chosen(there, has_image=False)[1].state == "error"
    monkeypatch.setattr(doctor.shutil, "which", lambda _: "/usr/bin/bwrap")
    assert doctor.chosen(there, has_image=False)[0] == "bubblewrap"
    (tmp_path / ".backend").write_text("docker")
    assert doctor.chosen(there, has_image=False)[0] == "docker"
    assert doctor.chosen(Settings(data_root=tmp_path, runtime_backend="process"), has_image=True)[1].state == "warning"


V1 = "31 23 0:29 / {place} rw - cgroup cgroup rw,memory\n32 23 0:30 / {place} rw - cgroup cgroup rw,pids,cpu\n"
V2 = "31 23 0:29 / {place} rw - cgroup2 cgroup2 rw\n"


@pytest.mark.parametrize(
    ("mounts", "controllers", "state", "said"),
    [
        (V1, "", "ok", "version 1"),
        (V2, "cpuset cpu io memory pids", "ok", "version 2"),
        (V1.splitlines()[0] + "\n", "", "error", "cpu, pids"),
        (V2, "cpu memory", "error", "pids"),
        ("31 23 0:29 / / rw - ext4 /dev/vda rw\n", "", "error", "no cgroups are mounted"),
        (V1 + V2, "", "ok", "version 1"),
    ],
)
def test_cgroups_of_both_versions(tmp_path: Path, mounts, controllers, state, said) -> None:
    (tmp_path / "cgroup.controllers").write_text(controllers)
    (tmp_path / "mountinfo").write_text(mounts.format(place=tmp_path))
    (tmp_path / "cgroup").write_text("0::/\n")
    finding = doctor_host.cgroups(tmp_path, is_root=True)
    assert finding.state == state
    assert said in finding.text
    if state == "error":
        without_root = doctor_host.cgroups(tmp_path, is_root=False)
        assert without_root.state == "warning"
        assert "systemd-run --user" in without_root.remedy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kernel/apparmor_restrict_unprivileged_userns", "1"),
        ("kernel/unprivileged_userns_clone", "0"),
        ("user/max_user_namespaces", "0"),
    ],
)
def test_what_forbids_namespaces_is_named(tmp_path: Path, name, value) -> None:
    (tmp_path / "sys" / name).parent.mkdir(parents=True)
    (tmp_path / "sys" / name).write_text(f"{value}\n")
    assert name.replace("/", ".") in doctor_host.remedy_of_namespaces(tmp_path)


def test_namespaces_are_tried(tmp_path: Path, monkeypatch) -> None:
    bwrap = tmp_path / "bwrap"
    monkeypatch.setattr(doctor_host.shutil, "which", lambda _: str(bwrap))
    for script, state in (("exit 0", "ok"), ("echo 'setting up uid map: Permission denied' >&2; exit 1", "error")):
        bwrap.write_text(f"#!/bin/sh\n{script}\n")
        bwrap.chmod(0o755)
        finding = doctor_host.namespaces()
        assert finding.state == state
    assert "Permission denied" in finding.text


@pytest.mark.parametrize(("said", "state"), [("4096\n", "warning"), ("1048576\n", "ok"), ("?", "ok")])
def test_terminals_of_the_machine_that_one_scope_can_take_are_named(tmp_path: Path, said, state) -> None:
    (tmp_path / "max").write_text(said)
    finding = doctor_host.terminals(tmp_path / "max")
    assert finding.state == state
    assert ("kernel.pty.max=1048576" in finding.remedy) is (state == "warning")
    assert doctor_host.terminals(tmp_path / "none").state == "ok"


def test_a_clock_before_our_own_files_is_wrong() -> None:
    assert doctor_host.clock(time.time(), time.time()).state == "ok"
    assert doctor_host.clock(0.0, time.time()).state == "error"


@pytest.mark.parametrize(("free", "state"), [(2**31, "ok"), (2**28, "warning"), (2**20, "error")])
def test_the_room_on_the_disk(tmp_path: Path, monkeypatch, free, state) -> None:
    real = os.statvfs(tmp_path)
    few = os.statvfs_result((4096, 4096, *real[2:4], free // 4096, *real[5:]))
    monkeypatch.setattr(doctor_host.os, "statvfs", lambda _: few)
    assert next(doctor_host.disk("disk", tmp_path / "not" / "there")).state == state


def test_the_data_root_has_to_be_ours_alone(tmp_path: Path) -> None:
    def states(path: Path, euid: int) -> str:
        return next(doctor_host.data_root(path, euid=euid)).state

    ours = os.geteuid()
    root = tmp_path / "data"
    assert states(root, ours) == "ok"
    root.mkdir(mode=0o755)
    assert states(root, ours) == "warning"
    root.chmod(0o700)
    assert states(root, ours) == "ok"
    assert states(root, ours + 1) == "error"
    (tmp_path / "file").touch()
    assert states(tmp_path / "file", ours) == "error"
    assert not list(root.iterdir())


def test_too_few_descriptors_are_an_error_with_the_number_that_is_needed() -> None:
    assert doctor_host.descriptors(100, 65_536, "docker").state == "ok"
    assert doctor_host.descriptors(100, resource.RLIM_INFINITY, "docker").state == "ok"
    for allowed, said in ((256, "too few to start with"), (1024, "fewer than SANDBOX_MAX_SESSIONS=400")):
        few = doctor_host.descriptors(400, allowed, "bubblewrap")
        assert few.state == "error"
        assert said in few.text
        enough = int(re.findall(r"ulimit -Hn (\d+)", few.remedy)[0])
        assert doctor_host.descriptors(400, enough, "bubblewrap").state == "ok"


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_without_an_engine(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("DOCKER_HOST", NOBODY)
    monkeypatch.setenv("SANDBOX_DATA_ROOT", str(tmp_path / "data"))
    monkeypatch.setenv("SANDBOX_RUNTIME_BACKEND", "docker")
    assert cli.main(["doctor"]) == 1
    plain = capsys.readouterr().out
    assert "error    engine" in plain
    assert "systemctl start docker" in plain
    assert cli.main(["doctor", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert not said["ok"]
    assert {each["state"] for each in said["findings"]} <= {"ok", "warning", "error"}
    assert all(each["remedy"] for each in said["findings"] if each["state"] != "ok")
    monkeypatch.setenv("SANDBOX_RUNTIME_BACKEND", "process")
    assert cli.main(["doctor"]) == 0
    assert not (tmp_path / "data").exists()


def test_wrong_settings_end_it_with_2(monkeypatch, capsys) -> None:
    monkeypatch.setenv("SANDBOX_CPUS", "none")
    assert cli.main(["doctor"]) == 2
    assert "SANDBOX_CPUS" in capsys.readouterr().err

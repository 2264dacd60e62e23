"""The command line of bwrap, word for word, and the rules that its mount table keeps."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from interpreter.backends import inside
from interpreter.backends.base import SandboxId, SandboxSpec
from interpreter.backends.bubblewrap import argv
from interpreter.backends.environment import Environment

ENVIRONMENT = Environment(
    venv=Path("/srv/venv"),
    base=Path("/home/me/python"),
    version="3.11",
    tree=Path("/srv/venv/inside/abc"),
    etc=(Path("/etc/ssl/certs"), Path("/etc/fonts")),
    libpython=Path("/home/me/python/lib/libpython3.11.so.1.0"),
    masked=("/opt/cellbox/python/lib/python3.11/site-packages",),
)
SPEC = SandboxSpec(
    id=SandboxId("0123456789abcdef"),
    uid=200_000,
    gid=200_000,
    workspace=Path("/data/acme/sessions/chatA"),
    user=Path("/data/acme/workspace"),
    link_dir=Path("/data/.run/0123456789abcdef"),
)
GOLDEN = """
--unshare-user --unshare-ipc --unshare-pid --unshare-net --unshare-uts --unshare-cgroup
--disable-userns --cap-drop ALL --die-with-parent --new-session --as-pid-1
--uid 1000 --gid 1000 --hostname sandbox --seccomp 100 --info-fd 101
--proc /proc --dev /dev
--bind /room/0 /dev/shm
--bind /room/1 /tmp
--bind /room/2 /run/kernels
--ro-bind /src/0 /usr
--ro-bind /src/1 /etc
--ro-bind /src/2 /etc/ssl/certs
--ro-bind /src/3 /etc/fonts
--ro-bind /src/4 /opt/cellbox
--ro-bind /src/5 /opt/cellbox/venv/lib
--ro-bind /src/6 /opt/cellbox/python
--ro-bind /src/7 /opt/cellbox/python/lib/python3.11/site-packages
--ro-bind /src/8 /home/me/python/lib/libpython3.11.so.1.0
--ro-bind /src/9 /run/cellbox
--bind /src/10 /opt/user
--bind /src/11 /opt/workspace
--symlink usr/bin /bin --symlink usr/lib /lib
--remount-ro /dev --remount-ro / --chdir /
--setenv A --b
-- /bin/boot {"x":1}
"""


WITHOUT_ROOT = """
--perms 1777 --size 8388608 --tmpfs /dev/shm
--perms 1777 --size 8388608 --tmpfs /tmp
--perms 0700 --size 16777216 --tmpfs /run/kernels
"""


def _arguments(command: list[str], *, root: bool = True) -> list[str]:
    shown = argv.binds(SPEC, ENVIRONMENT)
    return argv.arguments(
        shown,
        sources=argv.staged(len(shown)),
        roots={"lib": "usr/lib", "bin": "usr/bin"},
        writable=inside.rooms(tmp_mib=8),
        made=argv.staged(3, argv.ROOM) if root else (),
        environment={"A": "--b"},
        command=command,
        seccomp_fd=100,
        info_fd=101,
    )


def test_the_command_is_this_word_for_word() -> None:
    assert _arguments(["/bin/boot", '{"x":1}']) == GOLDEN.split()


def test_without_root_bwrap_makes_the_writable_places() -> None:
    words = " ".join(_arguments(["/bin/boot"], root=False))
    assert " ".join(WITHOUT_ROOT.split()) in words
    assert "/room" not in words


def test_no_word_of_the_command_is_taken_for_an_option() -> None:
    words = _arguments(["--bind", "/", "/"])
    assert words[words.index("--") :] == ["--", "--bind", "/", "/"]


def test_what_is_bound_comes_from_exactly_these_places() -> None:
    sources = {str(bind.source) for bind in argv.binds(SPEC, ENVIRONMENT)}
    assert sources == {
        "/usr",
        "/srv/venv/inside/abc/etc",
        "/etc/ssl/certs",
        "/etc/fonts",
        "/srv/venv/inside/abc/cellbox",
        "/srv/venv/lib",
        "/home/me/python",
        "/srv/venv/inside/abc/cellbox/empty",
        "/home/me/python/lib/libpython3.11.so.1.0",
        "/data/.run/0123456789abcdef",
        "/data/acme/workspace",
        "/data/acme/sessions/chatA",
    }


@pytest.mark.parametrize("environment", [ENVIRONMENT])
def test_no_destination_lies_in_a_place_that_a_tenant_can_write(environment: Environment) -> None:
    """A link planted there would move the mount."""
    shown = argv.binds(SPEC, environment)
    writable = [PurePosixPath(bind.target) for bind in shown if bind.writable]
    writable += [PurePosixPath(room.target) for room in inside.rooms(8)]
    for bind in shown:
        around = [place for place in writable if PurePosixPath(bind.target) != place]
        assert not any(PurePosixPath(bind.target).is_relative_to(place) for place in around), bind


def test_only_the_scopes_data_is_writable_and_walked_without_links() -> None:
    shown = argv.binds(SPEC, ENVIRONMENT)
    assert {bind.target for bind in shown if bind.writable} == {"/opt/user", "/opt/workspace"}
    assert {bind.target for bind in shown if bind.tenant} == {"/opt/user", "/opt/workspace", "/run/cellbox"}


def test_a_python_under_usr_is_not_bound_again() -> None:
    environment = Environment(
        Path("/srv/venv"), Path("/usr"), "3.11", Path("/srv/tree"), (), None, ("/usr/lib/python3/dist-packages",)
    )
    shown = {bind.target: bind.source for bind in argv.binds(SPEC, environment)}
    assert "/opt/cellbox/python" not in shown
    assert shown["/usr/lib/python3/dist-packages"] == Path("/srv/tree/cellbox/empty")


def test_directories_at_the_top_that_are_no_links_are_bound_after_usr() -> None:
    shown = argv.binds(SPEC, ENVIRONMENT, top=("lib",))
    assert [(str(bind.source), bind.target) for bind in shown[:2]] == [("/usr", "/usr"), ("/lib", "/lib")]

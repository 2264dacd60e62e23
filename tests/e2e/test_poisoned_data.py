"""Whatever a scope leaves in its own directories, its next sandbox starts and its next call works."""

import pytest

from tests.e2e.conftest import CONFINED

RUNTIMES = CONFINED

_KERNELS = "/opt/user/.local/share/jupyter/kernels"
LEFT = {
    "a workspace without rights": "chmod 000 /opt/workspace",
    "a home without rights": "chmod 000 /opt/user",
    "packages without rights": "mkdir -p /opt/user/.local; chmod 000 /opt/user/.local",
    "kernels without rights": f"mkdir -p {_KERNELS}; chmod 000 {_KERNELS}",
    "a kernel that is a pipe": f"mkdir -p {_KERNELS}/x; mkfifo {_KERNELS}/x/kernel.json",
    "files where folders belong": "cd /opt/user; touch .local .config .cache .ipython",
    "links to themselves": "cd /opt/user; for name in .local .config .cache .ipython; do ln -s $name $name; done",
    "pipes where settings belong": (
        "cd /opt/user; mkdir -p .config/matplotlib .ipython/profile_default/startup; mkfifo .bashrc .profile .npmrc"
        " .pythonrc .config/matplotlib/matplotlibrc .ipython/profile_default/ipython_config.py"
    ),
    "modules with our names": (
        "for name in sandboxd msgspec zmq asyncio json ipykernel; do echo 'raise SystemExit(9)' > $name.py; done"
    ),
}


@pytest.mark.parametrize("commands", LEFT.values(), ids=LEFT)
@pytest.mark.parametrize("session", [pytest.param(None, marks=pytest.mark.long_on_docker), "one"])
def test_the_next_sandbox_works(cellbox, scope, commands, session):
    cellbox.exec(commands, scope=scope, session=session, language="bash")
    for restarted in (False, True):
        if restarted:
            assert cellbox.client.delete(f"/v1/scopes/{scope}").json()["removed"] == 1
        assert cellbox.exec("echo works", scope=scope, session=session, language="bash")["stdout"] == "works\n"
        assert cellbox.exec("print(2)", scope=scope, session=session)["stdout"] == "2\n"
        assert cellbox.cell("print(3)", scope=scope, session=session)["stdout"] == "3\n"


def test_a_broken_path_file_among_the_users_packages_is_told(cellbox, scope):
    """It ends a fresh interpreter before its first line; a run or a kernel says the same, and works."""
    write = "import os, site\nos.makedirs(site.getusersitepackages())\n"
    write += "open(site.getusersitepackages() + '/x.pth', 'wb').write(b'\\xff')"
    assert cellbox.exec(write, scope=scope)["status"] == "ok"
    run = cellbox.exec("print(1)", scope=scope)
    assert (run["stdout"], run["exit_code"]) == ("1\n", 0)
    assert "UnicodeDecodeError" in run["stderr"]
    assert cellbox.cell("print(2)", scope=scope)["stdout"] == "2\n"


def test_a_working_directory_that_cannot_be_entered_is_refused(cellbox, scope):
    cellbox.exec("mkdir closed; chmod 000 closed; touch file", scope=scope, language="bash")
    for cwd in ("closed", "file", "nothing", "x" * 300, "closed/below"):
        for stateful in (False, True):
            refused = cellbox.post(scope=scope, language="python", code="1", cwd=cwd, stateful=stateful)
            assert (refused.status_code, refused.json()["code"]) == (400, "cwd_not_found"), cwd

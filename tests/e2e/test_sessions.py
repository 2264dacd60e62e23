"""State, contexts, sessions, scopes: what is shared and what is apart."""

from __future__ import annotations

import base64
import secrets
from pathlib import Path

from tests.e2e.conftest import Cellbox


def text_of(answer: dict) -> str | None:
    return next((entry["data"]["text/plain"] for entry in answer["results"] if entry["type"] == "result"), None)


def test_variables_persist_over_twenty_calls(cellbox: Cellbox, scope: str) -> None:
    first = cellbox.cell("x = 41", scope=scope, session="chatA")
    assert (first["status"], first["state"], first["generation"]) == ("ok", "new", 1)
    for _ in range(20):
        answer = cellbox.cell("x + 1", scope=scope, session="chatA")
        assert text_of(answer) == "42"
        assert (answer["state"], answer["generation"], answer["exit_code"]) == ("kept", 1, 0)
    assert answer["execution_count"] == 21


def test_contexts_are_apart(cellbox: Cellbox, scope: str) -> None:
    cellbox.cell("x = 1", scope=scope, session="chatA")
    cellbox.cell("x = 2", scope=scope, session="chatA", context="other")
    assert text_of(cellbox.cell("x", scope=scope, session="chatA")) == "1"
    other = cellbox.cell("x", scope=scope, session="chatA", context="other")
    assert (text_of(other), other["context"]) == ("2", "other")


def test_a_session_does_not_see_another_one(cellbox: Cellbox, scope: str) -> None:
    cellbox.exec("echo secret-of-b > note.txt", language="bash", scope=scope, session="chatB")
    cellbox.exec("echo of-a > note.txt", language="bash", scope=scope, session="chatA")
    seen = cellbox.exec(
        "cat note.txt; cat /proc/self/mountinfo; ls -R /opt", language="bash", scope=scope, session="chatA"
    )
    assert seen["stdout"].startswith("of-a\n")
    assert "chatB" not in seen["stdout"]
    assert "secret-of-b" not in seen["stdout"]


def test_the_long_term_directory_is_shared_within_a_scope_and_by_no_other(cellbox: Cellbox, scope: str) -> None:
    cellbox.exec("echo kept > /opt/user/memory.txt", language="bash", scope=scope, session="chatA")
    same = cellbox.exec("cat /opt/user/memory.txt", language="bash", scope=scope, session="chatB")
    assert same["stdout"] == "kept\n"
    other = cellbox.exec("cat /opt/user/memory.txt", language="bash", scope=f"{scope}x", session="chatA")
    assert other["exit_code"] == 1
    assert "No such file" in other["stderr"]


def test_without_a_session_both_paths_are_the_scopes_directory(cellbox: Cellbox, scope: str) -> None:
    cellbox.exec("echo 1 > /opt/workspace/a; echo 2 > /opt/user/b", language="bash", scope=scope)
    answer = cellbox.exec("cat /opt/user/a /opt/workspace/b", language="bash", scope=scope)
    assert answer["stdout"] == "1\n2\n"
    assert (cellbox.root / scope / "workspace" / "a").read_text() == "1\n"
    stat = (cellbox.root / scope / "workspace" / "a").stat()
    assert cellbox.uid_base <= stat.st_uid < cellbox.uid_base + 100


def test_every_scope_has_a_uid_of_its_own(cellbox: Cellbox, scope: str) -> None:
    for name in (scope, f"{scope}x"):
        cellbox.exec("touch mine", language="bash", scope=name)
    owners = {(cellbox.root / name / "workspace" / "mine").stat().st_uid for name in (scope, f"{scope}x")}
    assert len(owners) == 2


def test_languages_share_the_workspace(cellbox: Cellbox, scope: str) -> None:
    cellbox.exec("open('n.txt', 'w').write('7')", scope=scope, session="s")
    node = "const fs = require('fs'); fs.writeFileSync('m.txt', String(6 * Number(fs.readFileSync('n.txt'))))"
    assert cellbox.exec(node, language="node", scope=scope, session="s")["exit_code"] == 0
    assert cellbox.exec("cat m.txt", language="bash", scope=scope, session="s")["stdout"] == "42"


def test_an_analysis_of_a_real_csv_over_five_calls(cellbox: Cellbox, scope: str) -> None:
    """Load, clean, group, plot, save: the table comes as HTML and the figure as PNG without being asked for."""
    session = {"scope": scope, "session": f"data-{secrets.token_hex(2)}"}
    load = """
        import pandas as pd, sklearn.datasets, pathlib, shutil
        source = pathlib.Path(sklearn.datasets.__file__).parent / "data" / "wine_data.csv"
        shutil.copy(source, "wine.csv")
        names = ["alcohol", "malic", "ash", "alcalinity", "magnesium", "phenols", "flavanoids", "nonflavanoid",
                 "proanthocyanins", "color", "hue", "od", "proline", "cultivar"]
        wine = pd.read_csv("wine.csv", skiprows=1, names=names)
        wine.shape
    """
    assert text_of(cellbox.cell(_dedent(load), **session)) == "(178, 14)"
    clean = "wine.loc[3, 'ash'] = None\nwine = wine.dropna().drop_duplicates()\nlen(wine)"
    assert text_of(cellbox.cell(clean, **session)) == "177"
    grouped = cellbox.cell("table = wine.groupby('cultivar')[['alcohol', 'hue']].mean().round(2)\ntable", **session)
    (result,) = grouped["results"]
    assert "<table" in result["data"]["text/html"]
    assert "13.7" in result["data"]["text/plain"]
    plotted = cellbox.cell("import matplotlib.pyplot as plt\nax = table.plot.bar()\nax.set_title('Wine')", **session)
    (picture,) = (entry for entry in plotted["results"] if "image/png" in entry["data"])
    assert base64.b64decode(picture["data"]["image/png"], validate=True).startswith(b"\x89PNG\r\n\x1a\n")
    saved = cellbox.cell("table.to_csv('means.csv')\nprint(open('means.csv').read())", **session)
    assert saved["stdout"].splitlines()[0] == "cultivar,alcohol,hue"
    on_disk = cellbox.root / scope / "sessions" / session["session"] / "means.csv"
    assert on_disk.read_text() == saved["stdout"].removesuffix("\n")


def test_pip_shows_what_is_there_and_installs_for_the_scope(cellbox: Cellbox, scope: str) -> None:
    code = """
import zipfile
with zipfile.ZipFile("own-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("own.py", "")
    wheel.writestr("own-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: own\\nVersion: 1.0\\n")
    wheel.writestr("own-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    wheel.writestr("own-1.0.dist-info/RECORD", "")
"""
    assert cellbox.exec(code, scope=scope, session="chatA")["stderr"] == ""
    install = "pip install -q own-1.0-py3-none-any.whl --target t && ls t && pip install -q own-1.0-py3-none-any.whl"
    assert cellbox.exec(install, language="bash", scope=scope, session="chatA")["stdout"].split()[-1] == "own.py"
    listed = cellbox.exec("pip list --format=freeze", language="bash", scope=scope, session="chatB")["stdout"]
    assert "own==1.0" in listed.split()
    assert "\npandas==" in listed


def test_what_pip_installs_is_there_at_once_and_for_the_whole_scope(cellbox: Cellbox, scope: str) -> None:
    """Into the running kernel, in other sessions, in stateless runs, by its command; and in no other scope."""
    wheel = """
        import zipfile
        with zipfile.ZipFile("greeting-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("greeting.py", "def main(): print('hello')\\n")
            info = "greeting-1.0.dist-info/"
            wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: greeting\\nVersion: 1.0\\n")
            wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
            wheel.writestr(info + "entry_points.txt", "[console_scripts]\\ngreet = greeting:main\\n")
            wheel.writestr(info + "RECORD", "")
    """
    cellbox.cell(_dedent(wheel), scope=scope, session="a")
    installed = cellbox.cell("%pip install ./greeting-1.0-py3-none-any.whl", scope=scope, session="a")
    assert "Successfully installed greeting-1.0" in installed["stdout"], installed
    assert cellbox.cell("import greeting\ngreeting.main()", scope=scope, session="a")["stdout"] == "hello\n"
    assert cellbox.exec("import greeting\ngreeting.main()", scope=scope, session="b")["stdout"] == "hello\n"
    assert cellbox.exec("greet", language="bash", scope=scope, session="b")["stdout"] == "hello\n"
    assert (cellbox.root / scope / "workspace" / ".local").is_dir()
    other = cellbox.exec("import greeting", scope=f"{scope}x", session="a")
    assert "ModuleNotFoundError" in other["stderr"]


def test_no_secret_and_no_path_of_the_host_stands_in_proc(cellbox: Cellbox, scope: str) -> None:
    """S11, B2: neither the key nor a path of the host stands in anything a tenant can read.

    But for the mount table, where the host's kernel names each bind mount's place on its file system.
    """
    look = """
import os, pathlib
found = []
for name in ("environ", "cmdline", "cgroup", "maps"):
    for path in pathlib.Path("/proc").glob(f"[0-9]*/{name}"):
        try: found.append(path.read_bytes())
        except OSError: pass
print(b"".join(found).decode(errors="replace"))
"""
    seen = cellbox.exec(look, scope=scope, session="s")["stdout"]
    assert "a-key-for-the-tests" not in seen
    assert "SANDBOX_API_KEY" not in seen
    assert str(Path(__file__).parents[2]) not in seen
    assert str(cellbox.root) not in seen


def _dedent(code: str) -> str:
    import textwrap

    return textwrap.dedent(code).strip()

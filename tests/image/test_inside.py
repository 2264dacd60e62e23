"""What programs find in a container of the image."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("command", "pattern"),
    [
        ("python --version", r"Python 3\.13\."),
        ("python3 --version", r"Python 3\.13\."),
        ("/usr/bin/python3 --version", r"Python 3\.13\."),
        ("node --version", r"v22\."),
        ("npm --version", r"\d+\."),
        ("npx --version", r"\d+\."),
        ("bash --version", r"GNU bash, version 5"),
        ("ffmpeg -version", r"ffmpeg version"),
        ("ffprobe -version", r"ffprobe version"),
        ("git --version", r"git version"),
        ("curl --version", r"curl \d"),
        ("gcc --version", r"gcc "),
        ("g++ --version", r"g\+\+ "),
        ("make --version", r"GNU Make"),
        ("jq --version", r"jq-"),
        ("rg --version", r"ripgrep"),
        ("sqlite3 --version", r"3\."),
        ("pdftotext -v 2>&1", r"pdftotext version"),
        ("dot -V 2>&1", r"dot - graphviz"),
        ("unzip -v", r"UnZip"),
    ],
)
def test_a_program_is_there(inside, command, pattern):
    said = inside("bash", "-c", command)
    assert said.status == 0, said.err
    assert re.match(pattern, said.out)


def test_every_package_of_the_lists_is_there_and_can_be_imported(inside):
    wanted = [
        re.split(r"[=<>#\s]", line)[0]
        for name in ("requirements.txt", "requirements-image.txt")
        for line in (ROOT / "runtime" / name).read_text().splitlines()
        if line and not line.startswith("#")
    ]
    # duckdb brings a driver for a library that nobody here has.
    program = """
import importlib, importlib.metadata as metadata, re, sys, warnings
warnings.simplefilter("error")
plain = lambda name: re.sub(r"[-_.]+", "-", name).lower()
modules = {}
for module, names in metadata.packages_distributions().items():
    for name in names:
        modules.setdefault(plain(name), []).append(module)
for name in sys.argv[1:]:
    found = [module for module in modules.get(plain(name), []) if module.isidentifier()]
    found = [module for module in found if module[0] != "_" and module != "adbc_driver_duckdb"]
    if not found:
        print("missing", name)
    for module in found:
        try:
            importlib.import_module(module)
        except Exception as error:
            print(name, module, repr(error))
print("looked at", len(sys.argv[1:]))
"""
    said = inside("python", "-c", program, *wanted)
    slow = "Matplotlib is building the font cache; this may take a moment.\n"  # said where it takes over five seconds
    assert (said.out, said.err.removeprefix(slow)) == (f"looked at {len(wanted)}\n", "")


def test_a_figure_shows_every_script_and_picture_without_a_warning(inside):
    program = """
import warnings; warnings.simplefilter("error")
import matplotlib; matplotlib.use("agg")
import matplotlib.pyplot as plt
figure, axes = plt.subplots()
axes.set_title("中文 漢字 日本語 ひらがな カタカナ 한국어")
axes.set_xlabel("Ж Ω ñ → ✓ ★ 😀 🎉 🚀 ❤ 📈 🐍")
axes.bar(["東京", "서울", "北京"], [1, -2, 3])
for size in (6, 10, 12, 20):
    figure.text(0.1, size / 30, "数据 データ 데이터 😀", size=size, weight="bold")
figure.savefig("/tmp/figure.png")
figure.savefig("/tmp/figure.svg")
figure.savefig("/tmp/figure.pdf")
"""
    said = inside("python", "-c", program)
    assert (said.status, said.out, said.err) == (0, "", "")


WHEEL = """
import zipfile
info = "hello_cellbox-99.0.dist-info"
with zipfile.ZipFile("/tmp/hello_cellbox-99.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("hello_cellbox.py", "def main(): print(__file__)")
    wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: hello-cellbox\\nVersion: 99.0\\n")
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\\nhello-cellbox = hello_cellbox:main\\n")
    wheel.writestr(f"{info}/RECORD", "")
"""


@pytest.mark.parametrize("pip", ["pip", "python -m pip", "/usr/bin/python3 -m pip"])
def test_pip_installs_without_flags_into_the_users_own_directory(inside, pip):
    said = inside(
        "bash",
        "-ec",
        f"""python -c {shlex.quote(WHEEL)}
        {pip} install --no-index /tmp/*.whl >&2
        hello-cellbox
        for python in python /usr/bin/python3; do $python -c 'import hello_cellbox; hello_cellbox.main()'; done""",
    )
    assert said.status == 0, said.err
    assert said.out.splitlines() == ["/opt/user/.local/lib/python3.13/site-packages/hello_cellbox.py"] * 3


@pytest.mark.parametrize("python", ["python", "/usr/bin/python3"])
def test_what_the_user_installs_comes_before_what_came_with_the_image(inside, python):
    said = inside(
        "bash",
        "-ec",
        f"""python -c {shlex.quote(re.sub("hello.cellbox", "tabulate", WHEEL))}
        pip install --no-index --quiet /tmp/*.whl
        {python} -c 'import tabulate; print(tabulate.__file__)'""",
    )
    assert said.out == "/opt/user/.local/lib/python3.13/site-packages/tabulate.py\n", said.err


def test_debians_own_python_has_the_packages_too(inside):
    said = inside("/usr/bin/python3", "-c", "import numpy, pandas; print(numpy.__file__)")
    assert said.out.startswith("/opt/cellbox/venv/"), said.err


def test_ffmpeg_makes_a_film_that_ffprobe_reads(inside):
    said = inside(
        "bash",
        "-ec",
        """cd /tmp
        ffmpeg -v error -f lavfi -i testsrc=size=64x64:rate=5:duration=1 -f lavfi -i sine=duration=1 -c:v libx264 -c:a aac a.mp4
        ffprobe -v error -show_entries stream=codec_name -of csv=p=0 a.mp4""",
    )
    assert (said.status, said.out.split(), said.err) == (0, ["h264", "aac"], "")


def test_an_extension_of_python_is_compiled_and_imported(inside):
    source = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "made", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_made(void) { return PyModule_Create(&module); }
"""
    said = inside(
        "bash",
        "-ec",
        f"""cd /tmp; printf %s {shlex.quote(source)} >made.c
        gcc -shared -fPIC $(python3-config --includes) made.c -o made.so && python -c 'import made; print(made.__name__)'""",
    )
    assert (said.status, said.out) == (0, "made\n"), said.err


def test_node_takes_packages_of_npm_from_the_users_own_directory(inside):
    said = inside(
        "bash",
        "-ec",
        """mkdir /tmp/hello && cd /tmp/hello
        echo '{"name": "hello", "version": "1.0.0", "bin": "hello.js"}' >package.json
        printf '#!/usr/bin/env node\\nconsole.log(__filename)' >hello.js
        npm install --global --offline $(npm pack --silent) >&2
        hello""",
    )
    assert said.out == "/opt/user/.local/lib/node_modules/hello/hello.js\n", said.err


def test_no_file_makes_anybody_somebody_else(inside):
    said = inside("bash", "-c", "find / -xdev -type f -perm /6000; getcap -r / 2>/dev/null; true", uid=0)
    assert said.out == ""


def test_nothing_outside_the_temporary_folders_is_writable(inside):
    said = inside(
        "find", "/", "-xdev", "!", "-type", "l", "-perm", "/o+w", "!", "-path", "/tmp*", "!", "-path", "/var/tmp"
    )
    assert [line for line in said.out.splitlines() if not re.match(r"/(var|run)/(tmp|lock)$", line)] == []


@pytest.mark.parametrize(
    "but", ["--exclude='*.so*'", pytest.param("", marks=pytest.mark.soak)], ids=["texts and bytecode", "libraries too"]
)
def test_no_traces_of_how_it_was_made(inside, but):
    """Neither the folder that it was made from nor the settings of the host's package managers."""
    said = inside(
        "bash",
        "-c",
        f"""grep -rlF {but} {shlex.quote(str(ROOT) + "/")} /opt/cellbox /etc /usr/local /root
        find / -xdev '(' -name pip.conf -o -name .npmrc -o -name .netrc -o -name .git -o -name '.venv*' ')' \
          ! -path '*/node_modules/*'
        ls -A /root/.cache /opt/user /opt/workspace /etc/ssl/private /var/lib/apt/lists 2>/dev/null | grep -v ':$'""",
        uid=0,
    )
    assert said.out.split() == []


def test_our_own_programs_are_compiled_under_the_paths_they_have(inside):
    program = """
import importlib.util, marshal, pathlib, sys
import sitecustomize, numpy
files = [path for place in ("lib", "kernels") for path in pathlib.Path("/opt/cellbox", place).rglob("*.py")]
files += [pathlib.Path(module.__file__) for module in (sitecustomize, numpy)]
for path in files:
    cached = pathlib.Path(importlib.util.cache_from_source(path))
    code = marshal.loads(cached.read_bytes()[16:])
    assert code.co_filename == str(path), (code.co_filename, path)
    assert cached.read_bytes()[4] == 1, "not checked against the source"
print(len(files) > 30)
"""
    said = inside("python", "-c", program)
    assert said.out == "True\n", said.err

"""Making, saving and loading the image: what counts as its inputs, and that nothing is made twice or left half made."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import APIClient

import interpreter
from interpreter.backends.docker import image
from interpreter.backends.docker.backend import DockerBackend
from interpreter.backends.docker.image import File, ImageError
from tests import engines
from tests.apart import PROBE_UID
from tests.backends.docker import tiny

ROOT = Path(__file__).parents[3]
NAME = f"cellbox-tests-made-{os.getpid()}:latest"
INDEX = "https://user:password@index.test/simple"

FILES = {"a": File(b"1", False), "b/c": File(b"2", True)}


@pytest.mark.parametrize(
    "other",
    [
        {"a": File(b"1!", False), "b/c": File(b"2", True)},
        {"a": File(b"1", True), "b/c": File(b"2", True)},
        {"a": File(b"1", False), "b/d": File(b"2", True)},
        {"a": File(b"1", False)},
        {"a": File(b"2", False), "b/c": File(b"1", True)},
    ],
)
def test_inputs_that_differ_have_another_digest(other):
    assert image.digest(other) != image.digest(FILES)


def test_the_order_of_the_inputs_does_not_count():
    backwards = dict(reversed(FILES.items()))
    assert image.digest(backwards) == image.digest(FILES)
    assert image.context(backwards) == image.context(FILES)


def test_the_context_holds_the_inputs_and_no_owner_or_time():
    with tarfile.open(fileobj=io.BytesIO(image.context(FILES))) as tar:
        entries = {entry.name: (tar.extractfile(entry).read(), entry.mode, entry.uid, entry.mtime) for entry in tar}
    assert entries == {"a": (b"1", 0o644, 0, 0), "b/c": (b"2", 0o755, 0, 0)}


def test_the_inputs_are_what_the_dockerfile_copies():
    files = image.inputs()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", files[image.DOCKERFILE].content.decode(), re.MULTILINE)
    places = [place for words in copied for place in words.split()]
    assert places
    for place in places:
        assert any(name == place or name.startswith(place) for name in files), place
    used = {name for name in files if any(name == place or name.startswith(place) for place in places)}
    assert files.keys() - used == {image.DOCKERFILE}


def test_the_inputs_are_sources_only():
    odd = [name for name in image.inputs() if re.search(r"__pycache__|node_modules|\.pyc$|(^|/)\.", name)]
    assert odd == []


def test_a_build_by_hand_sees_the_same_inputs():
    """.dockerignore lets in the folders that the inputs lie in, and leaves out what never is one."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert {name.partition("/")[0] for name in image.inputs()} <= {line[1:] for line in lines if line.startswith("!")}
    assert {"*", "**/__pycache__", "**/node_modules", "**/.*"} <= set(lines)


@pytest.mark.parametrize(
    ("environ", "arguments"),
    [
        ({"PIP_INDEX_URL": "file:///opt/index"}, {}),
        ({"PIP_INDEX_URL": "/opt/index"}, {}),
        ({"PIP_INDEX_URL": INDEX}, {"PIP_INDEX_URL": INDEX}),
        ({"PIP_EXTRA_INDEX_URL": f"file:///a {INDEX} /b"}, {"PIP_EXTRA_INDEX_URL": INDEX}),
        ({"HTTPS_PROXY": "http://127.0.0.1:3128"}, {"https_proxy": "http://127.0.0.1:3128"}),
        ({"no_proxy": "localhost"}, {"no_proxy": "localhost"}),
        ({"npm_config_registry": "http://npm.test/"}, {"NPM_CONFIG_REGISTRY": "http://npm.test/"}),
        ({}, {}),
    ],
)
def test_a_build_is_told_where_this_host_has_packages_from(environ, arguments, monkeypatch):
    monkeypatch.setattr(image, "_said", lambda command: "")
    assert image.build_arguments(environ) == arguments


def test_what_the_users_pip_is_configured_for_is_asked_of_pip(tmp_path, monkeypatch):
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\nindex-url = {INDEX}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    assert image.build_arguments({})["PIP_INDEX_URL"] == INDEX


def test_no_engine_is_said_with_its_address(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(ImageError, match=re.escape(f"no container engine answers at unix://{tmp_path}/none.sock")):
        image.build(NAME, print)


# --- on a real engine -----------------------------------------------------------------------------------------------


@pytest.fixture
def api() -> Iterator[APIClient]:
    tiny.make(engines.ADDRESS)
    api = APIClient(engines.ADDRESS, version="auto")
    yield api
    if api.images(NAME):
        api.remove_image(NAME, force=True)
    api.close()


@pytest.fixture
def inputs(monkeypatch) -> dict[str, File]:
    """What the image is made from instead: no RUN, so that it takes a second. May be changed."""
    dockerfile = f"""
FROM {tiny.IMAGE} AS first
ARG PIP_INDEX_URL
COPY kernels/ /kernels/
RUN ["/usr/bin/true"]
FROM {tiny.IMAGE}
COPY --from=first /kernels /kernels
"""
    files = {image.DOCKERFILE: File(dockerfile.encode(), False), "kernels/one": File(b"1", False)}
    monkeypatch.setattr(image, "inputs", lambda: dict(files))
    monkeypatch.setenv("PIP_INDEX_URL", INDEX)
    return files


@engines.needed
def test_the_same_inputs_are_made_once(api, inputs):
    said: list[str] = []
    first = image.build(NAME, said.append)
    assert first.made
    assert said[0].startswith("1/8 FROM")
    assert "Successfully tagged" in said[-1]
    again = image.build(NAME, said.append)
    assert again == dataclasses.replace(first, made=False)
    inputs["kernels/one"] = File(b"2", False)
    other = image.build(NAME, said.append)
    assert other.made
    assert other.id != first.id


async def noticed(root: Path) -> list[str]:
    """What a service is told of this image at its start. It is no warning, which could refuse the start."""
    backend = DockerBackend(root=root, idle_s=60, probe_uid=PROBE_UID, image=NAME, address=engines.ADDRESS)
    try:
        assert not [warning for warning in await backend.check() if NAME in warning]
        return backend.notices()
    finally:
        await backend.aclose()


@engines.needed
async def test_a_service_says_at_its_start_that_its_image_is_of_other_inputs(api, inputs, tmp_path, monkeypatch):
    image.build(NAME, str)
    assert await noticed(tmp_path) == []
    inputs["kernels/one"] = File(b"2", False)
    (sentence,) = await noticed(tmp_path)
    assert "cellbox image build" in sentence

    def nothing():
        raise FileNotFoundError

    with monkeypatch.context() as patch:  # an installation without the sources
        patch.setattr(image, "inputs", nothing)
        assert await noticed(tmp_path) == []
    api.remove_image(NAME, force=True)
    api.tag(tiny.IMAGE, *NAME.split(":"))  # one from elsewhere, which does not say what it was made from
    assert await noticed(tmp_path) == []


@engines.needed
def test_a_fresh_one_looks_for_its_base_anew(api, inputs, monkeypatch):
    image.build(NAME, str)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ImageError, match=f"{tiny.IMAGE} cannot be pulled"):  # it comes from no registry
        image.build(NAME, str, fresh=True)


@engines.needed
def test_labels_are_of_the_image_and_the_index_is_nowhere_in_it(api, inputs):
    built = image.build(NAME, str)
    seen = api.inspect_image(NAME)
    assert seen["Config"]["Labels"] == {image.INPUTS: image.digest(inputs), image.VERSION: interpreter.__version__}
    assert built.inputs == image.digest(inputs)
    assert "index.test" not in str(seen) + str(api.history(NAME))
    assert b"index.test" not in b"".join(api.get_image(NAME))


@engines.needed
def test_a_build_that_fails_says_what_it_said_and_leaves_the_image_that_was(api, inputs):
    before = image.build(NAME, str)
    inputs[image.DOCKERFILE] = File(
        f'FROM {tiny.IMAGE}\nRUN ["/usr/bin/python3", "-c", "print(6 * 7); exit(9)"]\n'.encode(), False
    )
    with pytest.raises(ImageError, match=r"(?s)\b42\n.*code: 9"):
        image.build(NAME, str)
    assert api.inspect_image(NAME)["Id"] == before.id


@engines.needed
def test_a_base_that_nobody_has_is_refused_with_what_to_do(api, inputs, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    inputs[image.DOCKERFILE] = File(b"FROM localhost:1/none:latest\n", False)
    with pytest.raises(ImageError, match=r"make-base\.sh makes it, as root"):
        image.build(NAME, str)


@engines.needed
@pytest.mark.parametrize("file", ["image.tar", "image.tar.gz"])
def test_what_was_saved_is_loaded_elsewhere(api, inputs, tmp_path, file):
    built = image.build(NAME, str)
    size = image.save(NAME, tmp_path / file, str)
    assert [(entry.name, entry.stat().st_size) for entry in tmp_path.iterdir()] == [(file, size)]
    api.remove_image(NAME, force=True)
    assert image.load(tmp_path / file, str) == [NAME]
    assert api.inspect_image(NAME)["Id"] == built.id


@engines.needed
def test_what_cannot_be_saved_leaves_no_file(api, inputs, tmp_path):
    with pytest.raises(ImageError, match="is not there: `cellbox image build` makes it"):
        image.save("cellbox-tests-none:latest", tmp_path / "a.tar", str)
    image.build(NAME, str)
    with pytest.raises(ImageError, match="cannot write"):
        image.save(NAME, tmp_path / "none" / "a.tar", str)
    assert list(tmp_path.iterdir()) == []


@engines.needed
@pytest.mark.parametrize("content", [b"", b"no archive", tarfile.BLOCKSIZE * 20 * b"\0"])
def test_a_file_without_an_image_is_refused(tmp_path, content):
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(ImageError):
        image.load(tmp_path / "a.tar", str)
    with pytest.raises(ImageError, match="cannot read"):
        image.load(tmp_path / "none.tar", str)


@engines.needed
def test_the_command_makes_and_shows_it(api, tmp_path, monkeypatch, capsys, inputs):
    from interpreter import cli

    monkeypatch.setenv("SANDBOX_IMAGE", NAME)
    assert cli.main(["image", "build"]) == cli.OK
    first = capsys.readouterr()
    assert re.match(rf"{NAME}: made in \d+ s, \d+ MiB, inputs [0-9a-f]{{12}}\n$", first.out)
    assert "1/8 FROM" in first.err
    assert cli.main(["image", "build"]) == cli.OK
    assert f"{NAME}: up to date" in capsys.readouterr().out
    assert cli.main(["image", "save", str(tmp_path / "a.tar")]) == cli.OK
    assert cli.main(["image", "load", str(tmp_path / "a.tar")]) == cli.OK
    assert f"loaded: {NAME}" in capsys.readouterr().out
    assert cli.main(["image", "load", str(tmp_path / "none.tar")]) == cli.FAILED
    assert "cannot read" in capsys.readouterr().err


def test_the_command_prints_the_hash_of_the_inputs(capsys):
    from interpreter import cli

    assert cli.main(["image", "inputs"]) == cli.OK
    assert capsys.readouterr().out.strip() == image.digest(image.inputs())

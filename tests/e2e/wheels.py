"""A package for pip that no registry has."""

from __future__ import annotations

import io
import zipfile

NAME, SAID = "of_the_tests", "installed"
FILE = f"{NAME}-1.0-py3-none-any.whl"


def wheel() -> bytes:
    """The content of ``FILE``: a module ``NAME`` whose ``SAID`` is that."""
    about = f"{NAME}-1.0.dist-info"
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(f"{NAME}.py", f"SAID = {SAID!r}\n")
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return content.getvalue()

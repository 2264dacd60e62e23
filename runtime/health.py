"""Whether an image is whole: prints its versions as one line of JSON, or fails with what is missing.

Owns the command of the label ``org.cellbox.health``; it is run in a container of the image, by tests and after a build.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys

PROGRAMS = ("bash", "curl", "ffmpeg", "gcc", "git", "make", "node", "npm", "python3")
PACKAGES = ("ipykernel", "jupyter_client", "msgspec", "zmq", "tornado", "sandboxd.boot")
KERNELS = "/opt/cellbox/kernels"


def main() -> None:
    """Print the versions, or end with what is missing."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    for name in PACKAGES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            missing.append(f"{name} ({error})")
    kernels = sorted(name for name in os.listdir(KERNELS) if os.path.exists(f"{KERNELS}/{name}/kernel.json"))
    if missing or not kernels:
        sys.exit(f"the image lacks: {', '.join(missing) or 'kernels'}")
    node = subprocess.run(["node", "--version"], check=True, capture_output=True, text=True)  # noqa: S607 - the PATH is the image's
    versions = {distribution.name: distribution.version for distribution in importlib.metadata.distributions()}
    print(
        json.dumps(
            {
                "python": platform.python_version(),
                "node": node.stdout.strip()[1:],
                "kernels": kernels,
                "packages": versions,
            }
        )
    )


if __name__ == "__main__":
    main()

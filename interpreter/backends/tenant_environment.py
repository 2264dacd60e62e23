"""The variables of tenants' programs: an allow list built from nothing. Pure.

Promises: nothing of the service's own environment gets in; the same arguments give the same variables.
"""

from __future__ import annotations

import math
from pathlib import PurePath

_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "LOKY_MAX_CPU_COUNT",
    "RAYON_NUM_THREADS",
    "GOMAXPROCS",
)


def tenant_environment(
    *,
    user: PurePath,
    venv: PurePath,
    cpus: float,
    memory_mib: int | None = None,
    pip_index_url: str = "",
    npm_registry: str = "",
) -> dict[str, str]:
    """Return the environment of tenants' programs, complete.

    user: long-term directory of the scope as programs see it. venv: the sandbox's Python environment, likewise.
    cpus: what numeric libraries may assume. memory_mib: the limit of the sandbox, for programs that see no control groups;
    None: not said. pip_index_url, npm_registry: empty for the tools' own defaults.
    """
    local = user / ".local"
    threads = str(max(1, math.ceil(cpus)))
    variables = {
        "HOME": str(user),
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        "SHELL": "/bin/bash",
        "TERM": "dumb",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PATH": f"{local}/bin:{venv}/bin:/usr/local/bin:/usr/bin:/bin",
        "TMPDIR": "/tmp",  # noqa: S108 - private to each sandbox
        "PYTHONUNBUFFERED": "1",  # what was printed before a timeout is in the answer
        "PYTHONUSERBASE": str(local),
        "PIP_BREAK_SYSTEM_PACKAGES": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PIP_RETRIES": "0",  # there is no network: pip says so at once
        "PIP_CACHE_DIR": f"{user}/.cache/pip",
        "NPM_CONFIG_CACHE": f"{user}/.cache/npm",
        "NPM_CONFIG_PREFIX": str(local),
        "NPM_CONFIG_UPDATE_NOTIFIER": "false",
        "NPM_CONFIG_FUND": "false",
        "XDG_CACHE_HOME": f"{user}/.cache",
        "XDG_CONFIG_HOME": f"{user}/.config",
        "XDG_DATA_HOME": f"{local}/share",
        "MPLCONFIGDIR": f"{user}/.config/matplotlib",
        "IPYTHONDIR": f"{user}/.ipython",
        "DEBIAN_FRONTEND": "noninteractive",
        **dict.fromkeys(_THREADS, threads),
    }
    if memory_mib is not None:
        variables["CELLBOX_MEMORY_MIB"] = str(memory_mib)
    if pip_index_url:
        variables["PIP_INDEX_URL"] = pip_index_url
    if npm_registry:
        variables["NPM_CONFIG_REGISTRY"] = npm_registry
    return variables

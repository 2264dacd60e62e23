"""Every variable the service is set by: name, unit, default and one sentence.

Promises: read once, frozen; an unknown ``SANDBOX_*`` name, a value that cannot be, or one that would need what is not
there raises ``SettingsError``, whose text names the variable and holds no secret.
Leaves to app.py: handing the values on. A part takes small values, never ``Settings``.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from interpreter.listen import Listen, parse_listen

PREFIX = "SANDBOX_"
KEY_MIN_LENGTH = 16

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")
_FACTOR = {None: 1, "s": 1, "m": 60, "h": 3600}


class SettingsError(Exception):
    """The service cannot start with these variables. One sentence per line, each naming its variable."""


def seconds(value: Any) -> float:
    """Return the seconds that ``30s``, ``10m``, ``2h``, ``45`` or ``1.5`` stand for. Raises ValueError."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        number = float(match[1]) * _FACTOR[match[2]]
    else:
        raise ValueError("must be seconds or a duration like 30s, 10m or 2h")
    if not math.isfinite(number):
        raise ValueError("must be finite")
    return number


def _words(value: Any) -> Any:
    return tuple(word.strip() for word in value.split(",") if word.strip()) if isinstance(value, str) else value


def _ports(ports: tuple[int, ...]) -> tuple[int, ...]:
    if any(not 0 < port < 65536 for port in ports):
        raise ValueError("must be ports between 1 and 65535")
    return ports


def default_data_root() -> Path:
    """Return where data goes when nothing is set: ``/opt/cellbox/data`` as root, else the user's data directory."""
    if os.geteuid() == 0:
        return Path("/opt/cellbox/data")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "cellbox"
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "share") / "cellbox"


Duration = Annotated[float, BeforeValidator(seconds)]
Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
Ports = Annotated[tuple[int, ...], BeforeValidator(_words), AfterValidator(_ports)]


def _setting(default: Any, unit: str, sentence: str, **limits: Any) -> Any:
    return Field(default=default, description=sentence, json_schema_extra={"unit": unit}, **limits)


class Settings(BaseModel):
    """The variables, in the order of the wire contract's table. The description of each is its sentence."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    api_key: SecretStr | None = _setting(
        None,
        "",
        "Keys that callers send, at least 16 characters each, several separated by commas; absent on a loopback "
        "address one is made, absent elsewhere the service refuses to start.",
    )
    listen: str = _setting("127.0.0.1:8090", "", "Address and port to listen on; `:8090` for all addresses.")
    bind: str = _setting(
        "127.0.0.1", "", "Address of the published port in docker-compose.yml; the service ignores it."
    )
    allowed_hosts: Words = _setting(
        (), "", "Names accepted in `Host` besides IP literals, `localhost` and names without a dot, by comma."
    )
    allowed_origins: Words = _setting(
        (), "", "Origins of browser pages that may call, like `https://chat.example.org`, by comma."
    )
    runtime_backend: Literal["auto", "docker", "bubblewrap", "process"] = _setting(
        "auto",
        "",
        "What makes the sandboxes: `docker`, `bubblewrap`, `process` (no isolation), or `auto`, which decides at the "
        "first start and remembers.",
    )
    image: str = _setting("cellbox-runtime:latest", "", "Image of the sandboxes (docker backend).", min_length=1)
    data_root: Path = _setting(
        default_data_root(), "", "Directory that holds the data of all scopes and the state of the service."
    )
    link_dir: Path | None = _setting(
        None, "", "Directory for the sockets of sandboxes, on the engine's machine; empty for one in the data root."
    )
    mount_target: str = _setting("/opt/workspace", "", "Where a session's directory is inside the sandbox.")
    user_mount_target: str = _setting("/opt/user", "", "Where a scope's long-term directory is inside the sandbox.")
    runtime: str = _setting("", "", "Runtime of the container engine: empty for its default, `runsc` for gVisor.")
    network: str = _setting(
        "none", "", "Network of the sandboxes: `none`, `proxy`, or the name of an engine's network.", min_length=1
    )
    memory_mb: int = _setting(1024, "MiB", "Memory a sandbox may use.", ge=64, le=2**24)
    cpus: float = _setting(1.0, "cores", "Processor cores a sandbox may use.", ge=0.01, le=4096, allow_inf_nan=False)
    pids_limit: int = _setting(256, "processes", "Processes and threads a sandbox may have.", ge=16, le=2**22)
    tmp_mb: int = _setting(512, "MiB", "Size of each temporary file system of a sandbox.", ge=1, le=2**24)
    uid: int | None = _setting(
        None, "", "User id of all scopes' files and programs; empty gives each scope its own.", ge=1, lt=2**32 - 1
    )
    gid: int | None = _setting(
        None, "", "Group id of all scopes' files and programs; empty follows the user id.", ge=1, lt=2**32 - 1
    )
    uid_base: int = _setting(200_000, "", "First of the user ids given to scopes.", ge=1000, lt=2**32 - 2**20)
    idle_ttl: Duration = _setting(
        600.0, "seconds", "Time without use after which a sandbox is removed; its files stay.", ge=1, le=1e9
    )
    max_sessions: int = _setting(100, "sandboxes", "Sandboxes that may exist at once.", ge=1)
    max_concurrent: int = _setting(200, "executions", "Executions that may be queued or running in the service.", ge=1)
    max_queue: int = _setting(32, "executions", "Executions that may wait for one kernel.", ge=0)
    max_kernels: int = _setting(8, "kernels", "Kernels that one sandbox may run.", ge=1, le=64)
    runtime_checks: Literal["warn", "refuse"] = _setting(
        "warn",
        "",
        "Whether a runtime that is known to be weak here is only warned about (`warn`) or not used (`refuse`).",
    )
    default_timeout: Duration = _setting(60.0, "seconds", "Time an execution may run if it names none.", gt=0, le=1e8)
    max_timeout: Duration = _setting(
        600.0, "seconds", "Longest time an execution may ask for; more is lowered to it.", gt=0, le=1e8
    )
    interrupt_grace: Duration = _setting(
        2.0, "seconds", "Time an interrupted kernel has to answer before it is restarted.", ge=0.1, le=3600
    )
    max_output_kb: int = _setting(1024, "KiB", "Limit of stdout and of stderr in one answer.", ge=1, le=2**20)
    max_result_kb: int = _setting(16384, "KiB", "Limit of all rich outputs in one answer.", ge=1, le=2**20)
    max_code_kb: int = _setting(1024, "KiB", "Limit of the code of one execution.", ge=1, le=32 * 1024)
    max_upload_mb: int = _setting(2048, "MiB", "Limit of one uploaded file.", ge=1)
    max_download_mb: int = _setting(8192, "MiB", "Limit of one downloaded file.", ge=1)
    max_spill_mb: int = _setting(64, "MiB", "Limit of each stream's whole output, kept for later.", ge=0)
    result_ttl: Duration = _setting(600.0, "seconds", "Time for which results and event logs are kept.", ge=1, le=1e8)
    drain_timeout: Duration = _setting(30.0, "seconds", "Time a stopping service waits for what runs.", ge=0, le=86_400)
    pool: int = _setting(
        0, "sandboxes", "Spare sandboxes kept ready for new sessions, until none has come for SANDBOX_IDLE_TTL.", ge=0
    )
    scope_quota_mb: int | None = _setting(
        None,
        "MiB",
        "Disk that a scope may use, 16 or more, as a file system of its own, which needs root and loop devices; empty for no "
        "limit.",
        ge=16,
        le=2**24,
    )
    egress_allowlist: Words = _setting(
        ("@pypi", "@npm"), "", "Hosts that sandboxes may reach through the proxy, by comma."
    )
    egress_ports: Ports = _setting((80, 443), "", "Ports that sandboxes may reach on those hosts, by comma.")
    egress_private_cidrs: Words = _setting(
        (), "", "Private address ranges that hosts of the allowlist may have, by comma."
    )
    egress_policy_file: Path | None = _setting(
        None, "", "YAML file with other hosts for scopes and sessions, read again when it changes; empty for none."
    )
    egress_control: Path | None = _setting(
        None, "", "Socket of an egress process that runs elsewhere, as in compose; empty: the service runs one itself."
    )
    pip_index_url: str = _setting("", "", "Package index that pip uses inside the sandbox; empty for its own default.")
    npm_registry: str = _setting("", "", "Registry that npm uses inside the sandbox; empty for its own default.")
    proxy_network: str = _setting("", "", "Ignored with a warning: sandboxes reach the proxy over a socket.")

    @model_validator(mode="before")
    @classmethod
    def _empty_is_absent(cls, values: Any) -> Any:
        # Compose files pass `VARIABLE=` for what is not set. An empty list of the egress rules is a list, though.
        keep = ("egress_allowlist", "egress_ports")
        return {name: value for name, value in values.items() if value != "" or name in keep}

    @field_validator("api_key")
    @classmethod
    def _keys_are_long(cls, value: SecretStr | None) -> SecretStr | None:
        keys = _words(value.get_secret_value()) if value is not None else ()
        if any(len(key) < KEY_MIN_LENGTH for key in keys):
            raise ValueError(f"has a key of less than {KEY_MIN_LENGTH} characters")
        if any(not re.fullmatch(r"[!-~]+", key) for key in keys):
            raise ValueError("has a key with a space or a character outside ASCII, which no header can carry")
        return value if keys else None

    @field_validator("listen")
    @classmethod
    def _listen_is_an_address(cls, value: str) -> str:
        parse_listen(value)
        return value

    @field_validator("data_root", "link_dir", "egress_policy_file", "egress_control")
    @classmethod
    def _directories_are_absolute(cls, value: Path | None) -> Path | None:
        if value is None:
            return None
        if not value.is_absolute() or "\0" in str(value) or ".." in value.parts:
            raise ValueError("must be an absolute path without '..'")
        return value

    @field_validator("allowed_hosts")
    @classmethod
    def _hosts_are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not re.fullmatch(r"[A-Za-z0-9.-]+", host) for host in value):
            raise ValueError("must be host names without a scheme or port")
        return tuple(host.lower().rstrip(".") for host in value)

    @field_validator("allowed_origins")
    @classmethod
    def _origins_are_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#\s@]+", origin.lower()) for origin in value):
            raise ValueError("must be origins like https://chat.example.org, without a path")
        return tuple(origin.lower() for origin in value)

    @model_validator(mode="after")
    def _timeouts_fit(self) -> Settings:
        if self.default_timeout > self.max_timeout:
            raise ValueError("SANDBOX_DEFAULT_TIMEOUT is above SANDBOX_MAX_TIMEOUT")
        return self

    @property
    def keys(self) -> tuple[str, ...]:
        """The configured keys; empty if there is none."""
        return _words(self.api_key.get_secret_value()) if self.api_key is not None else ()

    @property
    def address(self) -> Listen:
        """Where to listen."""
        return parse_listen(self.listen)


def variable(field: str) -> str:
    """Return the variable that sets ``field``."""
    return PREFIX + field.upper()


def unknown_names(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each ``SANDBOX_*`` name in ``environ`` that there is not, with the nearest one there is."""
    known = [field.upper() for field in Settings.model_fields]
    sentences = []
    for name in sorted(environ):
        if name.upper().startswith(PREFIX) and name not in map(variable, known):
            near = difflib.get_close_matches(name.upper().removeprefix(PREFIX), known, n=1, cutoff=0.7)
            hint = f"; did you mean {PREFIX}{near[0]}?" if near else "; `cellbox config` lists those there are."
            sentences.append(f"{name[:100]!r} is not a variable of this service{hint}".replace("'", ""))
    return sentences


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings. Raises SettingsError with a sentence for each wrong variable.

    environ: the process's own if None.
    """
    environ = os.environ if environ is None else environ
    sentences = unknown_names(environ)
    values = {field: environ[variable(field)] for field in Settings.model_fields if variable(field) in environ}
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError("\n".join([*sentences, *(_sentence(detail) for detail in error.errors())])) from None
    if sentences:
        raise SettingsError("\n".join(sentences))
    return settings


def _sentence(detail: Any) -> str:
    message = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else detail["msg"].lower()
    if detail["type"] in ("int_parsing", "int_from_float"):
        message = "must be a whole number, without a unit"
    elif detail["type"] == "float_parsing":
        message = "must be a number, without a unit"
    message = message.replace("input should", "must")
    if not detail["loc"]:
        return f"{message}."
    given = "" if detail["loc"][0] == "api_key" or len(str(detail["input"])) > 80 else f" (it is {detail['input']!r})"
    return f"{variable(str(detail['loc'][0]))} {message.rstrip('.')}{given}."


def not_built(settings: Settings) -> list[str]:
    """Return a sentence for each value that would need what this version does not have: nothing is pretended."""
    wrong = {
        "scope_quota_mb": (
            settings.scope_quota_mb is not None and settings.runtime_backend == "process",
            "`process` isolates nothing, so its code could change its own quota; name another backend, or leave it empty",
        ),
        "mount_target": (settings.mount_target != "/opt/workspace", "can only be /opt/workspace in this version"),
        "user_mount_target": (settings.user_mount_target != "/opt/user", "can only be /opt/user in this version"),
    }
    return [f"{variable(field)}: {sentence}." for field, (is_wrong, sentence) in wrong.items() if is_wrong]


def warnings(settings: Settings) -> list[str]:
    """Return a sentence for each value that is accepted and that the operator should know about."""
    said = []
    if settings.proxy_network:
        said.append(
            "SANDBOX_PROXY_NETWORK is ignored: sandboxes have no network at all, the proxy is reached over a socket."
        )
    if settings.network not in ("none", "proxy"):
        said.append(
            f"SANDBOX_NETWORK={settings.network}: sandboxes reach whatever that network reaches, each other included."
        )
    if settings.uid is not None:
        said.append(
            f"SANDBOX_UID={settings.uid} is shared by all scopes: they share the kernel's limits per user, and with "
            "other programs of that user."
        )
    return said

"""The settings of the lock, in one frozen and validated object; the only place of their defaults."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from lock_manager.errors import SettingsError
from lock_manager.security import Security

#: Prefix of the environment variables for all settings.
ENVIRONMENT_PREFIX = "SLUICE_"
#: Prefix of the Spark settings for all settings but ``security``.
SPARK_PREFIX = "spark.sluice."
#: Spark setting of ``zk_hosts``.
SPARK_HOSTS = f"{SPARK_PREFIX}zookeeper"
#: Schemes of the URLs of coordinators.
S3_LEASE = "s3-lease"
_OPTIMISTIC = "optimistic"
#: Value of ``fallback``.
FALLBACK = _OPTIMISTIC
#: URL of the coordinator that grants no locks.
OPTIMISTIC_URL = f"{_OPTIMISTIC}://"
_ZOOKEEPER_SCHEMES = ("zookeeper", "zk")
#: Settings that name the coordinator. Exactly one of them is set.
_PLACES = {"zk_hosts", "lock_url"}
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?)(:(?P<port>\d{1,5}))?")
_MAX_PORT = 65535
_MAX_SECONDS = 7 * 24 * 3600.0


@dataclass(frozen=True, kw_only=True)
class LockSettings:
    """Settings of a lock manager.

    Attributes:
        zk_hosts: ``host:port,host:port[/chroot]`` of ZooKeeper. The port defaults to 2181.
        lock_url: ``s3-lease://BUCKET/PREFIX`` for locks on S3, or ``optimistic://`` for none, instead of ``zk_hosts``.
        fallback: ``optimistic`` to write without a lock, and to wait for other writers in ZooKeeper's queue only while
            it answers; empty for locks.
        timeout_seconds: Default time limit of an ``acquire``, connecting included. 0: acquire only if the lock is free.
        session_timeout_seconds: Session timeout that the client requests; the server may grant less or more. A dead
            holder's lock is free after the granted timeout.
        max_hold_seconds: Time after which a hold is given up and the commit guard refuses its commits. It limits jobs
            that hang and keep their session alive. None: no limit.
        lock_root: Znode below which tables are locked.
        job: Name of this job, shown to waiters.
        app_id: Spark application id, shown to waiters.
        security: Credentials, TLS and the ACL of new znodes; none of them by default.

    Raises:
        SettingsError: A value is malformed or outside its range. The message shows value and range, but never a secret.

    """

    zk_hosts: str = ""
    lock_url: str = ""
    fallback: str = ""
    timeout_seconds: float = 300.0
    session_timeout_seconds: float = 30.0
    max_hold_seconds: float | None = None
    lock_root: str = "/locks/delta_tables"
    job: str | None = None
    app_id: str | None = None
    security: Security = field(default_factory=Security)

    def __post_init__(self) -> None:
        """Validate the settings."""
        if not self.lock_url:
            _check_hosts(self.zk_hosts)
        elif self.zk_hosts:
            raise SettingsError(f"zk_hosts={self.zk_hosts!r} and lock_url={self.lock_url!r}: give one of them")
        elif self.fallback:
            raise SettingsError(f"fallback={self.fallback!r} is for ZooKeeper, but the locks are {self.lock_url}")
        elif not self.is_optimistic:
            bucket_and_prefix(self.lock_url)
        if self.fallback not in ("", FALLBACK):
            raise SettingsError(f"fallback={self.fallback!r}: must be {FALLBACK!r}, or empty for none")
        check_seconds("timeout_seconds", self.timeout_seconds)
        check_seconds("session_timeout_seconds", self.session_timeout_seconds, 1, 3600)
        if self.max_hold_seconds is not None:
            check_seconds("max_hold_seconds", self.max_hold_seconds, 1)
        if not re.fullmatch(r"(/[^/\x00-\x1f]+)+", self.lock_root) or any(
            part in (".", "..") for part in self.lock_root.split("/")
        ):
            raise SettingsError(
                f"lock_root={self.lock_root!r}: must be an absolute znode path such as /locks/delta_tables"
            )

    @property
    def is_optimistic(self) -> bool:
        """Whether no write relies on a lock: each version has one winner, and writes that lose are repeated."""
        return self.lock_url == OPTIMISTIC_URL or bool(self.fallback)

    @property
    def coordinator(self) -> str:
        """The hosts of ZooKeeper, or the URL of another coordinator, for messages."""
        return self.lock_url or (f"{self.zk_hosts}, else {self.fallback}" if self.fallback else self.zk_hosts)

    def of_coordinator(self, hosts_or_url: str) -> LockSettings:
        """Return the same settings for another coordinator: hosts of ZooKeeper, or a URL (:meth:`from_url`).

        Raises:
            SettingsError: The hosts or the URL are malformed.

        """
        if "://" in hosts_or_url:
            return replace(self, **{"zk_hosts": "", "lock_url": "", "fallback": "", **_url_settings(hosts_or_url)})
        return replace(self, zk_hosts=hosts_or_url, lock_url="", fallback="")

    @classmethod
    def merged(cls, base: str | LockSettings, **overrides: Any) -> LockSettings:
        """Return settings from a host list or from other settings, with overrides."""
        return replace(base, **overrides) if isinstance(base, LockSettings) else cls(zk_hosts=base, **overrides)

    @classmethod
    def from_env(
        cls, environ: Mapping[str, str] | None = None, *, hosts_hint: str = "pass zk_hosts", **overrides: Any
    ) -> LockSettings:
        """Read ``SLUICE_ZK_HOSTS`` or ``SLUICE_LOCK_URL``, ``SLUICE_TIMEOUT_SECONDS`` and so on; keywords win.

        :meth:`Security.from_env` reads ``security``.

        Args:
            environ: The environment; by default that of this process.
            hosts_hint: Another way for the user to name the ensemble, for the message if no hosts are set.
            overrides: Settings by name.

        Raises:
            SettingsError: A value is malformed, or nothing names an ensemble or another coordinator.

        """
        environ = os.environ if environ is None else environ
        variables = {name: ENVIRONMENT_PREFIX + name.upper() for name in _plain_fields()}
        texts = {name: environ[variable] for name, variable in variables.items() if variable in environ}
        for name in (*_PLACES, "fallback"):
            # A coordinator that the caller names replaces that of the environment, and its fallback.
            if not texts.get(name, "").strip() or _PLACES & overrides.keys():
                texts.pop(name, None)
        values = {**_parse_numbers(texts, source=f"{ENVIRONMENT_PREFIX}* in the environment"), **overrides}
        if "lock_url" in values:
            values = {**_url_settings(values.pop("lock_url")), **values}
        if not _PLACES & values.keys():
            raise SettingsError(
                f"no ensemble given: set {ENVIRONMENT_PREFIX}ZK_HOSTS=host:port,… or {hosts_hint}; or set "
                f"{ENVIRONMENT_PREFIX}LOCK_URL={S3_LEASE}://BUCKET/PREFIX"
            )
        if "security" not in values:
            values["security"] = Security.from_env(environ)
        return cls(**values)

    @classmethod
    def from_spark(
        cls, conf: Mapping[str, str], environ: Mapping[str, str] | None = None, **overrides: Any
    ) -> LockSettings:
        """Read Spark settings, such as ``spark.sluice.zookeeper`` and ``spark.sluice.timeoutSeconds``.

        They win over the environment, which :meth:`from_env` reads. Credentials are read from the environment only,
        because Spark shows its settings.

        Raises:
            SettingsError: A value is malformed, or no ensemble is named.

        """
        texts = {name: conf[key] for name, key in _spark_keys().items() if conf.get(key, "").strip()}
        values = _parse_numbers(texts, source=f"{SPARK_PREFIX}* in Spark's settings")
        hint = f"start the session with --conf {SPARK_HOSTS}=host:port,…"
        return cls.from_env(environ, hosts_hint=hint, **{**values, **overrides})

    @classmethod
    def from_url(cls, url: str, **overrides: Any) -> LockSettings:
        """Read the URL of a coordinator; keywords win over the URL.

        ::

            zookeeper://host:port,host:port/chroot?timeout_seconds=60&job=nightly
            zookeeper://host:port,host:port/chroot?fallback=optimistic
            s3-lease://BUCKET/PREFIX?session_timeout_seconds=20
            optimistic://?timeout_seconds=60

        ``zk://`` is the same as ``zookeeper://``. A URL must not contain credentials, because it appears in logs and on
        command lines. Pass ``security`` as a keyword.

        Raises:
            SettingsError: The URL is malformed, or has an unknown or malformed parameter.

        """
        return cls(**{**_url_settings(url), **overrides})


def _url_settings(url: str) -> dict[str, Any]:
    """Return the settings in the URL of a coordinator; see :meth:`LockSettings.from_url`."""
    parts = urlsplit(url)
    _refuse_credentials(parts.netloc)
    # Messages leave out the query, which may contain a password.
    base_url = url.partition("?")[0]
    if parts.scheme not in (*_ZOOKEEPER_SCHEMES, S3_LEASE) and base_url != OPTIMISTIC_URL:
        raise SettingsError(
            f"{base_url!r} is not the URL of a coordinator: write zookeeper://host:port,host:port[/chroot], "
            f"{S3_LEASE}://BUCKET/PREFIX or {OPTIMISTIC_URL}, and settings as ?setting=value"
        )
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    names = _plain_fields() - _PLACES
    if unknown := sorted(query.keys() - names):
        raise SettingsError(f"{base_url!r}: unknown setting {unknown[0]!r}; the URL may set {', '.join(sorted(names))}")
    path = "" if parts.path == "/" else parts.path
    place = {"lock_url": base_url} if parts.scheme in (S3_LEASE, _OPTIMISTIC) else {"zk_hosts": parts.netloc + path}
    return {**place, **_parse_numbers(query, source=repr(base_url))}


def bucket_and_prefix(url: str) -> tuple[str, str]:
    """Return the bucket and the prefix of ``s3-lease://BUCKET/PREFIX``; the prefix ends with a slash, or is empty.

    Raises:
        SettingsError: The URL is malformed.

    """
    scheme = f"{S3_LEASE}://"
    bucket, _, prefix = url.removeprefix(scheme).partition("/")
    parts = [part for part in prefix.split("/") if part]
    if not url.startswith(scheme) or not bucket or any(part in (".", "..") for part in parts):
        raise SettingsError(f"{url!r} is not a lock URL: write {scheme}BUCKET/PREFIX, or {OPTIMISTIC_URL}")
    return bucket, "".join(f"{part}/" for part in parts)


def _plain_fields() -> set[str]:
    """Return the names of the fields that can be set by one text: all but ``security``."""
    return {setting.name for setting in fields(LockSettings)} - {"security"}


def _spark_keys() -> dict[str, str]:
    """Return the Spark setting of each field, such as ``spark.sluice.lockRoot``."""
    keys = {name: SPARK_PREFIX + re.sub(r"_(\w)", lambda match: match[1].upper(), name) for name in _plain_fields()}
    return {**keys, "zk_hosts": SPARK_HOSTS}


def _refuse_credentials(hosts: str) -> None:
    if "@" in hosts:
        raise SettingsError(
            "the host list contains an '@': do not write credentials into it, because logs and command lines show it; "
            "set them as docs/security.md describes"
        )


def _parse_numbers(texts: Mapping[str, str], source: str) -> dict[str, Any]:
    """Return the settings, with numbers for those in seconds; ``source`` names their origin for messages."""
    values: dict[str, Any] = dict(texts)
    for name in ("timeout_seconds", "session_timeout_seconds", "max_hold_seconds"):
        if name in texts:
            try:
                values[name] = float(texts[name])
            except ValueError:
                raise SettingsError(f"{name}={texts[name]!r} ({source}): must be a number of seconds") from None
    return values


def check_seconds(name: str, value: float, low: float = 0, high: float = _MAX_SECONDS) -> None:
    """Raise SettingsError unless ``value`` is a number of seconds in the range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise SettingsError(f"{name}={value!r}: must be a number of seconds from {low:g} to {high:g}")


def names_coordinator(environ: Mapping[str, str]) -> bool:
    """Return whether ``SLUICE_ZK_HOSTS`` or ``SLUICE_LOCK_URL`` is set and not blank."""
    return any(environ.get(ENVIRONMENT_PREFIX + name.upper(), "").strip() for name in _PLACES)


def _check_hosts(zk_hosts: str) -> None:
    if not isinstance(zk_hosts, str) or not zk_hosts.strip():
        raise SettingsError(f"zk_hosts={zk_hosts!r}: must be host:port,host:port[/chroot]")
    _refuse_credentials(zk_hosts)
    hosts, slash, chroot = zk_hosts.partition("/")
    for host in hosts.split(","):
        match = _HOST.fullmatch(host.strip())
        if match is None or (match["port"] and not 1 <= int(match["port"]) <= _MAX_PORT):
            raise SettingsError(f"zk_hosts={zk_hosts!r}: {host!r} is not host:port; write host:port,host:port[/chroot]")
    if slash and (not chroot or any(part in ("", ".", "..") for part in chroot.split("/"))):
        raise SettingsError(
            f"zk_hosts={zk_hosts!r}: {slash + chroot!r} is not a chroot; write host:port,host:port/chroot"
        )

"""A real KDC (MIT Kerberos) on 127.0.0.1, with a realm of its own."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from lock_manager.testing.embedded import free_ports, start_supervised, stop_supervised
from lock_manager.testing.server_security import ServerKerberos, ServerSecurity

REALM = "SLUICE.TEST"
#: Principal of the servers of an ensemble on this machine.
SERVER = "zookeeper/localhost"
#: Debian keeps the programs of servers out of the path of users.
_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
_START_SECONDS = 20.0


def missing_requirement() -> str | None:
    """Return a program of the KDC, or the Python package of clients, that is not installed."""
    program = next((name for name in PROGRAMS if shutil.which(name, path=_PATH) is None), None)
    return program or (None if importlib.util.find_spec("gssapi") else "the Python package gssapi")


class Kdc:
    """A KDC, which ends with this process.

    Attributes:
        environment: Variables for clients: the realm, and a ticket cache in the folder, which does not exist yet.
        configuration: Configuration of clients (``krb5.conf``).

    """

    def __init__(self, folder: Path) -> None:
        (self._port,) = free_ports(1)
        self._server: subprocess.Popen[bytes] | None = None
        self._folder = folder
        self.configuration = folder / "krb5.conf"
        self.configuration.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            # The principal of a server has the name of the host list; else 127.0.0.1 would be looked up.
            " dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n"
            f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{self._port}\n }}\n"
        )
        (folder / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{self._port}\n kdc_tcp_listen = 127.0.0.1:{self._port}\n"
            f"[realms]\n {REALM} = {{\n  database_name = {folder}/principal\n  key_stash_file = {folder}/stash\n"
            "  supported_enctypes = aes256-cts-hmac-sha1-96:normal\n }\n"
            f"[logging]\n kdc = FILE:{self._log}\n"
        )
        self.cache = folder / "tickets"
        self.environment = {"KRB5_CONFIG": str(self.configuration), "KRB5CCNAME": f"FILE:{self.cache}"}
        self._run("kdb5_util", "create", "-s", "-P", "master", "-r", REALM)

    def add(self, principal: str, ticket_seconds: int = 3600) -> Path:
        """Add a principal with a random key; return its keytab."""
        keytab = self._folder / f"{principal.replace('/', '_')}.keytab"
        life = f'"{ticket_seconds} seconds"'
        self._administer(f"addprinc -randkey -maxlife {life} {principal}")
        self._administer(f"ktadd -norandkey -k {keytab} {principal}")
        return keytab

    def server_requirements(self) -> ServerSecurity:
        """Add the principal of the servers; return the requirements of a server that demands Kerberos."""
        identity = ServerKerberos(
            principal=f"{SERVER}@{REALM}", keytab=self.add(SERVER), configuration=self.configuration
        )
        return ServerSecurity(kerberos=identity, schemes=("sasl",))

    def change_key(self, principal: str) -> None:
        """Give a principal a new key, which its keytab does not have."""
        self._administer(f"cpw -randkey {principal}")

    def log_in(self, principal: str, keytab: Path, ticket_seconds: int = 3600) -> None:
        """Put a ticket into the ticket cache."""
        self._run("kinit", "-l", f"{ticket_seconds}s", "-k", "-t", str(keytab), principal)

    def issue_times(self, principal: str) -> list[int]:
        """Return when the KDC issued each initial ticket of a principal, in seconds since the epoch."""
        issues = re.findall(rf" AS_REQ .*ISSUE: authtime (\d+), .* {principal}@{REALM} for", self._log.read_text())
        return [int(seconds) for seconds in issues]

    def start(self) -> None:
        """Start the KDC and wait until it listens. Do nothing if it runs."""
        if self._server is not None:
            return
        command = [str(shutil.which("krb5kdc", path=_PATH)), "-n"]
        variables = [f"{name}={value}" for name, value in self._variables.items()]
        self._server = start_supervised(["/usr/bin/env", *variables, *command], self._folder / "kdc.out")
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", self._port)).close()
                return
            assert time.monotonic() < deadline, (self._folder / "kdc.out").read_text()
            time.sleep(0.01)

    def stop(self) -> None:
        """End the KDC. :meth:`start` starts it again with its principals."""
        server, self._server = self._server, None
        if server is not None:
            stop_supervised(server)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def _log(self) -> Path:
        return self._folder / "kdc.log"

    @property
    def _variables(self) -> dict[str, str]:
        return {**self.environment, "KRB5_KDC_PROFILE": str(self._folder / "kdc.conf")}

    def _administer(self, query: str) -> None:
        self._run("kadmin.local", "-r", REALM, "-q", query)

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(shutil.which(program, path=_PATH)), *arguments]
        subprocess.run(command, env={**os.environ, **self._variables}, check=True, capture_output=True, timeout=60)

"""The texts of a node's ``zoo.cfg`` and user data."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from pathlib import Path

CLIENT_PORT = 2281
QUORUM_PORT = 2888
ELECTION_PORT = 3888
LOCK_ROOT = "/locks/delta_tables"
#: Common name of the certificate of ZooKeeper's superuser, to which no ACL applies.
SUPER_USER = "sluice-operator"

ZOOKEEPER_VERSION = "3.9.5"
#: SHA-512 of apache-zookeeper-3.9.5-bin.tar.gz. Apache publishes it in the .sha512 file next to the archive.
ZOOKEEPER_SHA512 = (
    "baa1c21dda4d57238fca751e4fa2bbf1daff9a28612b125e497dccd5c188ee64"
    "49e2f79947e474c2dd4d19992789d4d36b27b1ba2feb80c2b0c45e7df0e22aa8"
)

NODE_FILES = Path(__file__).parents[1] / "node"
BOOTSTRAP = NODE_FILES / "bootstrap.sh"


def zoo_cfg(member_id: int, addresses: Mapping[int, str]) -> str:
    """Return the ``zoo.cfg`` of a member. ``addresses`` are those of all members, by id."""
    tls_folder, stores = "/etc/zookeeper/tls", []
    for prefix, trusted_file in (("ssl", "clients-ca.pem"), ("ssl.quorum", "members-ca.pem")):
        stores += [
            f"{prefix}.keyStore.location={tls_folder}/member.pem",
            f"{prefix}.keyStore.type=PEM",
            f"{prefix}.trustStore.location={tls_folder}/{trusted_file}",
            f"{prefix}.trustStore.type=PEM",
            f"{prefix}.clientAuth=need",
            f"{prefix}.enabledProtocols=TLSv1.3,TLSv1.2",
        ]
    lines = [
        # The limits are in ticks of 2 s: a follower has 20 s to load the state, and may lag 10 s behind the leader.
        "tickTime=2000",
        "initLimit=10",
        "syncLimit=5",
        # The longest timeout that a client may request. The lock's default is 30 s; jobs with long pauses need more.
        "maxSessionTimeout=120000",
        # The limit applies to each client address, and a machine may run many drivers.
        "maxClientCnxns=400",
        "dataDir=/var/lib/zookeeper/data",
        "dataLogDir=/var/lib/zookeeper/log",
        "autopurge.snapRetainCount=5",
        "autopurge.purgeInterval=6",
        "fsync.warningthresholdms=500",
        # Without clientPort, no port accepts clear text.
        f"secureClientPort={CLIENT_PORT}",
        f"secureClientPortAddress={addresses[member_id]}",
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
        "authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider",
        "enforce.auth.enabled=true",
        "enforce.auth.schemes=x509",
        # The creator of a znode sets its ACL, so operators need a superuser to remove any znode.
        f"X509AuthenticationProvider.superUser=CN={SUPER_USER}",
        "sslQuorum=true",
        *stores,
        "standaloneEnabled=false",
        # A member without data does not vote until it follows a leader. Otherwise a majority of such members could
        # elect a leader and serve an empty tree. In a new ensemble the bootstrap lets members vote.
        "db.autocreate=false",
        "reconfigEnabled=false",
        "admin.enableServer=false",
        "4lw.commands.whitelist=srvr,mntr,ruok",
        "audit.enable=true",
        "metricsProvider.className=org.apache.zookeeper.metrics.prometheus.PrometheusMetricsProvider",
        "metricsProvider.httpHost=127.0.0.1",
        "metricsProvider.httpPort=7000",
        "metricsProvider.exportJvmInfo=true",
        *(f"server.{number}={address}:{QUORUM_PORT}:{ELECTION_PORT}" for number, address in sorted(addresses.items())),
    ]
    return "".join(f"{line}\n" for line in lines)


def connection_string(addresses: Mapping[int, str]) -> str:
    """Return the connection string for clients: ``address:port``, comma-separated."""
    return ",".join(f"{address}:{CLIENT_PORT}" for _, address in sorted(addresses.items()))


def node_files() -> dict[str, Path]:
    """Return the files that a node downloads in addition to ZooKeeper, by object key. A key contains a content hash."""
    paths = sorted(path for path in NODE_FILES.iterdir() if path != BOOTSTRAP)
    return {f"node/{_sha256(path)[:16]}/{path.name}": path for path in paths}


def file_list(files: Mapping[str, Path]) -> str:
    """Return the lines that the bootstrap reads: SHA-256 and object key of each file."""
    return "\n".join(f"{_sha256(path)} {key}" for key, path in files.items())


def user_data(variables: Mapping[str, str]) -> str:
    """Return the user data of a node: assignments of the variables, with the prefix ``SLUICE_``, and the bootstrap."""
    assignments = "".join(f"SLUICE_{name}={shlex.quote(value)}\n" for name, value in variables.items())
    return f"#!/bin/bash\n{assignments}{BOOTSTRAP.read_text(encoding='utf-8')}"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

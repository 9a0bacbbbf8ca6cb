"""What a node is told: its ``zoo.cfg``, and its user data. Texts from values; no resources."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from pathlib import Path

CLIENT_PORT = 2281
QUORUM_PORT = 2888
ELECTION_PORT = 3888
METRICS_PORT = 7000
LOCK_ROOT = "/locks/delta_tables"
#: Common name of the certificate that every ACL lets pass.
SUPER_USER = "sluice-operator"
#: Longer than the lock's own default of 30 s, for jobs that ask for more because they pause for longer.
MAX_SESSION_TIMEOUT_MS = 120_000
#: 20 s for a follower to take the state over, 10 s to stay in step.
_TICK_MS, _INIT_TICKS, _SYNC_TICKS = 2000, 10, 5

ZOOKEEPER_VERSION = "3.9.5"
#: Of apache-zookeeper-3.9.5-bin.tar.gz; compare it with the .sha512 that Apache publishes beside the archive.
ZOOKEEPER_SHA512 = (
    "baa1c21dda4d57238fca751e4fa2bbf1daff9a28612b125e497dccd5c188ee64"
    "49e2f79947e474c2dd4d19992789d4d36b27b1ba2feb80c2b0c45e7df0e22aa8"
)

NODE_FILES = Path(__file__).parents[1] / "node"
BOOTSTRAP = NODE_FILES / "bootstrap.sh"


def zoo_cfg(node: int, members: Mapping[int, str]) -> str:
    """Return the configuration of one member.

    Args:
        node: its id.
        members: addresses of all members by id.

    """
    tls, stores = "/etc/zookeeper/tls", []
    for prefix, trusted in (("ssl", "clients-ca.pem"), ("ssl.quorum", "members-ca.pem")):
        stores += [
            f"{prefix}.keyStore.location={tls}/member.pem",
            f"{prefix}.keyStore.type=PEM",
            f"{prefix}.trustStore.location={tls}/{trusted}",
            f"{prefix}.trustStore.type=PEM",
            f"{prefix}.clientAuth=need",
            f"{prefix}.enabledProtocols=TLSv1.3,TLSv1.2",
        ]
    lines = [
        f"tickTime={_TICK_MS}",
        f"initLimit={_INIT_TICKS}",
        f"syncLimit={_SYNC_TICKS}",
        f"maxSessionTimeout={MAX_SESSION_TIMEOUT_MS}",
        # By address: a machine that runs many drivers has one.
        "maxClientCnxns=400",
        "dataDir=/var/lib/zookeeper/data",
        "dataLogDir=/var/lib/zookeeper/log",
        "autopurge.snapRetainCount=5",
        "autopurge.purgeInterval=6",
        "fsync.warningthresholdms=500",
        # No clientPort: nothing listens in clear text.
        f"secureClientPort={CLIENT_PORT}",
        f"secureClientPortAddress={members[node]}",
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
        "authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider",
        "enforce.auth.enabled=true",
        "enforce.auth.schemes=x509",
        # Whoever makes a znode says who may use it: somebody has to be able to take it away.
        f"X509AuthenticationProvider.superUser=CN={SUPER_USER}",
        "sslQuorum=true",
        *stores,
        "standaloneEnabled=false",
        # A member without data waits until it can follow a leader: two of them would elect one of themselves, and
        # serve an empty tree. Where there is nothing to lose yet, the bootstrap lets it vote.
        "db.autocreate=false",
        "reconfigEnabled=false",
        "admin.enableServer=false",
        "4lw.commands.whitelist=srvr,mntr,ruok",
        "audit.enable=true",
        "metricsProvider.className=org.apache.zookeeper.metrics.prometheus.PrometheusMetricsProvider",
        "metricsProvider.httpHost=127.0.0.1",
        f"metricsProvider.httpPort={METRICS_PORT}",
        "metricsProvider.exportJvmInfo=true",
        *(f"server.{each}={address}:{QUORUM_PORT}:{ELECTION_PORT}" for each, address in sorted(members.items())),
    ]
    return "".join(f"{line}\n" for line in lines)


def connection_string(members: Mapping[int, str]) -> str:
    """Return what clients connect to: ``address:port``, comma-separated."""
    return ",".join(f"{address}:{CLIENT_PORT}" for _, address in sorted(members.items()))


def node_files() -> dict[str, Path]:
    """Return what a node fetches beside ZooKeeper, by the key of the artifacts bucket, which names its content."""
    found = {}
    for path in sorted(NODE_FILES.iterdir()):
        if path != BOOTSTRAP:
            found[f"node/{_sha256(path)[:16]}/{path.name}"] = path
    return found


def file_list(files: Mapping[str, Path]) -> str:
    """Return the lines that the bootstrap reads: SHA-256 and key of each file."""
    return "\n".join(f"{_sha256(path)} {key}" for key, path in files.items())


def user_data(variables: Mapping[str, str]) -> str:
    """Return the user data of a node: its variables, without their prefix ``SLUICE_``, and the bootstrap."""
    told = "".join(f"SLUICE_{name}={shlex.quote(value)}\n" for name, value in variables.items())
    return f"#!/bin/bash\n{told}{BOOTSTRAP.read_text(encoding='utf-8')}"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

"""A JVM with the jars of Spark and Delta but no Spark driver, and its Py4J gateway."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from py4j.java_gateway import GatewayParameters, JavaGateway

from lock_manager.testing.class_archives import STORE, archive_options
from lock_manager.testing.embedded import find_java, find_spark_jars
from sluice.local.jars import jar_paths
from soak.errors import JvmError

_HOST = "127.0.0.1"
_FAST_START = (
    "-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote", "-XX:CICompilerCount=1", "-Xshare:auto",
)  # fmt: skip


def start_jvm(mode: str, stderr_path: Path) -> tuple[subprocess.Popen[bytes], int, str]:
    """Start a JVM with Py4J's gateway; return its process, port and token.

    Args:
        mode: Mode of the commit guard, ``required`` or ``off``.
        stderr_path: Log file for the JVM's standard error.

    Raises:
        JvmError: The JVM did not start.

    """
    jars = find_spark_jars()
    classpath = os.pathsep.join([f"{jars}/*", *map(str, jar_paths())])
    command = [
        find_java(), *_FAST_START, *archive_options(STORE), f"-Dspark.sluice.guard={mode}", "-cp", classpath,
        "py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0",
    ]  # fmt: skip
    with stderr_path.open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=tempfile.gettempdir()
        )
    assert process.stdout is not None  # noqa: S101 (stdout=PIPE)
    port, token = (process.stdout.readline().decode().strip() for _ in range(2))
    if not port.isdigit() or not token:
        process.kill()
        process.wait()
        raise JvmError(f"the JVM of the log store did not start; see {stderr_path}")
    return process, int(port), token


def connect(port: int, token: str) -> JavaGateway:
    """Return a gateway whose calls carry the token."""
    parameters = GatewayParameters(
        address=_HOST, port=port, auth_token=token, auto_convert=True, enable_memory_management=False
    )
    return JavaGateway(gateway_parameters=parameters)

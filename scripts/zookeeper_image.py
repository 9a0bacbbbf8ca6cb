"""Build a ZooKeeper image from files of this machine, for machines without a registry: ``make zookeeper-image``.

The image contains a small Java runtime (jlink), the libraries that ldd lists, and the ZooKeeper server of PySpark's
jars. The same JDK, jars and libraries give the same image id. The image is ``sluice-zookeeper:VERSION``. As in the
public image, a server reads ``/conf/zoo.cfg`` and stores its data in ``/data``.

Exit codes: 0 built; 1 a component is missing, or Docker refused. One sentence names the reason.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from lock_manager.errors import LocalServerError
from lock_manager.testing.embedded import find_java, find_server_jars, server_configuration
from soak.containers import OWN_IMAGE, docker_engine
from soak.errors import ContainerError

# log4j needs java.beans, a package of java.desktop.
_MODULES = (
    "java.base", "java.desktop", "java.logging", "java.management", "java.naming", "java.security.jgss",
    "java.security.sasl", "java.xml", "jdk.crypto.ec", "jdk.management", "jdk.unsupported",
)  # fmt: skip
_USER = 1000
_WRITABLE = ("conf", "data", "tmp")
_DATE = "2026-01-01T00:00:00Z"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_COMMAND = [
    "/opt/java/bin/java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
    "-Dorg.apache.logging.log4j.level=INFO", "-cp", "/opt/zookeeper/*",
    "org.apache.zookeeper.server.quorum.QuorumPeerMain",
]  # fmt: skip


class MissingError(Exception):
    """A component of the image is missing."""


def make_java(target: Path) -> None:
    """Create a Java runtime with the modules that a ZooKeeper server needs."""
    jlink = Path(find_java()).resolve().with_name("jlink")
    command = [str(jlink), "--add-modules", ",".join(_MODULES), "--strip-debug", "--no-header-files", "--no-man-pages",
               "--compress=2", "--output", str(target)]  # fmt: skip
    if not jlink.exists():
        raise MissingError(f"the image needs a complete JDK, and {jlink} is missing: install one, or set JAVA_HOME")
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        reason = (process.stdout + process.stderr).strip().splitlines()[0]
        raise MissingError(f"{jlink} failed to create a runtime: {reason}")


def libraries_of(java: Path) -> list[Path]:
    """Return the libraries of this machine that the runtime is linked with, including the loader."""
    if sys.platform != "linux":
        raise MissingError("the image contains this machine's C library, so it can be built on Linux only")
    binaries = [java / "bin" / "java", *java.rglob("*.so")]
    try:
        listing = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise MissingError(f"ldd did not list the libraries that Java is linked with: {error}") from error
    libraries = {Path(path) for path in re.findall(r"(/\S+) \(0x", listing)}
    # A C library before version 2.34 loads these by name for host name lookups, so ldd does not list them.
    by_name = {path.with_name(name) for path in libraries for name in ("libnss_dns.so.2", "libresolv.so.2")}
    libraries |= {path for path in by_name if path.is_file()}
    return sorted(path for path in libraries if java not in path.parents)


def add_content(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file to an archive, with the same attributes on each machine."""
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def write_layer(target: Path, java: Path) -> str:
    """Write the only layer of the image and return its digest. The same files give the same bytes."""
    jars = [jar for jar in find_server_jars() if not re.search(r"-(linux|osx|windows)-", jar.name)]
    files = {f"opt/java/{path.relative_to(java)}": path for path in java.rglob("*") if path.is_file()}
    files |= {f"opt/zookeeper/{jar.name}": jar for jar in jars}
    files |= {str(path).lstrip("/"): path for path in libraries_of(java)}
    configuration = server_configuration("/data", 2000, 40_000, "") + "clientPort=2181\n"
    with tarfile.open(target, "w") as tar:
        for name in sorted({str(folder) for file in files for folder in Path(file).parents} | set(_WRITABLE)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            entry.uid = entry.gid = _USER if name in _WRITABLE else 0
            tar.addfile(entry)
        add_content(tar, "conf/zoo.cfg", configuration.encode())
        for name, path in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = path.stat().st_size, 0o755 if path.stat().st_mode & 0o100 else 0o644
            with path.open("rb") as content:
                tar.addfile(entry, content)
    with target.open("rb") as layer_file:
        return hashlib.file_digest(layer_file, "sha256").hexdigest()


def write_image(target: Path, layer: Path, digest: str, name: str) -> None:
    """Write the image in the format of ``docker save``, for ``docker load``."""
    configuration = json.dumps(
        {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "created": _DATE,
            "config": {
                "User": f"{_USER}:{_USER}",
                "Entrypoint": _COMMAND,
                "Cmd": ["/conf/zoo.cfg"],
                "WorkingDir": "/data",
                "ExposedPorts": {"2181/tcp": {}, "2888/tcp": {}, "3888/tcp": {}},
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{"created": _DATE, "created_by": "make zookeeper-image"}],
        },
        sort_keys=True,
    ).encode()
    config_name = f"{hashlib.sha256(configuration).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with gzip.open(target, "wb", compresslevel=1) as compressed, tarfile.open(fileobj=compressed, mode="w") as tar:
        add_content(tar, config_name, configuration)
        add_content(tar, "manifest.json", manifest)
        tar.add(layer, "layer.tar")


def build() -> str:
    """Build the image and load it into the engine. Return a message with its size, the duration and its id."""
    started = time.monotonic()
    with docker_engine() as engine, tempfile.TemporaryDirectory(prefix="sluice-image-") as folder:
        base = Path(folder)
        make_java(base / "java")
        digest = write_layer(base / "layer.tar", base / "java")
        write_image(base / "image.tar.gz", base / "layer.tar", digest, OWN_IMAGE)
        with (base / "image.tar.gz").open("rb") as image_file:
            engine.client.images.load(image_file)
        image = engine.client.images.get(OWN_IMAGE)
    seconds = time.monotonic() - started
    return f"{OWN_IMAGE} is built: {image.attrs['Size'] / 1e6:.0f} MB, {seconds:.0f} s, {image.id}"


if __name__ == "__main__":
    try:
        print(build())
    except (ContainerError, LocalServerError, MissingError) as error:
        sys.exit(f"sluice: {error}")

"""A scratch folder on an HDFS of the user's choice. It is removed at the end.

The settings of the HDFS are those of ``HADOOP_CONF_DIR``. ``spark-submit`` runs Hadoop's own ``FsShell`` from Spark's
jars, so the machine needs no other client.
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from sluice.demo.processes import spark_submit
from sluice.errors import HdfsFolderError

_SHELL = "org.apache.hadoop.fs.FsShell"


def is_hdfs_folder(uri: str) -> bool:
    """Return whether ``uri`` is ``hdfs://NAME/FOLDER``; ``NAME`` is a name service or ``HOST:PORT``."""
    try:
        parts = urlsplit(uri)
        return parts.scheme == "hdfs" and bool(parts.hostname) and bool(parts.path.strip("/"))
    except ValueError:  # a malformed address
        return False


class HdfsFolder:
    """A scratch folder below a folder, which is created if it does not exist.

    ``with HdfsFolder("hdfs://lake/scratch") as folder: table = f"{folder.root}/flights"``

    Attributes:
        root: URI of the scratch folder.

    Raises:
        HdfsFolderError: The HDFS does not answer or refuses a request. All methods raise it.

    """

    def __init__(self, parent: str) -> None:
        self.root = f"{parent.rstrip('/')}/sluice-{uuid.uuid4().hex[:16]}"

    def copy(self, name: str, folder: Path) -> Path:
        """Copy a table to a folder on disk. Return the path of the copy."""
        folder.mkdir(exist_ok=True)
        self._run("-get", f"{self.root}/{name}", str(folder / name), advice="the table cannot be checked")
        return folder / name

    def __enter__(self) -> Self:
        self._run("-mkdir", "-p", self.root, advice="name the HDFS's settings in HADOOP_CONF_DIR")
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            self._run("-rm", "-r", "-f", "-skipTrash", self.root, advice="remove it yourself")
        except HdfsFolderError as stop_error:
            if error is None:
                raise
            # Do not hide the error of the block.
            sys.stderr.write(f"sluice: {stop_error}\n")

    def _run(self, *arguments: str, advice: str) -> None:
        command = [str(spark_submit()), "--driver-memory", "512m", "--class", _SHELL, "spark-internal", *arguments]
        process = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if process.returncode:
            lines = [line for line in process.stderr.splitlines() if line.strip() and not line[0].isspace()]
            # Some messages have the usage after them. If the shell does not start, its last line is that of the error.
            names = (f"{arguments[0]}:", f"{arguments[0][1:]}:")
            reason = next((line for line in lines if line.startswith(names)), lines[-1] if lines else "no message")
            raise HdfsFolderError(f"{arguments[0]} of {self.root} failed on HDFS ({reason}); {advice}")

"""A node of the ensemble in a folder: its scripts call stand-ins for the commands of AWS and of the machine.

The stand-in for ``aws`` answers with the parameters, the secret and the artifacts of the graph. Commands that need a
real machine (dnf, mkfs, mount, systemctl) only record their calls.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

from tests.support.graph import INFRA, Graph

AWS = """#!/bin/bash
echo "aws $*" >> "$SLUICE_ROOT/calls"
[[ ! -e $SLUICE_ROOT/aws-is-away ]] || exit 255
arguments=$*
while (($#)); do
  case $1 in
    --name | --secret-id) file=$SLUICE_ROOT/aws/${2//\\//_} ;;
    --value) [[ $arguments != *put-parameter* ]] || printf '%s\\n' "$2" > "$file" ;;
    s3://*) exec cp "$SLUICE_ROOT/aws/$(basename "$1")" "$2" ;;
  esac
  shift
done
[[ $arguments != *" get-"* ]] || exec cat "$file"
"""
RECORD_CALL = '#!/bin/bash\necho "${0##*/} $*" >> "$SLUICE_ROOT/calls"\n'
#: Exit status of blkid: 0 if the device has a file system, 2 if it is blank, another status if it cannot be read.
BLKID = '#!/bin/bash\necho "blkid $*" >> "$SLUICE_ROOT/calls"\nexit "$(cat "$SLUICE_ROOT/blkid-status")"\n'
#: On a new machine the user does not exist yet.
ID = "#!/bin/bash\nexit 1\n"
RECORDED_COMMANDS = (
    "dnf", "mkfs.xfs", "xfs_growfs", "mount", "systemctl", "groupadd", "useradd", "chown", "chgrp", "sleep",
    "amazon-cloudwatch-agent-ctl",
)  # fmt: skip
STAND_INS = {"aws": AWS, "blkid": BLKID, "id": ID} | dict.fromkeys(RECORDED_COMMANDS, RECORD_CALL)


class Machine:
    """A node of a stack in a folder.

    Attributes:
        root: The folder, which replaces the root of the file system.
        variables: Variables of the node's user data, without the prefix ``SLUICE_``.

    """

    def __init__(self, graph: Graph, node: int, root: Path) -> None:
        self.root = root
        self._user_data: str = graph.one("Instance", f"zookeeper-{node}").inputs["userData"]
        variable_lines = self._user_data.partition("set -euo pipefail")[0]
        assignments = re.findall(r"^SLUICE_(\w+)=((?:'[^']*'|\S*))$", variable_lines, re.MULTILINE)
        self.variables = {name: shlex.split(value)[0] for name, value in assignments}
        for folder in ("bin", "aws", "proc", "etc", "run/zookeeper", "dev/disk/by-id"):
            (root / folder).mkdir(parents=True)
        for name, text in STAND_INS.items():
            (root / "bin" / name).write_text(text)
            (root / "bin" / name).chmod(0o755)
        (root / "proc/meminfo").write_text("MemTotal:        1900000 kB\nMemFree: 1 kB\n")
        (root / "blkid-status").write_text("2")
        self._store(self.variables["PARAMETER"], graph.one("Parameter", f"zookeeper-{node}").inputs["value"])
        self.set_initialized("no")
        self._store(self.variables["SECRET"], graph.one("SecretVersion", f"zookeeper-{node}").inputs["secretString"])
        for name in ("DATA_VOLUME", "LOG_VOLUME"):
            volume = self.variables[name].replace("-", "")
            (root / f"dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_{volume}").touch()
        for line in self.variables["FILES"].splitlines():
            name = line.rpartition("/")[2]
            (root / "aws" / name).write_bytes((INFRA / "node" / name).read_bytes())

    def set_initialized(self, word: str) -> None:
        """Set the parameter that states whether the ensemble has ever had a leader: ``yes`` or ``no``."""
        self._store(self.variables["INITIALIZED"], f"{word}\n")

    @property
    def initialized(self) -> str:
        """The value of the parameter, ``yes`` or ``no``."""
        return self._file(self.variables["INITIALIZED"]).read_text().strip()

    def remove_initialized(self) -> None:
        """Remove the parameter, so that requests for it fail."""
        self._file(self.variables["INITIALIZED"]).unlink()

    def _file(self, name: str) -> Path:
        return self.root / "aws" / name.replace("/", "_")

    def _store(self, name: str, value: str) -> None:
        self._file(name).write_text(value)

    @property
    def calls(self) -> list[str]:
        """The command line of each call of a stand-in except ``id``."""
        file = self.root / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def environment(self) -> dict[str, str]:
        """Return the environment of the node's services."""
        variables = {f"SLUICE_{name}": value for name, value in self.variables.items()}
        path = f"{self.root / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, **variables, "SLUICE_ROOT": str(self.root), "PATH": path}

    def bootstrap(self, archive: Path, sha512: str) -> subprocess.CompletedProcess[str]:
        """Run the user data with an archive in place of ZooKeeper's."""
        (self.root / "aws" / self.variables["ARCHIVE"].rpartition("/")[2]).write_bytes(archive.read_bytes())
        script = self.root / "user-data"
        script.write_text(self._user_data.replace(self.variables["ARCHIVE_SHA512"], sha512))
        return self._run(["bash", str(script)])

    def run(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a script of the node."""
        return self._run(["bash", str(INFRA / "node" / script)], **environment)

    def _run(self, command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environment() | environment, capture_output=True, text=True, timeout=120, check=False
        )

"""Remove containers and networks when the parent ends. A script: ``python _container_reaper.py LABEL=VALUE``.

The parent holds the other end of this process's standard input. When that closes (the parent closed it, exited or was
killed), everything with the label is removed, with the containers' data.
"""

import os
import sys
from typing import Any

from docker.errors import DockerException, NotFound
from testcontainers.core.docker_client import DockerClient


def main(label: str) -> None:
    """Wait for the end of standard input, then remove what has the label."""
    client = DockerClient().client
    while os.read(0, 4096):
        pass
    left = 0
    for container in client.containers.list(all=True, filters={"label": label}):
        left += not _removed(container, force=True, v=True)
    for network in client.networks.list(filters={"label": label}):
        left += not _removed(network)
    client.close()
    if left:
        sys.exit(f"{left} containers or networks with the label {label} could not be removed: remove them yourself")


def _removed(what: Any, **how: bool) -> bool:
    """Remove one; tell whether it is gone. One that is refused does not keep the others."""
    try:
        what.remove(**how)
    except NotFound:
        return True
    except DockerException:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1])

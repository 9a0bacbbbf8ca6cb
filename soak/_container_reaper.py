"""Remove containers and networks when the parent ends. A script: ``python _container_reaper.py LABEL=VALUE``.

The parent holds the other end of this process's standard input. When that closes (the parent closed it, exited or was
killed), this process removes all containers and networks with the label, and the containers' data.
"""

import os
import sys
from typing import Any

from docker.errors import DockerException, NotFound
from testcontainers.core.docker_client import DockerClient


def main(label: str) -> None:
    """Wait for the end of standard input, then remove all containers and networks with the label."""
    client = DockerClient().client
    while os.read(0, 4096):
        pass
    failures = 0
    for container in client.containers.list(all=True, filters={"label": label}):
        failures += not _remove(container, force=True, v=True)
    for network in client.networks.list(filters={"label": label}):
        failures += not _remove(network)
    client.close()
    if failures:
        sys.exit(f"{failures} containers or networks with the label {label} could not be removed: remove them yourself")


def _remove(resource: Any, **options: bool) -> bool:
    """Remove a container or network; return whether it is gone. An error of Docker does not end the script."""
    try:
        resource.remove(**options)
    except NotFound:
        return True
    except DockerException:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1])

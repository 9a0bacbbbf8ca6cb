"""Remove containers and networks when the parent ends. A script: ``python _container_reaper.py LABEL=VALUE``.

The parent holds the other end of this process's standard input. When that closes (the parent closed it, exited or was
killed), everything with the label is removed, with the containers' data.
"""

import os
import sys

from testcontainers.core.docker_client import DockerClient


def main(label: str) -> None:
    """Wait for the end of standard input, then remove what has the label."""
    client = DockerClient().client
    while os.read(0, 4096):
        pass
    for container in client.containers.list(all=True, filters={"label": label}):
        container.remove(force=True, v=True)
    for network in client.networks.list(filters={"label": label}):
        network.remove()
    client.close()


if __name__ == "__main__":
    main(sys.argv[1])

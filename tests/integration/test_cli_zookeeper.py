"""`sluice zookeeper`: serves until Ctrl-C, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from lock_manager import ZookeeperLockManager

ROOT = Path(__file__).parents[2]


def test_it_serves_a_lock_manager_until_it_is_interrupted(tmp_path: Path, heed_ctrl_c: None) -> None:
    command = [sys.executable, "-m", "sluice", "zookeeper", "--data", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        hosts = process.stdout.readline().strip()
        with ZookeeperLockManager(hosts, 20) as manager, manager.acquire("s3://lake/flights") as hold:
            hold.check()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "sluice: stopped by SIGINT; everything that was started has been ended"
    host, port = hosts.split(":")
    with socket.socket() as connection:
        assert connection.connect_ex((host, int(port))) != 0
    assert any(tmp_path.rglob("version-2")), "the data was kept"

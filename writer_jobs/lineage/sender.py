"""Sends OpenLineage events in a thread of its own, so that no write waits for a collector."""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping

from writer_jobs.lineage.log_once import errors_logged
from writer_jobs.lineage.records import Connection, RunRecord

log = logging.getLogger(__name__)

#: Number of events that wait to be sent; further ones are dropped.
MAX_WAITING = 1_000
#: Seconds that the end of the process waits for the last events.
CLOSE_SECONDS = 5.0
_CONFIG_FILE = "openlineage.yml"
_TRANSPORT = "OPENLINEAGE__TRANSPORT"


class Sender:
    """Sends the events of this process, in order. No method raises an error, and only :meth:`close` waits.

    ``connect`` is called once, in the sender's thread.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        # Not a Queue: an exception in a signal handler can leave its Condition half acquired.
        self._records: queue.SimpleQueue[RunRecord | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sluice-lineage", daemon=True)
        self._start_lock = threading.Lock()
        self._put_count = self._sent_count = 0
        self._is_broken = self._has_dropped = self._has_failed = False
        self._deadline = 0.0

    def put(self, record: RunRecord) -> None:
        """Queue a record. If too many records wait, drop it."""
        with self._start_lock:
            self._put_count += 1
            if self._thread.ident is None:
                self._thread.start()
        if self._is_broken:
            return
        if self._records.qsize() < MAX_WAITING:
            self._records.put(record)
            return
        if not self._has_dropped:
            log.warning("lineage events are dropped: %d events wait to be sent", MAX_WAITING)
        self._has_dropped = True

    def close(self) -> None:
        """Wait until the records are sent, at most ``CLOSE_SECONDS``, and log the number of unsent ones."""
        if self._thread.ident is None:
            return
        self._deadline = time.monotonic() + CLOSE_SECONDS
        self._records.put(None)
        self._thread.join(CLOSE_SECONDS)
        unsent_count = self._put_count - self._sent_count
        if unsent_count:
            log.warning("%d of %d lineage events were not sent", unsent_count, self._put_count)

    def _run(self) -> None:
        try:
            connection = self._connect()
        except Exception as error:  # noqa: BLE001 (no error of lineage ends a write)
            self._is_broken = True
            log.warning("no lineage events are sent: %s", _without_credentials(error))
            return
        while (record := self._records.get()) is not None:
            self._send(connection, record)
        try:
            connection.close(max(0.0, self._deadline - time.monotonic()))
        except Exception as error:  # noqa: BLE001 (as above)
            log.warning("the last lineage events may not be sent: %s", _without_credentials(error))

    def _send(self, connection: Connection, record: RunRecord) -> None:
        try:
            connection.send(record)
        except Exception as error:  # noqa: BLE001 (as above)
            if not self._has_failed:
                log.warning("a lineage event was not sent: %s", _without_credentials(error))
            self._has_failed = True
        else:
            self._sent_count += 1


class _ProcessSender:
    """The sender of this process, created when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._deciding_pid = 0
        self._sender: Sender | None = None

    def get(self) -> Sender | None:
        """Return the sender; None if no transport is configured. The first call decides, also in a forked process."""
        with self._lock:
            if self._deciding_pid != os.getpid():
                self._deciding_pid, self._sender = os.getpid(), None
                with errors_logged():
                    if is_configured(os.environ):
                        self._sender = self._create()
            return self._sender

    def reset(self) -> None:
        """Close the sender. The next call of :meth:`get` reads the configuration again."""
        with self._lock:
            is_own = self._deciding_pid == os.getpid()
            sender, self._sender, self._deciding_pid = self._sender, None, 0
        if sender is not None and is_own:
            sender.close()

    def _create(self) -> Sender | None:
        if importlib.util.find_spec("openlineage") is None:
            log.warning(
                "OpenLineage is configured, but the driver lacks openlineage-python, so no lineage events are sent: "
                "install the extra lineage on the driver, or set OPENLINEAGE_DISABLED=true"
            )
            return None
        atexit.register(self.reset)
        return Sender(_connect)


#: The sender of this process.
PROCESS_SENDER = _ProcessSender()


def is_configured(environment: Mapping[str, str]) -> bool:
    """Return whether a transport is configured: by a variable of OpenLineage, or by a file that its library finds."""
    if environment.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return False
    if any(name in ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG") or name.startswith(_TRANSPORT) for name in environment):
        return True
    # Not with pathlib, which raises an error without a home folder, or without permission to look into a folder.
    folders = ("", os.path.join(os.path.expanduser("~"), ".openlineage"))  # noqa: PTH111, PTH118
    return any(os.path.isfile(os.path.join(folder, _CONFIG_FILE)) for folder in folders)  # noqa: PTH113, PTH118


def _without_credentials(error: Exception) -> str:
    """Return the message of an error without the user and the password of its URLs."""
    return re.sub(r"(?<=://)[^/@\s]*@", "", str(error))


def _connect() -> Connection:
    # Imports the library, which takes about a second.
    from writer_jobs.lineage.events import connection  # noqa: PLC0415 (only with a configured transport)

    return connection()

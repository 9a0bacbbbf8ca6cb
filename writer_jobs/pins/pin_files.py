"""The pins of a table, a file each, in a folder below its location."""

from __future__ import annotations

import json

from lock_manager.errors import PinError
from lock_manager.table_records.pins import PINS_FOLDER, Pin, check_name
from writer_jobs.delta.hadoop_files import HadoopFiles

_SUFFIX = ".json"


class PinFiles:
    """The pins of one table. They are written and removed under the lock on the table.

    Args:
        files: of the file system.
        location: of the table.

    Every method raises :class:`StorageError` if the file system refuses.

    """

    def __init__(self, files: HadoopFiles, location: str) -> None:
        self._files = files
        self._location = location
        self._folder = f"{location.rstrip('/')}/{PINS_FOLDER}"

    def all(self) -> list[Pin]:
        """Return all pins, also those that have expired, by name.

        Raises:
            PinError: one cannot be read, so that it is not known what it keeps.

        """
        found = (self._read(entry.path) for entry in self._files.children(self._folder) if _is_pin(entry.name))
        return [pin for pin in found if pin is not None]

    def find(self, name: str) -> Pin | None:
        """Return the pin of a name; None if there is none.

        Raises:
            PinError: it cannot be read, or no pin can have that name.

        """
        check_name(name)
        return self._read(self._path(name))

    def create(self, pin: Pin) -> None:
        """Write a pin, never over another one: whoever has lost the lock harms no pin of the next holder.

        Raises:
            StorageError: also if there is one of its name.

        """
        self._files.create_text(self._path(pin.name), json.dumps(pin.to_json(), indent=1) + "\n")

    def remove(self, pin: Pin) -> None:
        """Remove a pin, and no other one of its name; one that is not there is as good."""
        there = self.find(pin.name)
        if there is not None and there.pin_id == pin.pin_id:
            self._files.remove(self._path(pin.name))

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}{_SUFFIX}"

    def _read(self, path: str) -> Pin | None:
        text = self._files.read_text(path)
        return None if text is None else Pin.of_text(text, path)


def _is_pin(name: str) -> bool:
    return name.endswith(_SUFFIX) and not name.startswith(".")


def whole_pin(files: HadoopFiles, location: str, name: str) -> Pin:
    """Return a pin that each of its tables has.

    Args:
        files: of the file systems.
        location: of one of its tables.
        name: of the pin.

    Raises:
        PinError: there is none, or a run that made it, or removed it, was killed in the middle.
        StorageError: it cannot be read.

    """
    pin = PinFiles(files, location).find(name)
    if pin is None:
        raise PinError(f"{location} has no pin {name}")
    if not is_whole(files, pin):
        tables = ", ".join(each.table for each in pin.tables)
        raise PinError(
            f"pin {name} is not in all of its tables ({tables}): a run was killed, or a table is gone; remove the pin, "
            "or make it again"
        )
    return pin


def is_whole(files: HadoopFiles, pin: Pin) -> bool:
    """Tell whether each table of a pin has it."""
    return all(PinFiles(files, each.location).find(pin.name) == pin for each in pin.tables)

"""The pins of a table: one file per pin, in a folder below the table's location."""

from __future__ import annotations

import json

from lock_manager.errors import PinError
from lock_manager.table_records.pins import PINS_FOLDER, Pin, check_name
from writer_jobs.delta.hadoop_files import HadoopFiles

_SUFFIX = ".json"


class PinFiles:
    """The pins of one table. They are written and removed under the lock on the table.

    Every method raises :class:`StorageError` if the file system refuses, and :class:`PinError` if a name is invalid or
    a pin cannot be read. Without the content of a pin, the files that it keeps are unknown.
    """

    def __init__(self, files: HadoopFiles, location: str) -> None:
        self._files = files
        self._location = location
        self._folder = f"{location.rstrip('/')}/{PINS_FOLDER}"

    def all(self) -> list[Pin]:
        """Return all pins by name, including expired ones."""
        pins = (self._read(file.path) for file in self._files.json_files(self._folder))
        return [pin for pin in pins if pin is not None]

    def find(self, name: str) -> Pin | None:
        """Return the pin with a name; None if there is none."""
        check_name(name)
        return self._read(self._path(name))

    def get(self, name: str) -> Pin:
        """Return the pin with a name; raise PinError if there is none."""
        if (pin := self.find(name)) is None:
            raise PinError(f"{self._location} has no pin {name}")
        return pin

    def create(self, pin: Pin) -> None:
        """Write a new pin. A name that has a pin raises :class:`StorageError`.

        So a writer that has lost the lock cannot replace the pin of the next holder.
        """
        self._files.create_text(self._path(pin.name), json.dumps(pin.to_json(), indent=1) + "\n")

    def remove(self, pin: Pin) -> None:
        """Remove a pin if it exists, but not another pin with its name."""
        current = self.find(pin.name)
        if current is not None and current.pin_id == pin.pin_id:
            self._files.remove(self._path(pin.name))

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}{_SUFFIX}"

    def _read(self, path: str) -> Pin | None:
        text = self._files.read_text(path)
        return None if text is None else Pin.from_text(text, path)


def is_complete(files: HadoopFiles, pin: Pin) -> bool:
    """Return whether each table of a pin has the pin's file."""
    return all(PinFiles(files, pinned_table.location).find(pin.name) == pin for pinned_table in pin.tables)

"""Find the source files of a load."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from writer_jobs.delta.hadoop_files import FileStatus, HadoopFiles, is_glob
from writer_jobs.errors import SourceError, StorageError

_FORMAT_OF_SUFFIX = {"csv": "csv", "json": "json", "jsonl": "json", "ndjson": "json", "parquet": "parquet"}
_COMPRESSION_SUFFIXES = ("gz", "bz2", "zst", "zstd", "snappy", "lz4", "deflate")


@dataclass(frozen=True)
class SourceFiles:
    """The source files of a load.

    Attributes:
        files: The files, each once, sorted by path.
        base: Folder whose ``column=value`` sub-folders are columns; None without such folders.

    """

    files: tuple[FileStatus, ...]
    base: str | None

    @property
    def basis(self) -> list[list[Any]]:
        """Path, length in bytes and modification time in milliseconds of each file.

        All jobs bind a load with a run id to this list, so a file that is replaced by one of the same length makes
        another load.
        """
        return [[file.path, file.length, file.modified_ms] for file in self.files]

    @property
    def are_compressed(self) -> bool:
        """Whether the name of a file has the suffix of a compression."""
        return any(file.name.lower().rpartition(".")[2] in _COMPRESSION_SUFFIXES for file in self.files)

    @property
    def folder_columns(self) -> tuple[str, ...]:
        """Names of the columns whose values are in names of folders."""
        if self.base is None:
            return ()
        folders = self.files[0].path.removeprefix(f"{self.base}/").split("/")[:-1]
        return tuple(unquote(folder.partition("=")[0]) for folder in folders)

    @property
    def format(self) -> str:
        """The format that the files' names show.

        Raises:
            SourceError: The names show no format, or different formats.

        """
        formats = {_format_of(file.name) for file in self.files}
        if len(formats) != 1 or None in formats:
            raise SourceError("the format of the source files is not clear from their names: give --format")
        return str(formats.pop())


def newest_modification(basis: Iterable[Sequence[Any]]) -> float:
    """Return the newest modification time in a :attr:`SourceFiles.basis`, in seconds since the epoch; 0 if unknown."""
    # A basis of an earlier release may have no modification times.
    return max((file[2] for file in basis if len(file) > 2), default=0) / 1000  # noqa: PLR2004


def find_sources(files: HadoopFiles, sources: Iterable[str]) -> SourceFiles:
    """Find the files of paths, URIs, globs and folders.

    A folder means the files directly in it, or all files below it if its sub-folders are named ``column=value``. Names
    that Spark ignores (:attr:`.FileStatus.is_hidden`) are skipped.

    Raises:
        SourceError: A source does not exist, cannot be listed, is a file that Spark skips, is a folder of other
            folders, or has ``column=value`` folders and is not the only source; or the sources have no files.

    """
    files_by_path: dict[str, FileStatus] = {}
    bases: list[str] = []
    for source in sources:
        try:
            matches = _match(files, source)
            for match in matches:
                if match.is_folder:
                    matched_files, has_columns = _files_below(files, match)
                    bases += [match.path] if has_columns else []
                else:
                    matched_files = [match]
                files_by_path |= {file.path: file for file in matched_files}
        except StorageError as error:
            raise SourceError(f"source {error}") from error
        if not matches:
            raise SourceError(f"source {source} does not exist")
    if not files_by_path:
        raise SourceError(f"source {', '.join(sources)} has no files")
    if bases and any(not path.startswith(bases[0] + "/") for path in files_by_path):
        raise SourceError(f"source {bases[0]} has column=value folders: load it alone")
    return SourceFiles(tuple(files_by_path[path] for path in sorted(files_by_path)), bases[0] if bases else None)


def _match(files: HadoopFiles, source: str) -> list[FileStatus]:
    # The literal name takes precedence over the glob: brackets are legal in names.
    literal = files.status(source)
    if literal is not None:
        if literal.is_hidden and not literal.is_folder:
            raise SourceError(f"Spark skips source {source}, because of its name: rename the file")
        return [literal]
    if not is_glob(source):
        return []
    # Spark skips hidden files too, so the recorded files are those that Spark reads.
    return [match for match in files.glob(source) if match.is_folder or not match.is_hidden]


def _files_below(files: HadoopFiles, folder: FileStatus) -> tuple[list[FileStatus], bool]:
    """Return the files of a folder, and whether its sub-folders are columns."""
    files_below: list[FileStatus] = []
    has_columns = False
    for entry in files.children(folder.path):
        if entry.is_hidden:
            continue
        if not entry.is_folder:
            files_below.append(entry)
        elif "=" in entry.name:
            has_columns = True
            files_below += _files_below(files, entry)[0]
        else:
            raise SourceError(f"source {folder.path} has a sub-folder, {entry.name}: give the files, or a glob")
    return files_below, has_columns


def _format_of(name: str) -> str | None:
    parts = name.lower().split(".")
    if len(parts) > 1 and parts[-1] in _COMPRESSION_SUFFIXES:
        parts.pop()
    return _FORMAT_OF_SUFFIX.get(parts[-1]) if len(parts) > 1 else None

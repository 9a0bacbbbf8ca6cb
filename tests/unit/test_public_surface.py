"""The public names of ``sluice``. A change here changes the API for every user."""

from __future__ import annotations

import subprocess
import sys

import pytest

import lock_manager
import sluice


def test_sluice_exports_the_lock_the_writer_and_the_version() -> None:
    assert sluice.__all__ == [*lock_manager.__all__, "LockedDeltaWriter", "__version__"]
    for name in lock_manager.__all__:
        assert getattr(sluice, name) is getattr(lock_manager, name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = sluice.Nothing  # type: ignore[attr-defined]


def test_pyspark_is_imported_with_the_writer_only() -> None:
    program = (
        "import sys, sluice\n"
        "assert 'pyspark' not in sys.modules, 'import sluice has imported pyspark'\n"
        "assert 'deltalake' not in sys.modules, 'import sluice has imported deltalake'\n"
        "assert 'typer' not in sys.modules, 'import sluice has imported typer'\n"
        "from sluice import LockedDeltaWriter\n"
        "assert 'pyspark' in sys.modules\n"
        "import writer_jobs\n"
        "assert LockedDeltaWriter is writer_jobs.LockedDeltaWriter\n"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr

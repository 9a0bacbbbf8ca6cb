"""What `import sluice` offers. A change here is a change for every user."""

from __future__ import annotations

import subprocess
import sys

import pytest

import lock_manager
import sluice


def test_the_public_names_are_the_locks_and_two_more() -> None:
    assert sluice.__all__ == [*lock_manager.__all__, "LockedDeltaWriter", "__version__"]
    for name in lock_manager.__all__:
        assert getattr(sluice, name) is getattr(lock_manager, name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = sluice.Nothing  # type: ignore[attr-defined]


def test_pyspark_is_imported_when_the_writer_is_asked_for_and_not_before() -> None:
    program = (
        "import sys, sluice\n"
        "assert 'pyspark' not in sys.modules, 'too early'\n"
        "assert 'deltalake' not in sys.modules and 'typer' not in sys.modules, 'more than is needed'\n"
        "from sluice import LockedDeltaWriter\n"
        "assert 'pyspark' in sys.modules\n"
        "import writer_jobs\n"
        "assert LockedDeltaWriter is writer_jobs.LockedDeltaWriter\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

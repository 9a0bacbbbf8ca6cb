"""``build_session`` suppresses PySpark's warning about pandas 3, which would be printed among a program's results."""

from __future__ import annotations

import warnings

import pandas as pd
import pytest
from pyspark.sql.pandas.utils import require_minimum_pandas_version

from writer_jobs.delta import session


@pytest.mark.skipif(pd.__version__ < "3", reason="PySpark warns of pandas 3 and later")
def test_build_session_suppresses_the_pandas_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "running_session", object)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(FutureWarning, match="fully support pandas"):
            require_minimum_pandas_version()
        session.build_session("program")
        require_minimum_pandas_version()
        with pytest.raises(FutureWarning, match="another"):
            warnings.warn("another", FutureWarning, stacklevel=1)

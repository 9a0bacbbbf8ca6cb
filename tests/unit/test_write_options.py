"""The options that all operations of ``LockedDeltaWriter`` have: names, defaults, and the deprecated ``hold``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from writer_jobs import LockedDeltaWriter

#: By name: a function that calls the operation with options, and its default of ``lock_during``.
OPERATIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "append": (lambda writer, **options: writer.append(None, **options), "commit"),
    "overwrite": (lambda writer, **options: writer.overwrite(None, **options), "write"),
    "delete": (lambda writer, **options: writer.delete(**options), "write"),
    "update": (lambda writer, **options: writer.update({}, **options), "write"),
    "execute": (lambda writer, **options: writer.merge(None, "true").execute(**options), "write"),
    "optimize": (lambda writer, **options: writer.optimize(**options), "commit"),
    "purge": (lambda writer, **options: writer.purge(**options), "commit"),
    "rewrite": (lambda writer, **options: writer.rewrite(None, **options), "commit"),
}
REWRITES = ("optimize", "purge", "rewrite")

Options = Callable[..., Mapping[str, Any]]


@pytest.fixture(params=OPERATIONS)
def operation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def options_of(operation: str, monkeypatch: pytest.MonkeyPatch) -> Options:
    """Call an operation with options, and return the options that it runs with."""
    monkeypatch.setattr(LockedDeltaWriter, "_run", lambda _writer, _name, _work, _find, options, **_: options)
    monkeypatch.setattr(LockedDeltaWriter, "_optimizing_session", lambda *_: None)
    writer = LockedDeltaWriter.__new__(LockedDeltaWriter)
    return lambda **options: OPERATIONS[operation][0](writer, **options)


def test_lock_during_has_a_default_for_each_operation(operation: str, options_of: Options) -> None:
    default = OPERATIONS[operation][1]
    assert options_of() == {"lock_during": default}
    options = {"lock_during": {"commit": "write", "write": "commit"}[default], "lock_timeout_seconds": 3}
    assert options_of(**options) == options


def test_the_old_name_of_lock_during_is_deprecated(options_of: Options) -> None:
    for value in ("commit", "write"):
        with pytest.warns(DeprecationWarning, match="use lock_during=") as warnings:
            assert options_of(hold=value) == {"lock_during": value}
        assert [warning.filename for warning in warnings] == [__file__]
    with pytest.raises(TypeError, match="both hold and lock_during"):
        options_of(hold="write", lock_during="write")


def test_unknown_options_are_refused(operation: str, options_of: Options) -> None:
    with pytest.raises(TypeError, match=rf"{operation}\(\) got an unexpected keyword argument 'lock_for'"):
        options_of(lock_for="commit")
    for name, value in (("again", False), ("held_at_most_seconds", 1.0)):
        if operation in REWRITES:
            assert options_of(**{name: value})[name] is value
        else:
            with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
                options_of(**{name: value})


def test_an_unknown_value_of_lock_during_is_refused(options_of: Options) -> None:
    with pytest.raises(ValueError, match="lock_during='never': choose 'commit' or 'write'"):
        options_of(lock_during="never")


@pytest.mark.parametrize("operation", ["overwrite", "rewrite"], indirect=True)
def test_replacing_the_table_needs_the_lock_of_the_table(options_of: Options) -> None:
    assert options_of(lock="table")["lock"] == "table"
    with pytest.raises(ValueError, match="lock='table'"):
        options_of(lock="partitions")

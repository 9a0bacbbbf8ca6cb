"""Cast text to Spark's types without changing the value.

Spark's own casts round decimals, cut a time from a date, drop a time zone and complete half a timestamp with the
current date. Here such a text has no value: the caller refuses it or sets it aside.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

_WHOLE = r"^[+-]?\d+$"
_NUMBER = r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?$"
_NOT_FINITE = ("nan", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity")
_DAY = r"[+-]?\d{4,6}-\d{1,2}-\d{1,2}"
_TIME = r"\d{1,2}:\d{2}(:\d{2}(\.\d{1,6}0*)?)?"
_ZONE = r" ?(Z|UTC|GMT|[+-]\d{1,2}(:?\d{2})?(:?\d{2})?|[A-Z][A-Za-z_]+(/[A-Za-z_+-]+)+)"
_DATE = rf"^{_DAY}([T ]0{{1,2}}:00(:00(\.0+)?)?)?$"
_LOCAL = rf"^{_DAY}([T ]{_TIME})?$"
_ZONED = rf"^{_DAY}[T ]{_TIME}{_ZONE}$"
_MOST_DIGITS = 38
_EXACT_DIGITS: dict[type[DataType], int] = {FloatType: 6, DoubleType: 15}
"""Decimal digits that a type keeps in every number (``FLT_DIG`` and ``DBL_DIG`` of C)."""


def exact_cast(text: Column, target: DataType) -> Column:
    """Return the value of a text; null if the text is not exactly a value of the type.

    Blanks around a value are not removed. A timestamp without a time zone is in the session's time zone; it has no
    value in the hour that a clock change leaves out. A floating-point number is the nearest to the text, but a whole
    number that the type cannot hold exactly has no value.

    Args:
        text: a column of strings.
        target: a type of which :func:`has_exact_cast` is true.

    Raises:
        TypeError: for any other type.

    """
    cast = next((cast for types, cast in _CASTS if isinstance(target, types)), None)
    if cast is None:
        raise TypeError(f"no exact cast from text to {target.simpleString()}")
    return cast(text, target)


def has_exact_cast(target: DataType) -> bool:
    """Return whether :func:`exact_cast` has this type."""
    return any(isinstance(target, types) for types, _ in _CASTS)


def _string(text: Column, _: DataType) -> Column:
    return text


def _boolean(text: Column, target: DataType) -> Column:
    return F.when(F.lower(text).isin("true", "false"), text.try_cast(target))


def _whole(text: Column, target: DataType) -> Column:
    whole = F.regexp_replace(text, r"\.0*$", "")
    return F.when(whole.rlike(_WHOLE), whole.try_cast(target))


def _decimal(text: Column, target: DataType) -> Column:
    assert isinstance(target, DecimalType)  # noqa: S101 (_CASTS calls it for these alone)
    value = text.try_cast(target)
    # One short expression for the ordinary number: the others take ten times as long.
    plain = _plain(max(1, target.precision - target.scale), target.scale)
    return F.when(text.rlike(plain), value).when(text.rlike(_NUMBER) & (_decimal_places(text) <= target.scale), value)


def _plain(digits: int, decimal_places: int) -> str:
    fraction = rf"(\.\d{{1,{decimal_places}}})?" if decimal_places else ""
    return rf"^-?\d{{1,{digits}}}{fraction}$"


def _decimal_places(number: Column) -> Column:
    """Return how many digits a number has behind its point, without zeros at its end."""
    fraction = F.length(F.regexp_extract(number, r"^[^.eE]*\.(\d*?)0*([eE]|$)", 1))
    exponent = F.coalesce(F.regexp_extract(number, r"[eE]([+-]?\d+)$", 1).try_cast("int"), F.lit(0))
    return fraction - exponent


def _floating(text: Column, target: DataType) -> Column:
    value, exact = text.try_cast(target), DecimalType(_MOST_DIGITS, 0)
    finite = ~value.isin(*(F.lit(name).cast(target) for name in ("Infinity", "-Infinity")))
    kept = (F.length(text) <= _EXACT_DIGITS[type(target)]) | (value.try_cast(exact) == text.try_cast(exact))
    number = text.rlike(_NUMBER) & finite & (~text.rlike(_WHOLE) | kept)
    half = _EXACT_DIGITS[type(target)] // 2
    return F.when(text.rlike(_plain(half, half)), value).when(number | F.lower(text).isin(*_NOT_FINITE), value)


def _date(text: Column, target: DataType) -> Column:
    return F.when(text.rlike(_DATE), F.regexp_extract(text, rf"^({_DAY})", 1).try_cast(target))


def _local(text: Column, target: DataType) -> Column:
    return F.when(text.rlike(_LOCAL), text.try_cast(target))


def _timestamp(text: Column, target: DataType) -> Column:
    value = text.try_cast(target)
    is_kept = value.cast(TimestampNTZType()) == text.try_cast(TimestampNTZType())
    return F.when(text.rlike(_ZONED) | (text.rlike(_LOCAL) & is_kept), value)


_CASTS: tuple[tuple[tuple[type[DataType], ...], Callable[[Column, DataType], Column]], ...] = (
    ((StringType,), _string),
    ((BooleanType,), _boolean),
    ((ByteType, ShortType, IntegerType, LongType), _whole),
    ((DecimalType,), _decimal),
    ((FloatType, DoubleType), _floating),
    ((DateType,), _date),
    ((TimestampNTZType,), _local),
    ((TimestampType,), _timestamp),
)

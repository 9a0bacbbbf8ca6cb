"""Cast text to Spark's types without changing the value.

Spark's own casts round decimals, cut a time from a date, drop a time zone and complete an incomplete timestamp with the
current date. Here such a text has no value: the caller refuses it or sets it aside.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql import types as T  # noqa: N812 (its name everywhere)

MOST_DIGITS = 38
"""Largest precision of a ``decimal``, in digits."""
EXACT_DIGITS: dict[type[T.DataType], int] = {T.FloatType: 6, T.DoubleType: 15}
"""Decimal digits that a type keeps in every number (``FLT_DIG`` and ``DBL_DIG`` of C)."""
DOUBLE_DIGITS = 17
"""Number of significant digits that is enough to distinguish any two values of type ``double`` (IEEE 754)."""
# Java's "$" also matches before a newline at the end; "\\z" does not.
_WHOLE = r"^[+-]?\d+\z"
_NUMBER = r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?\z"
_NOT_FINITE = ("nan", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity")
_DAY = r"[+-]?\d{4,6}-\d{1,2}-\d{1,2}"
_TIME = r"\d{1,2}:\d{2}(:\d{2}(\.\d{1,6}0*)?)?"
_ZONE = r" ?(Z|UTC|GMT|[+-]\d{1,2}(:?\d{2})?(:?\d{2})?|[A-Z][A-Za-z_]+(/[A-Za-z_+-]+)+)"
_DATE = rf"^{_DAY}([T ]0{{1,2}}:00(:00(\.0+)?)?)?\z"
_LOCAL = rf"^{_DAY}([T ]{_TIME})?\z"
_ZONED = rf"^{_DAY}[T ]{_TIME}{_ZONE}\z"
_LONG_LIMIT = float(1 << 63)
_DAY_MICROS = 24 * 60 * 60 * 1_000_000


def exact_cast(text: Column, target: T.DataType) -> Column:
    """Return the value of a text; null if the text is not exactly a value of the type.

    Blanks and newlines around a value are not removed. A timestamp without a time zone is in the session's time zone.
    It has no value in an hour that a clock change leaves out or repeats. A floating-point value is the nearest to the
    text. A whole number that the type cannot hold exactly has no value, unless the nearest value is printed with the
    digits of the text (``1e23``). A number other than zero whose nearest value is zero has no value.
    A type that :func:`has_exact_cast` does not accept raises TypeError.
    """
    cast = next((cast for types, cast in _CASTS if isinstance(target, types)), None)
    if cast is None:
        raise TypeError(f"no exact cast from text to {target.simpleString()}")
    return cast(text, target)


def has_exact_cast(target: T.DataType) -> bool:
    """Return whether :func:`exact_cast` casts to this type."""
    return any(isinstance(target, types) for types, _ in _CASTS)


def _cast_boolean(text: Column, target: T.DataType) -> Column:
    return F.when(F.lower(text).isin("true", "false"), text.try_cast(target))


def _cast_whole(text: Column, target: T.DataType) -> Column:
    digits = F.regexp_replace(text, r"\.0*\z", "")
    return F.when(digits.rlike(_WHOLE), digits.try_cast(target))


def _cast_decimal(text: Column, target: T.DataType) -> Column:
    assert isinstance(target, T.DecimalType)  # noqa: S101 (_CASTS uses it for decimals only)
    value = text.try_cast(target)
    # A plain number needs one short expression. The other expressions take ten times as long.
    plain_number = _plain_number(max(1, target.precision - target.scale), target.scale)
    return F.when(text.rlike(plain_number), value).when(
        text.rlike(_NUMBER) & (_decimal_places(text) <= target.scale), value
    )


def _plain_number(digits: int, decimal_places: int) -> str:
    """Return the pattern of a number without an exponent, with at most so many digits before and after the point."""
    fraction = rf"(\.\d{{1,{decimal_places}}})?" if decimal_places else ""
    return rf"^-?\d{{1,{digits}}}{fraction}\z"


def _decimal_places(number: Column) -> Column:
    """Return the number of digits after the decimal point, without trailing zeros; negative for a multiple of ten."""
    digits = _digits(number)
    fraction = F.length(F.regexp_extract(number, r"\.(\d*)", 1))
    exponent = F.coalesce(F.regexp_extract(number, r"[eE]([+-]?\d+)\z", 1).try_cast("int"), F.lit(0))
    trailing_zeros = F.length(digits) - F.length(F.regexp_replace(digits, r"0+\z", ""))
    return F.when(digits.rlike("[1-9]"), fraction - exponent - trailing_zeros).otherwise(0)


def _cast_floating(text: Column, target: T.DataType) -> Column:
    value = text.try_cast(target)
    # Spark casts a floating-point number to a decimal through its shortest text, and casts 2**63 to 2**63 - 1.
    integer = F.when(F.abs(value) < _LONG_LIMIT, value.try_cast("bigint"))
    is_finite = ~value.isin(*(F.lit(name).cast(target) for name in ("Infinity", "-Infinity")))
    digits = _significant_digits(text)
    rounds_to_zero = (value == F.lit(0).cast(target)) & (digits != "")
    is_exact = (
        (F.length(digits) <= EXACT_DIGITS[type(target)])
        | (digits == _significant_digits(value.cast("string")))
        | F.coalesce(text.try_cast(T.DecimalType(MOST_DIGITS, 0)) == integer, F.expr("false"))
    )
    is_number = text.rlike(_NUMBER) & is_finite & ~rounds_to_zero & ((_decimal_places(text) > 0) | is_exact)
    half_digits = EXACT_DIGITS[type(target)] // 2
    return F.when(text.rlike(_plain_number(half_digits, half_digits)), value).when(
        is_number | F.lower(text).isin(*_NOT_FINITE), value
    )


def _significant_digits(number: Column) -> Column:
    """Return the digits of a number without leading and trailing zeros: "15" for 0.0150e7; empty for zero."""
    return F.regexp_replace(_digits(number), r"^0+|0+\z", "")


def _digits(number: Column) -> Column:
    """Return the digits of a number before its exponent."""
    return F.regexp_replace(F.regexp_replace(number, r"[eE].*\z", ""), "[+.-]", "")


def _cast_date(text: Column, target: T.DataType) -> Column:
    return F.when(text.rlike(_DATE), F.regexp_extract(text, rf"^({_DAY})", 1).try_cast(target))


def _cast_local(text: Column, target: T.DataType) -> Column:
    return F.when(text.rlike(_LOCAL), text.try_cast(target))


def _cast_timestamp(text: Column, target: T.DataType) -> Column:
    value = text.try_cast(target)
    is_unambiguous = is_one_moment(value, text.try_cast(T.TimestampNTZType()))
    return F.when(text.rlike(_ZONED) | (text.rlike(_LOCAL) & is_unambiguous), value)


def is_one_moment(value: Column, local_time: Column) -> Column:
    """Return whether a local time is exactly one moment in the session's time zone.

    Args:
        value: Moment to which Spark casts the local time: the earlier one, if a clock change repeats the local time.
        local_time: Local time, of type ``timestamp_ntz``.

    """
    micros, next_day = F.unix_micros(value), F.timestamp_micros(F.try_add(F.unix_micros(value), F.lit(_DAY_MICROS)))
    # If clocks are set back within a day, the only other moment with this local time is later by the setback.
    setback = _offset(value) - _offset(next_day)
    later_local_time = F.timestamp_micros(F.try_add(micros, setback)).cast(T.TimestampNTZType())
    is_repeated = F.coalesce((setback > 0) & (later_local_time == local_time), F.expr("false"))
    return (value.cast(T.TimestampNTZType()) == local_time) & ~is_repeated


def _offset(moment: Column) -> Column:
    """Return the offset of the session's time zone from UTC, in microseconds."""
    return F.unix_micros(F.from_utc_timestamp(moment, F.current_timezone())) - F.unix_micros(moment)


_CASTS: tuple[tuple[tuple[type[T.DataType], ...], Callable[[Column, T.DataType], Column]], ...] = (
    ((T.StringType,), lambda text, _: text),
    ((T.BooleanType,), _cast_boolean),
    ((T.ByteType, T.ShortType, T.IntegerType, T.LongType), _cast_whole),
    ((T.DecimalType,), _cast_decimal),
    ((T.FloatType, T.DoubleType), _cast_floating),
    ((T.DateType,), _cast_date),
    ((T.TimestampNTZType,), _cast_local),
    ((T.TimestampType,), _cast_timestamp),
)

"""What messages of several stores have in common: how they write numbers, and JSON."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DoubleType

from writer_jobs.delta.exact_cast import DOUBLE_DIGITS, EXACT_DIGITS, MOST_DIGITS

_STRINGS = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_NUMBERS = rf"{_STRINGS}|(-?\d[\d.]*(?:[eE][+-]?\d+)?)"
_MAYBE_TOO_LONG = rf"\d[\d.]{{{MOST_DIGITS},}}|\d[\d.]{{{EXACT_DIGITS[DoubleType]},}}[eE]|\d[eE][+-]?\d{{3,}}"


def sign_extended(hexed: Column, size: int) -> Column:
    """Return the hexadecimal digits of a two's complement, big-endian, as those of one of ``size`` bytes.

    What has more is cut: look at its length before.
    """
    return F.lpad(hexed, F.lit(2 * size), F.when(F.substring(hexed, 1, 1) >= "8", "F").otherwise("0"))


def whole_number(octets: Column) -> Column:
    """Return the digits of a two's complement, big-endian, of at most eight bytes, with its sign; a text."""
    return F.conv(sign_extended(F.hex(octets), 8), 16, -10)


def listed(text: Column) -> Column:
    """Parse JSON as the elements of a list with :func:`end_mark` at its end.

    Spark's parser passes over what follows a value. The mark shows that it came to the end of the text.

    Null if the text is not UTF-8, is no JSON, or names a field twice.
    """
    return F.try_parse_json(
        F.concat(F.lit("["), F.when(F.is_valid_utf8(text), text), F.lit(","), end_mark(text), F.lit("]"))
    )


def end_mark(text: Column) -> Column:
    """Return a number to put behind a text, which the text cannot contain unless by intent: its hash."""
    return F.xxhash64(text)


def only_one(elements: Column, text: Column) -> Column:
    """Return the value of a text; null if it has none, or several, or anything behind its value.

    Args:
        elements: what :func:`listed` returns for the text.
        text: the text.

    """
    first = F.try_variant_get(elements, "$[0]", "variant")
    return F.when(F.try_variant_get(elements, "$[1]", "bigint") == end_mark(text), first)


def has_long_number(text: Column, digits: int = DOUBLE_DIGITS) -> Column:
    """Return whether JSON has a number, outside its texts, that ``VARIANT`` stores as another one.

    ``VARIANT`` stores numbers of more than 38 digits, and those with an exponent, as ``double``.

    Args:
        text: The JSON.
        digits: Most significant digits of a number with an exponent.

    """
    numbers = F.regexp_extract_all(text, F.lit(_NUMBERS), F.lit(1))
    is_long = F.exists(numbers, lambda number: _is_changed(number, digits))
    return F.coalesce(text.rlike(_MAYBE_TOO_LONG) & is_long, F.expr("false"))


def _is_changed(number: Column, most_digits: int) -> Column:
    stored, exponent = number.try_cast("double"), number.rlike("[eE]")
    digits = significant_digits(number)
    overflow = stored.isin(float("inf"), float("-inf")) | ((stored == 0) & (digits > 0))
    most = F.when(exponent, most_digits).otherwise(MOST_DIGITS)
    return (number != "") & ((digits > most) | (exponent & overflow))


def significant_digits(number: Column) -> Column:
    """Return the number of digits of a number's text before its exponent, without zeros at its beginning."""
    return F.length(F.regexp_replace(F.regexp_replace(number, r"[-.]|[eE].*\z", ""), "^0+", ""))

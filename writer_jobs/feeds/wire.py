"""What messages of several stores have in common: how they write numbers, and JSON."""

from __future__ import annotations

from collections.abc import Callable

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


def only_value(text: Column, parse: Callable[[Column], Column] = F.try_parse_json) -> Column:
    """Return the parsed value of a text; null unless the text is exactly one JSON value in UTF-8.

    Spark's parser passes over what follows a value. So the text is parsed as a list that ends with the hash of the
    text, which shows that the parser came to the end.

    Args:
        text: The JSON.
        parse: Returns the variant of a text, null if it is no JSON or names a field twice.

    """
    mark = F.xxhash64(text)
    values = parse(F.concat(F.lit("["), F.when(F.is_valid_utf8(text), text), F.lit("\n,"), mark, F.lit("]")))

    def first(pair: Column) -> Column:
        last = F.try_variant_get(pair["values"], "$[1]", "bigint")
        return F.when(last == pair["mark"], F.try_variant_get(pair["values"], "$[0]", "variant"))

    return once(F.struct(values.alias("values"), mark.alias("mark")), first)


def is_object(value: Column) -> Column:
    """Return whether a parsed value is an object."""
    return F.try_variant_get(value, "$", "struct<_: variant>").isNotNull()


def text_of(value: Column) -> Column:
    """Return a scalar's text, or the JSON of anything else."""
    return F.try_variant_get(value, "$", "string")


def member(value: Column, *names: str) -> Column:
    """Return a part of a parsed value; null if there is none, or if it is JSON's null."""
    part = F.try_variant_get(value, path(*names), "variant")
    return F.when(~F.is_variant_null(part), part)


def path(*names: str) -> str:
    """Return the path to a part of a parsed value, for ``try_variant_get``."""
    quote = "'" if any('"' in name for name in names) else '"'
    return "$" + "".join(f"[{quote}{name}{quote}]" for name in names)


def once(value: Column, then: Callable[[Column], Column]) -> Column:
    """Compute a value once for an expression that needs it several times.

    Args:
        value: A value.
        then: Returns the expression. It must not name columns: in the expression, Spark takes an alias of the same
            ``select`` for the column of this name.

    """
    return F.transform(F.array(value), then)[0]


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

"""Column expressions for values in messages: parsed JSON, and integers in two's complement."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DoubleType

from writer_jobs.delta.exact_cast import DOUBLE_DIGITS, EXACT_DIGITS, MOST_DIGITS

_STRINGS = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
# The group is empty where a string matches, so digits inside strings are skipped.
_NUMBERS = rf"{_STRINGS}|(-?\d[\d.]*(?:[eE][+-]?\d+)?)"
# The digits of a number are read without backtracking; then a lookbehind counts them.
_MAYBE_TOO_LONG = (
    rf"\d[\d.]*+(?:(?<=[\d.]{{{MOST_DIGITS + 1}}})"
    rf"|[eE](?:(?<=[\d.]{{{EXACT_DIGITS[DoubleType] + 1}}}[eE])|[+-]?\d{{3,}}))"
)


def sign_extend(hex_digits: Column, size: int) -> Column:
    """Extend a big-endian two's complement, in hexadecimal digits, to ``size`` bytes.

    A longer value is cut, so the caller must check the length first.
    """
    return F.lpad(hex_digits, F.lit(2 * size), F.when(F.substring(hex_digits, 1, 1) >= "8", "F").otherwise("0"))


def integer_text(octets: Column) -> Column:
    """Return the decimal text of a big-endian two's complement of at most eight bytes."""
    return F.conv(sign_extend(F.hex(octets), 8), 16, -10)


def parse_single_value(text: Column, parse: Callable[[Column], Column] = F.try_parse_json) -> Column:
    """Return the JSON value of a text that is exactly one value in UTF-8; null for any other text.

    Spark's parser ignores what follows a value. So the text is parsed as a list whose last element is the hash of the
    text. The hash shows that the parser reached the end. ``parse`` returns the variant of a text; null if the text is
    not JSON or has a duplicate field.
    """
    text_hash = F.xxhash64(text)
    values = parse(F.concat(F.lit("["), F.when(F.is_valid_utf8(text), text), F.lit("\n,"), text_hash, F.lit("]")))

    def first_value(pair: Column) -> Column:
        last_value = F.try_variant_get(pair["values"], "$[1]", "bigint")
        return F.when(last_value == pair["hash"], F.try_variant_get(pair["values"], "$[0]", "variant"))

    return compute_once(F.struct(values.alias("values"), text_hash.alias("hash")), first_value)


def is_object(value: Column) -> Column:
    """Return whether a variant is a JSON object."""
    return F.try_variant_get(value, "$", "struct<_: variant>").isNotNull()


def object_fields(value: Column) -> Column:
    """Return the fields of a variant that is a JSON object, as a map; null for any other value."""
    return F.try_variant_get(value, "$", "map<string,variant>")


def variant_text(value: Column) -> Column:
    """Return the text of a scalar variant, or the JSON of any other one."""
    return F.try_variant_get(value, "$", "string")


def member(value: Column, *names: str) -> Column:
    """Return a nested field of a variant; null if the field is missing or is JSON's null."""
    nested_field = F.try_variant_get(value, variant_path(*names), "variant")
    return F.when(~F.is_variant_null(nested_field), nested_field)


def variant_path(*names: str) -> str:
    """Return the path of a nested field for ``try_variant_get``."""
    quote = "'" if any('"' in name for name in names) else '"'
    return "$" + "".join(f"[{quote}{name}{quote}]" for name in names)


def compute_once(value: Column, expression: Callable[[Column], Column]) -> Column:
    """Compute a value once for an expression that uses it several times.

    The expression must not name columns: in a lambda function, an alias of the same ``select`` hides the column of
    this name.
    """
    return F.transform(F.array(value), expression)[0]


def has_inexact_number(text: Column, digits: int = DOUBLE_DIGITS) -> Column:
    """Return whether JSON has a number, outside its strings, that ``VARIANT`` stores as a different number.

    ``VARIANT`` stores a number with more than 38 decimal places, and one with an exponent, as ``double``. Such a number
    counts as different if it has more than ``digits`` significant digits, or becomes infinity or 0; any other number
    does if it has more than 38 digits.
    """
    numbers = F.regexp_extract_all(text, F.lit(_NUMBERS), F.lit(1))
    has_inexact = F.exists(numbers, lambda number: _is_inexact(number, digits))
    return F.coalesce(text.rlike(_MAYBE_TOO_LONG) & has_inexact, F.expr("false"))


def _is_inexact(number: Column, most_digits: int) -> Column:
    """Return whether ``VARIANT`` stores the number in a text as a different number."""
    stored_number = number.try_cast("double")
    is_double = number.rlike(rf"[eE]|\.\d{{{MOST_DIGITS + 1}}}")
    digits = significant_digits(number)
    is_out_of_range = stored_number.isin(float("inf"), float("-inf")) | ((stored_number == 0) & (digits > 0))
    limit = F.when(is_double, most_digits).otherwise(MOST_DIGITS)
    return (number != "") & ((digits > limit) | (is_double & is_out_of_range))


def significant_digits(number: Column) -> Column:
    """Return the number of digits before the exponent of a number's text, without leading zeros."""
    return F.length(F.regexp_replace(F.regexp_replace(number, r"[-.]|[eE].*\z", ""), "^0+", ""))

"""Decimals whose unscaled value is a big-endian two's complement."""

from __future__ import annotations

from decimal import Decimal
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, DecimalType

from writer_jobs.delta.exact_cast import MOST_DIGITS
from writer_jobs.feeds.message_values import compute_once, integer_text, sign_extend

#: Maximum number of digits of a decimal that :func:`long_decimal` returns.
LONG_DIGITS = 18
_LONG_BYTES = 8
_MOST_BYTES = 16
# Hexadecimal digits of a word of 32 bits.
_WORD_DIGITS = 8
_SHIFT = 1 << 32
_INTEGER = DecimalType(MOST_DIGITS, 0)
_LARGEST = Decimal(10**MOST_DIGITS - 1)


def long_decimal(unscaled_value: Column, scale: int) -> Column:
    """Return the decimal of a two's complement of at most 64 bits and 18 digits; null for a longer one."""
    unit = F.lit(Decimal(1).scaleb(-scale)).cast(DecimalType(scale + 1, scale))
    fits = F.length(unscaled_value).between(1, _LONG_BYTES)
    # If the factors had more digits, Spark would round the product to at most 38 digits.
    return F.when(fits, integer_text(unscaled_value).try_cast(DecimalType(LONG_DIGITS, 0)) * unit)


def cast_decimal(number: Column, data_type: DataType) -> Column:
    """Cast a decimal; null if the cast would lose digits."""
    return F.when(number.try_cast(data_type) == number, number.try_cast(data_type))


def decimal_text(unscaled_value: Column, scale: Column) -> Column:
    """Return the text of a big-endian two's complement with a scale, without an exponent.

    Null for more than 38 digits, the most that Spark's decimals have.
    """
    fits = (F.length(unscaled_value) > 0) & (F.length(unscaled_value) <= _MOST_BYTES)
    integer = compute_once(F.hex(unscaled_value), _integer)
    decimal = F.struct(integer.alias("integer"), scale.alias("scale"))
    return F.when(fits, compute_once(decimal, lambda parts: _text(parts["integer"], parts["scale"])))


def _text(integer: Column, scale: Column) -> Column:
    """Return the text of a number. The columns are parts of one column that is computed once."""
    return compute_once(_digits(integer, scale), lambda digits: _with_point(integer, digits, scale))


def _integer(hex_digits: Column) -> Column:
    """Return the integer of a two's complement of at most 32 hexadecimal digits; null if it has over 38 digits."""
    is_negative = F.substring(hex_digits, 1, 1) >= "8"
    padded_digits = sign_extend(hex_digits, _MOST_BYTES)
    words = [
        F.conv(F.substring(padded_digits, 1 + _WORD_DIGITS * index, _WORD_DIGITS), 16, 10).cast(_INTEGER)
        for index in range(4)
    ]
    # A negative number n is computed as -1 - (-n - 1), because its first words alone can have more than 38 digits.
    words = [F.when(is_negative, F.lit(_SHIFT - 1).cast(_INTEGER) - word).otherwise(word) for word in words]
    total = reduce(
        lambda total, word: F.try_add(F.try_multiply(total, F.lit(_SHIFT).cast("decimal(11,0)")).cast(_INTEGER), word),
        words,
    )
    negative_number = F.lit(-1).cast(_INTEGER) - F.nullif(total, F.lit(_LARGEST).cast(_INTEGER))
    return F.when(is_negative, negative_number).otherwise(total)


def _digits(number: Column, scale: Column) -> Column:
    """Return the digits of a number with a scale, with at least one digit before the point."""
    # Spark's abs and unary minus round a decimal to 34 digits.
    digits = F.concat(F.regexp_replace(number.cast("string"), "^-", ""), F.repeat(F.lit("0"), -scale))
    return F.lpad(digits, F.greatest(F.length(digits), scale + 1), F.lit("0"))


def _with_point(number: Column, digits: Column, scale: Column) -> Column:
    sign = F.when(number < 0, "-").otherwise("")
    whole_part = F.substring(digits, F.lit(1), F.length(digits) - F.greatest(scale, F.lit(0)))
    return F.concat(sign, whole_part, F.when(scale > 0, F.concat(F.lit("."), F.right(digits, scale))).otherwise(""))

"""The search for numbers that ``VARIANT`` may store as different ones; Python and Java read the expression alike."""

from __future__ import annotations

import re

import pytest

from writer_jobs.feeds.message_values import _MAYBE_TOO_LONG


@pytest.mark.parametrize(
    ("number", "may_be_too_long"),
    [
        ("1" * 38, False),
        ("1" * 39, True),
        (f"0.{'1' * 36}", False),
        (f"0.{'1' * 37}", True),
        (f"{'1' * 15}e2", False),
        (f"{'1' * 16}e2", True),
        (f"1.{'1' * 14}E-2", True),
        ("1e99", False),
        ("1e100", True),
        ("1.5E+308", True),
        ("1.5E-99", False),
    ],
)
def test_numbers_with_many_digits_or_a_large_exponent_are_found(number: str, *, may_be_too_long: bool) -> None:
    text = f'{{"a":-{number},"b":12.5,"c":"e"}}'
    assert bool(re.search(_MAYBE_TOO_LONG, text)) == may_be_too_long

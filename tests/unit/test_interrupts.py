"""The first request to stop interrupts; while what was started is being ended, further ones are ignored."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from sluice.interrupts import Interrupted, defer_signals, interruptible

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    """Whatever the tests were started to ignore, as background jobs are."""
    before = [signal.signal(number, signal.default_int_handler) for number in SIGNALS]
    yield
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_first_signal_interrupts_and_the_next_ones_do_not(number: signal.Signals, code: int) -> None:
    cleaned_up = False
    with pytest.raises(Interrupted) as caught, interruptible():
        try:
            os.kill(os.getpid(), number)
            pytest.fail("not interrupted")
        finally:
            for each in SIGNALS:
                os.kill(os.getpid(), each)
            cleaned_up = True
    assert cleaned_up
    assert caught.value.exit_code == code
    assert isinstance(caught.value, KeyboardInterrupt)
    assert str(caught.value) == number.name
    assert [signal.getsignal(each) for each in SIGNALS] == [signal.default_int_handler] * 3


def test_what_was_ignored_from_the_start_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with interruptible():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.parametrize("error", [None, RuntimeError("what the block started got the same signal")])
def test_a_signal_is_held_back_until_the_block_is_over_or_has_failed(error: Exception | None) -> None:
    done = False
    with pytest.raises(Interrupted) as caught, interruptible(), defer_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        done = True
        if error is not None:
            raise error
    assert (done, caught.value.exit_code) == (True, 143)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.default_int_handler])
def test_a_handler_that_a_library_puts_in_place_of_ours_is_undone(handler: signal.Handlers) -> None:
    signal.signal(signal.SIGINT, handler)
    with defer_signals():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    assert signal.getsignal(signal.SIGINT) is handler


def test_what_another_handler_makes_of_ctrl_c_is_the_same() -> None:
    with pytest.raises(Interrupted) as caught, interruptible():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.kill(os.getpid(), signal.SIGINT)
    assert caught.value.exit_code == 130

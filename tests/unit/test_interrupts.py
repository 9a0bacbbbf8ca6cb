"""The first stop signal interrupts a program; further signals are ignored while the program ends its children."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from sluice.interrupts import Interrupted, defer_signals, interruptible

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    """Set default handlers, because pytest may run as a background job that ignores signals."""
    handlers = [signal.signal(number, signal.default_int_handler) for number in SIGNALS]
    yield
    for number, handler in zip(SIGNALS, handlers, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_first_signal_interrupts_and_later_ones_do_not(number: signal.Signals, code: int) -> None:
    cleaned_up = False
    with pytest.raises(Interrupted) as error, interruptible():
        try:
            os.kill(os.getpid(), number)
            pytest.fail("the signal did not interrupt the block")
        finally:
            for later_signal in SIGNALS:
                os.kill(os.getpid(), later_signal)
            cleaned_up = True
    assert cleaned_up
    assert error.value.exit_code == code
    assert isinstance(error.value, KeyboardInterrupt)
    assert str(error.value) == number.name
    assert [*map(signal.getsignal, SIGNALS)] == [signal.default_int_handler] * 3


def test_a_signal_that_was_ignored_before_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with interruptible():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.parametrize("failure", [None, RuntimeError("a child of the block got the same signal")])
def test_a_signal_is_deferred_until_the_block_ends_or_fails(failure: Exception | None) -> None:
    completed = False
    with pytest.raises(Interrupted) as error, interruptible(), defer_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        completed = True
        if failure is not None:
            raise failure
    assert (completed, error.value.exit_code) == (True, 143)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.default_int_handler])
def test_a_handler_that_a_library_replaced_is_restored(handler: signal.Handlers) -> None:
    signal.signal(signal.SIGINT, handler)
    with defer_signals():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_keyboard_interrupt_of_another_handler_exits_with_130() -> None:
    with pytest.raises(Interrupted) as error, interruptible():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.kill(os.getpid(), signal.SIGINT)
    assert error.value.exit_code == 130

"""One sentence out of an exception of the JVM: Spark wraps the reason in up to six layers and two pages."""

from __future__ import annotations

import re
from collections.abc import Iterator

from py4j.java_gateway import JavaObject, is_instance_of
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors.exceptions.captured import CapturedException

#: What py4j raises when the JVM is gone or does not answer: what it was asked to do may have been done. The errors of
#: sockets one by one, for a lost lock is a ConnectionError, too.
LOST_CONTACT = (
    Py4JNetworkError,
    BrokenPipeError,
    ConnectionAbortedError,
    ConnectionRefusedError,
    ConnectionResetError,
)
#: What py4j raises when the JVM refused something, or is gone.
JVM_ERRORS = (Py4JJavaError, CapturedException, *LOST_CONTACT)

#: Error class of ``raise_error``.
RAISED = "USER_RAISED_EXCEPTION"

# Lines that say no more than that something failed which other lines name.
_WRAPPERS = re.compile(
    r"Job aborted|Task failed while writing rows|An error occurred while calling|Exception thrown in awaitResult"
    r"|Writing job aborted|A metadata mismatch was detected"
)
_NOISE = (
    re.compile(r"^\[[A-Z0-9_.]+\]\s*"),  # error class
    re.compile(r"\s*SQLSTATE: \w{5}.*$", re.DOTALL),
    re.compile(r"\s*\(Service: [^()]*\)(\s*\(SDK Attempt Count: \d+\))?.*$", re.DOTALL),  # of the AWS SDK
    re.compile(r"\b[a-z]\w*(\.[a-z]\w*)+\.\w+(Exception|Error): "),  # names of Java classes
)
_CONFLICT = re.compile(r"(io\.)?delta\.exceptions\..*(Concurrent\w+|MetadataChanged|ProtocolChanged)Exception")
# Delta raises it if the columns have changed between the analysis of a statement and its transaction.
_CHANGED_SINCE = "DELTA_SCHEMA_CHANGE_SINCE_ANALYSIS"
# Delta's list of refused names; its own advice names no property.
_REFUSED_NAMES = re.compile(r"Invalid column names: (.+?)\.\s+Please use other characters", re.DOTALL)
_CAUSES = 20
_LONGEST = 300


def is_java(error: BaseException, class_name: str) -> bool:
    """Tell whether ``error`` is, or was caused by, an instance of a class of the Java library."""
    gateway = SparkContext._gateway  # noqa: SLF001 (py4j's only way to ask)
    return any(is_instance_of(gateway, layer, class_name) for layer in _layers(error))


def is_conflict(error: BaseException | None) -> bool:
    """Tell whether Delta refused a write because of what another transaction had committed meanwhile."""
    if error is None:
        return False
    # Delta's Python module has made them exceptions of its own, without the Java one.
    names = [f"{kind.__module__}.{kind.__name__}" for kind in type(error).__mro__]
    names += [str(layer.getClass().getName()) for layer in _layers(error)]
    return any(_CONFLICT.fullmatch(name) for name in names) or has_condition(error, _CHANGED_SINCE)


def has_condition(error: BaseException, *prefixes: str) -> bool:
    """Tell whether an error class of Spark or Delta that begins so is among the causes."""
    return any(
        (layer.getMessage() or "").lstrip().startswith(tuple(f"[{prefix}" for prefix in prefixes))
        for layer in _layers(error)
    )


def one_sentence(error: BaseException) -> str:
    """Say in one line why a call into the JVM failed, from the outermost layer that says anything to the innermost."""
    if isinstance(error, LOST_CONTACT):
        return f"the driver's JVM is gone or does not answer ({_innermost(error)})"
    if refused := _REFUSED_NAMES.search(str(error)):
        return (
            f"Delta stores the column names {refused[1]} only with column mapping: pass --column-mapping to create the "
            "table with it, set the property delta.columnMapping.mode to name on an existing table, or rename them"
        )
    said: list[str] = []
    for layer in _layers(error):
        if layer.getClass().getSimpleName() == "UnknownStoreException":
            return "the bucket does not exist"
        message = _gist(layer.getMessage() or "")
        if message and not any(message in other or other in message for other in said):
            said.append(message)
    if not said:
        return _gist(str(error)) or type(error).__name__
    # The outermost names the file or the command, the innermost the reason; what is between repeats them.
    chosen = said if len(said) <= 3 else [said[0], *said[-2:]]  # noqa: PLR2004 (see above)
    return ": ".join(part.rstrip(".:") for part in chosen)


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return f"{type(error).__name__}: {_gist(str(error))}"


def messages_of(error: BaseException) -> Iterator[str]:
    """Yield the whole messages of the JVM's exception and of its causes."""
    for layer in _layers(error):
        yield layer.getMessage() or ""


def _layers(error: BaseException) -> Iterator[JavaObject]:
    """Go from the JVM's exception behind a Python one through its causes."""
    found = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    return java_layers(found if isinstance(found, JavaObject) else None)


def java_layers(exception: JavaObject | None) -> Iterator[JavaObject]:
    """Go from a Java exception through its causes."""
    layer = exception
    for _ in range(_CAUSES):
        if layer is None:
            return
        yield layer
        layer = layer.getCause()


def _gist(message: str) -> str:
    """Return a message without stack trace, advice, codes and class names: its first line, or all of a short one."""
    text = message.strip().split("\n\tat ")[0].split("\n\n")[0]
    for noise in _NOISE:
        text = noise.sub("", text)
    lines = [line.strip(" -\t") for line in text.splitlines()]
    lines = [line for line in lines if line and not _WRAPPERS.match(line)]
    joined = " ".join(lines)
    gist = joined if len(joined) <= _LONGEST else lines[0]
    return gist if len(gist) <= _LONGEST else gist[: _LONGEST - 1] + "…"

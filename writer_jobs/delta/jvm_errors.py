"""Summarize exceptions of the JVM in one sentence. Spark wraps the reason in up to six layers and two pages of text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from py4j.java_gateway import JavaObject, is_instance_of
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import CapturedException

#: Errors that py4j raises when the JVM is gone or does not answer. The JVM may have executed the call. The errors of
#: sockets are listed one by one, because ``LockLostError`` is a ``ConnectionError``, too.
LOST_CONTACT = (Py4JNetworkError, BrokenPipeError, ConnectionAbortedError, ConnectionRefusedError, ConnectionResetError)
#: Errors that py4j and PySpark raise when a call failed in the JVM, or when the JVM is gone.
JVM_ERRORS = (Py4JJavaError, CapturedException, *LOST_CONTACT)
#: :data:`JVM_ERRORS`, and errors that PySpark raises itself.
SPARK_ERRORS = (*JVM_ERRORS, PySparkException)

#: Spark's error condition of ``raise_error``.
RAISED = "USER_RAISED_EXCEPTION"

# Lines that only report a failure whose reason other lines name.
_WRAPPERS = re.compile(
    r"Job aborted|Task failed while writing rows|An error occurred while calling|Exception thrown in awaitResult"
    r"|Writing job aborted|A metadata mismatch was detected"
)
_NOISE = (
    re.compile(r"^\[[A-Z0-9_.]+\]\s*"),  # error condition
    re.compile(r"\s*SQLSTATE: \w{5}.*$", re.DOTALL),
    re.compile(r"\s*\(Service: [^()]*\)(\s*\(SDK Attempt Count: \d+\))?.*$", re.DOTALL),  # of the AWS SDK
    re.compile(r"\b[a-z]\w*(\.[a-z]\w*)+\.\w+(Exception|Error): "),  # Java class names
)
_CONFLICT = re.compile(r"(io\.)?delta\.exceptions\..*(Concurrent\w+|MetadataChanged|ProtocolChanged)Exception")
# Delta's error condition if the columns changed between the analysis of a statement and its transaction.
_SCHEMA_CHANGED = "DELTA_SCHEMA_CHANGE_SINCE_ANALYSIS"
# Delta's list of refused names. Delta's advice does not name the table property.
_REFUSED_NAMES = re.compile(r"Invalid column names: (.+?)\.\s+Please use other characters", re.DOTALL)
_MOST_CAUSES = 20
_LONGEST_GIST = 300


def is_caused_by(error: BaseException, class_name: str) -> bool:
    """Return whether an error is, or was caused by, an instance of a Java class."""
    gateway = SparkContext._gateway  # noqa: SLF001 (py4j has no public way)
    return any(is_instance_of(gateway, layer, class_name) for layer in _layers(error))


def is_conflict(error: BaseException | None) -> bool:
    """Return whether Delta refused a write because another transaction committed a conflicting change."""
    if error is None:
        return False
    # Delta's Python module converts some Java exceptions to Python exceptions that do not refer to the Java one.
    names = [f"{python_class.__module__}.{python_class.__name__}" for python_class in type(error).__mro__]
    names += [str(layer.getClass().getName()) for layer in _layers(error)]
    return any(_CONFLICT.fullmatch(name) for name in names) or has_condition(error, _SCHEMA_CHANGED)


def has_condition(error: BaseException, *prefixes: str) -> bool:
    """Return whether an error or a cause of it has an error condition of Spark or Delta with one of the prefixes."""
    return any(
        (layer.getMessage() or "").lstrip().startswith(tuple(f"[{prefix}" for prefix in prefixes))
        for layer in _layers(error)
    )


def error_reason(error: BaseException) -> str:
    """Return in one line why a call into the JVM failed: messages of the outermost and of the two innermost causes."""
    if isinstance(error, LOST_CONTACT):
        return f"the driver's JVM is gone or does not answer ({_innermost(error)})"
    if refused_names := _REFUSED_NAMES.search(str(error)):
        return (
            f"Delta stores the column names {refused_names[1]} only with column mapping: pass --column-mapping to "
            "create the table with it, set the property delta.columnMapping.mode to name on an existing table, or "
            "rename them"
        )
    messages: list[str] = []
    for layer in _layers(error):
        if layer.getClass().getSimpleName() == "UnknownStoreException":
            return "the bucket does not exist"
        message = _gist(layer.getMessage() or "")
        if message and not any(message in earlier or earlier in message for earlier in messages):
            messages.append(message)
    if not messages:
        return _gist(str(error)) or type(error).__name__
    # The outermost message names the file or the command, the innermost ones the reason. The messages between them
    # repeat these.
    return ": ".join(message.rstrip(".:") for message in [messages[0], *messages[1:][-2:]])


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return f"{type(error).__name__}: {_gist(str(error))}"


def messages_of(error: BaseException) -> Iterator[str]:
    """Yield the complete messages of the JVM's exception and of its causes."""
    for layer in _layers(error):
        yield layer.getMessage() or ""


def _layers(error: BaseException) -> Iterator[JavaObject]:
    """Yield the JVM's exception behind a Python exception, and its causes."""
    exception = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    return java_layers(exception if isinstance(exception, JavaObject) else None)


def java_layers(exception: JavaObject | None) -> Iterator[JavaObject]:
    """Yield a Java exception and its causes."""
    layer = exception
    for _ in range(_MOST_CAUSES):
        if layer is None:
            return
        yield layer
        layer = layer.getCause()


def _gist(message: str) -> str:
    """Return a message without stack trace, advice, codes and class names; of a long message only the first line."""
    text = message.strip().split("\n\tat ")[0].split("\n\n")[0]
    for noise in _NOISE:
        text = noise.sub("", text)
    lines = [line.strip(" -\t") for line in text.splitlines()]
    lines = [line for line in lines if line and not _WRAPPERS.match(line)]
    joined_lines = " ".join(lines)
    gist = joined_lines if len(joined_lines) <= _LONGEST_GIST else lines[0]
    return gist if len(gist) <= _LONGEST_GIST else gist[: _LONGEST_GIST - 1] + "…"

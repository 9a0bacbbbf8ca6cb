"""Names and texts as Spark's SQL reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from writer_jobs.delta.jvm_errors import JVM_ERRORS


def quoted(name: str) -> str:
    """Quote the name of a column, or of a table's folder."""
    return "`" + name.replace("`", "``") + "`"


def raw_literal(text: str) -> str:
    """Write a text as a raw literal, in which nothing but its quote has a meaning.

    Raises:
        ValueError: it has both kinds of quotes.

    """
    quote = '"' if "'" in text else "'"
    if quote in text:
        raise ValueError(f"both kinds of quotes are in {text}")
    return f"r{quote}{text}{quote}"


def property_list(properties: Mapping[str, str]) -> str:
    """Write what ``SET TBLPROPERTIES`` sets.

    Raises:
        ValueError: a text has both kinds of quotes.

    """
    return ", ".join(f"{raw_literal(name)} = {raw_literal(value)}" for name, value in properties.items())


def parsed_expression(spark: SparkSession, sql: str) -> Any | None:
    """Return the expression that Spark parses, in the JVM; None if the text is no expression.

    Args:
        spark: Session that parses it.
        sql: Text of the expression.

    """
    jvm_session: Any = spark._jsparkSession  # noqa: SLF001 (PySpark has no parser)
    try:
        return jvm_session.sessionState().sqlParser().parseExpression(sql)
    except JVM_ERRORS:
        return None

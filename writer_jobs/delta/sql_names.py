"""Write names and literals of Spark's SQL, and parse its expressions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from writer_jobs.delta.jvm_errors import JVM_ERRORS


def quoted(name: str) -> str:
    """Quote the name of a column, or the location of a table."""
    return "`" + name.replace("`", "``") + "`"


def raw_literal(text: str) -> str:
    """Write a text as a raw literal, which has no escapes; raise ValueError if the text has both kinds of quotes."""
    quote = '"' if "'" in text else "'"
    if quote in text:
        raise ValueError(f"{text} has both kinds of quotes")
    return f"r{quote}{text}{quote}"


def property_list(properties: Mapping[str, str]) -> str:
    """Write the properties for ``SET TBLPROPERTIES``; raise ValueError if one has both kinds of quotes."""
    return ", ".join(f"{raw_literal(name)} = {raw_literal(value)}" for name, value in properties.items())


def parsed_expression(spark: SparkSession, sql: str) -> Any | None:
    """Parse an SQL expression; return Spark's Java object, or None if the text is not an expression."""
    jvm_session: Any = spark._jsparkSession  # noqa: SLF001 (PySpark has no parser)
    try:
        return jvm_session.sessionState().sqlParser().parseExpression(sql)
    except JVM_ERRORS:
        return None

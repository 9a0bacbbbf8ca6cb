"""Check the lines of source files before Spark's readers parse them.

Spark's CSV reader misreads quotes that are not closed or not doubled, ends a row at a newline in quotes, and replaces
bytes that are invalid in the encoding. Spark's JSON reader ignores what follows the first object of a line. Neither
reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.feeds.message_values import parse_single_value

_LONGEST_SAMPLE = 80
# Replaces two quotes during the check. Unicode reserves this noncharacter, so texts do not contain it.
_DOUBLED_QUOTE = "\uffff"
_SEPARATORS = {"\\t": "\t", "\\\\": "\\"}
# With one of these options the user defines a syntax other than that of RFC 4180.
_SYNTAX_OPTIONS = ("escape", "quote", "comment", "linesep", "chartoescapequoteescaping", "unescapedquotehandling")
_HINT = (
    "RFC 4180 requires quotes around fields with quotes, separators or newlines, and doubles quotes within them; for "
    "another syntax give --option escape=…, or --option quote= for files in which quotes have no meaning"
)


class LinesError(ValueError):
    """A file has lines that Spark's reader would misread. The message is one sentence."""


class CsvSyntax:
    """The syntax of CSV files that the options of a user, with lower-case names, define.

    Attributes:
        separator: Separator of the fields.
        ignores_blanks: Whether blanks around quotes are ignored.
        forbids_multiline: Whether the user set ``multiLine=false``.
        is_utf8: Whether the encoding is UTF-8.
        is_standard: Whether the syntax is that of RFC 4180 and the encoding stores quotes, commas and newlines as in
            ASCII.

    """

    def __init__(self, options: Mapping[str, str]) -> None:
        encoding, separator = encoding_of(options), options.get("sep", options.get("delimiter", ","))
        blanks = (options.get(f"ignore{side}whitespace", "") for side in ("leading", "trailing"))
        self.separator = _SEPARATORS.get(separator, separator)
        self.ignores_blanks = any(option.lower() == "true" for option in blanks)
        self.forbids_multiline = options.get("multiline", "").lower() == "false"
        self.is_utf8 = is_utf8(encoding)
        self.is_standard = not any(name in options for name in _SYNTAX_OPTIONS) and _is_like_ascii(encoding)


def encoding_of(options: Mapping[str, str]) -> str:
    """Return the encoding that the options of a reader name."""
    return options.get("encoding", options.get("charset", "UTF-8"))


def is_utf8(encoding: str) -> bool:
    """Return whether an encoding is UTF-8."""
    return encoding.lower() in ("utf-8", "utf8")


def _is_like_ascii(encoding: str) -> bool:
    try:
        return '",\r\n'.encode(encoding) == b'",\r\n'
    except LookupError:
        return False


def check_csv(lines: DataFrame, newline_lines: Callable[[], DataFrame], syntax: CsvSyntax) -> dict[str, str]:
    """Return the options that Spark's reader needs to read CSV files by RFC 4180.

    Files without newlines in quotes need no options, so several tasks can read a large file.

    Args:
        lines: ``value`` and ``_metadata`` of the files' lines, as Spark's reader divides them.
        newline_lines: Returns the files' lines, divided at line feeds only.

    Raises:
        LinesError: The files have bytes that are not UTF-8, or quotes that break RFC 4180.

    """
    if not (syntax.is_utf8 or syntax.is_standard):
        return {}
    value, file = F.col("value"), F.col("_metadata.file_path")
    is_damaged = F.lit(syntax.is_utf8) & ~F.is_valid_utf8(value)
    is_open = F.lit(syntax.is_standard) & _has_odd_quotes(value)
    is_malformed = (
        F.lit(syntax.is_standard)
        & value.contains('"')
        & ~is_open
        & _without_quoted(value, syntax).rlike(f'["{_DOUBLED_QUOTE}]')
    )
    result = lines.agg(
        F.first(F.when(is_damaged, file), ignorenulls=True).alias("damaged"),
        F.max(is_open).alias("is_open"),
        F.first(F.when(is_malformed, _sample(value, file)), ignorenulls=True).alias("malformed"),
    ).collect()[0]
    if result.damaged is not None:
        raise LinesError(f"{result.damaged} has bytes that are not UTF-8: give --option encoding=…")
    if not result.is_open:
        if result.malformed is not None:
            raise LinesError(
                f"{result.malformed.file} has the line {result.malformed.sample!r}, whose quotes are malformed: {_HINT}"
            )
        return {}
    if syntax.forbids_multiline:
        raise LinesError(
            "a line ends within quotes, or quotes are malformed: replace --option multiLine=false with "
            "multiLine=true, or correct the quotes"
        )
    return {"multiLine": "true", "lineSep": _line_separator(newline_lines(), syntax)}


def _line_separator(lines: DataFrame, syntax: CsvSyntax) -> str:
    """Return the line separator of files with newlines in quotes.

    Without the option lineSep Spark's reader converts other newlines in quotes to line feeds.

    Raises:
        LinesError: Quotes are malformed or not closed, or records end with different separators.

    """
    text = F.regexp_replace("value", r"\r\z", "")
    file_window = Window.partitionBy("file").orderBy("block", "number")
    outside, inside = (_without_quoted(start, syntax) for start in (text, F.concat(F.lit('"'), text)))
    # bad_outside: whether a line that starts outside quotes has a misplaced quote or CR; bad_inside: the same for a
    # line that starts inside quotes.
    numbered_lines = lines.select(
        F.col("_metadata.file_path").alias("file"),
        F.col("_metadata.file_block_start").alias("block"),
        F.monotonically_increasing_id().alias("number"),
        _has_odd_quotes(F.col("value")).cast("int").alias("odd"),
        F.col("value").endswith("\r").alias("is_crlf"),
        *(
            unquoted.rlike(f'["{_DOUBLED_QUOTE}\r]').alias(name)
            for name, unquoted in (("bad_outside", outside), ("bad_inside", inside))
        ),
    )
    quotes = F.sum("odd").over(file_window)
    ends = numbered_lines.select(
        "file",
        ((quotes % 2) == 1).alias("is_open"),
        F.when((quotes - F.col("odd")) % 2 == 1, F.col("bad_inside")).otherwise(F.col("bad_outside")).alias("bad"),
        "is_crlf",
        F.lead("number").over(file_window).isNull().alias("is_last"),
    )
    result = ends.agg(
        F.first(F.when(F.col("bad") | (F.col("is_open") & F.col("is_last")), F.col("file")), ignorenulls=True).alias(
            "bad"
        ),
        F.max(~F.col("is_open") & F.col("is_crlf")).alias("crlf"),
        # The last line may have no newline.
        F.max(~F.col("is_open") & ~F.col("is_last") & ~F.col("is_crlf")).alias("lf"),
    ).collect()[0]
    if result.bad is not None:
        raise LinesError(
            f"{result.bad} has malformed quotes, quotes that are not closed, or a CR outside quotes: {_HINT}"
        )
    if result.crlf and result.lf:
        raise LinesError(
            "in files with newlines in quotes, some records end with CRLF and some with LF: load files with one "
            "separator at a time, or give --option multiLine=true --option lineSep=…"
        )
    return "\r\n" if result.crlf else "\n"


def check_json(documents: DataFrame, options: Mapping[str, str]) -> None:
    """Make sure that each line, or each file, is one JSON value.

    Args:
        documents: ``value`` and ``_metadata``; one row per line, or per file with the option multiLine.
        options: Options of the user with lower-case names. Options that begin with "allow" apply.

    Raises:
        LinesError: A document is not one JSON value.

    """
    value, file = F.col("value"), F.col("_metadata.file_path")
    parser_options = {name: option for name, option in options.items() if name.startswith("allow")}
    document = parse_single_value(value, lambda text: F.from_json(text, "variant", parser_options))
    is_bad = value.rlike(r"\S") & document.isNull()
    sample = documents.agg(F.first(F.when(is_bad, _sample(value, file)), ignorenulls=True)).collect()[0][0]
    if sample is not None:
        raise LinesError(
            f"{sample.file} has {sample.sample!r}, which is not one JSON object in UTF-8 that names each field "
            "once: write one object per line"
        )


def _has_odd_quotes(line: Column) -> Column:
    return (F.length(line) - F.length(F.replace(line, F.lit('"'), F.lit("")))) % 2 == 1


def _without_quoted(line: Column, syntax: CsvSyntax) -> Column:
    """Return a line without its quoted fields, with ``_DOUBLED_QUOTE`` for two quotes. The last field may be open.

    The replacement takes several steps, because a regular expression with a loop over escaped quotes would overflow
    Java's stack on long fields.
    """
    blanks = r"\s*" if syntax.ignores_blanks else ""
    separator = rf"\Q{syntax.separator}\E"
    end = rf"{blanks}(?=\z|{separator})"
    pattern = rf'(^|{separator}){blanks}({_DOUBLED_QUOTE}*"[^"]*("{end}|\z)|{_DOUBLED_QUOTE}+{end})'
    marked_line = F.replace(F.replace(line, F.lit(_DOUBLED_QUOTE), F.lit("")), F.lit('""'), F.lit(_DOUBLED_QUOTE))
    return F.regexp_replace(marked_line, pattern, "$1")


def _sample(value: Column, file: Column) -> Column:
    return F.struct(file.alias("file"), F.left(value, F.lit(_LONGEST_SAMPLE)).alias("sample"))

"""One batch of changes, folded: repetitions are one, and of several changes to one key the newest is left."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import StructType

from writer_jobs.changes.parts import contents, differ
from writer_jobs.changes.spec import DELETED, SEQ, ChangeSpec, quoted
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence

_ROW = "__sluice_row"
_COUNT = "__sluice_count"
_SHOWN = 5


class ChangeBatch:
    """The changes that count, in Spark's cache: the newest of each key, or one of each key and sequence.

    A delete counts in the order of the sequence, like any other change. Two changes of one key with one sequence are a
    repetition if all columns are equal, or if both delete. Else which is newer is not known, and the batch is refused.

    Args:
        prepared: changes as :meth:`ChangeSpec.prepared` returns them.
        spec: how they are applied.
        folded_by: columns of which equal values are folded into one: the keys, or the keys and ``SEQ``.

    Attributes:
        rows: the columns of ``prepared``, one row for each.
        changes: how many there were.
        folded: how many are left.
        keys: how many keys they are of.
        deletes: how many of those that are left delete.
        newest: largest sequence; None of an empty batch.

    Raises:
        ChangesError: a key or a sequence is null, or it is not known which of two changes is newer.

    """

    def __init__(self, prepared: DataFrame, spec: ChangeSpec, folded_by: Sequence[str]) -> None:
        keys = self._keys = spec.keys
        self._spec = spec
        others = [name for name in prepared.columns if name not in (*keys, SEQ, DELETED)]
        newest = [] if SEQ in folded_by else [F.max(SEQ).alias(SEQ)]
        folded = prepared.groupBy(*(F.col(quoted(name)) for name in folded_by)).agg(
            F.max_by(F.struct(DELETED, *(F.col(quoted(name)) for name in others)), SEQ).alias(_ROW),
            *newest,
            *contents(prepared, others),
            F.count("*").alias(_COUNT),
            F.count_if(_is_null(prepared.schema, SEQ)).alias("__sluice_unordered"),
        )
        no_key = F.expr("false")
        for name in keys:
            no_key = no_key | F.col(quoted(name)).isNull()
        self._folded = folded.withColumn("__sluice_keyless", no_key).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            found = self._checked()
        except BaseException:
            self.close()
            raise
        self.changes = int(found["changes"] or 0)
        self.folded = int(found["folded"])
        self.keys = int(found["keys"])
        self.deletes = int(found["deletes"] or 0)
        self.newest: Any = found["newest"]
        self.rows = self._folded.select(
            *(F.col(quoted(name)) for name in keys),
            *(F.col(f"{_ROW}.{quoted(name)}") for name in others),
            SEQ,
            F.col(f"{_ROW}.{DELETED}"),
        )

    def close(self) -> None:
        """Give the cache back."""
        with suppress(*JVM_ERRORS):  # the JVM may be gone, and the cache with it
            self._folded.unpersist()

    def _checked(self) -> Any:
        folded = self._folded
        try:
            (found,) = folded.agg(
                F.sum(_COUNT).alias("changes"),
                F.count("*").alias("folded"),
                F.count_distinct(F.struct(*(F.col(quoted(name)) for name in self._keys))).alias("keys"),
                F.count_if(F.col(f"{_ROW}.{DELETED}")).alias("deletes"),
                F.max(SEQ).alias("newest"),
                F.count_if(F.col("__sluice_keyless")).alias("keyless"),
                F.sum("__sluice_unordered").alias("unordered"),
                F.count_if(differ()).alias("ambiguous"),
            ).collect()
            if found["keyless"]:
                raise self._spec.misfit(
                    f"{found['keyless']} keys are null, or in part: {self._shown('__sluice_keyless')}"
                )
            if found["unordered"]:
                raise self._spec.misfit(
                    f"{found['unordered']} changes have no sequence (null): of {self._shown('__sluice_unordered > 0')}"
                )
            if found["ambiguous"]:
                raise self._spec.misfit(
                    f"{found['ambiguous']} keys have several changes with one sequence, so that the newest is not "
                    f"known: {self._shown(differ())}"
                )
        except (*JVM_ERRORS, PySparkException) as error:
            raise self._spec.misfit(f"the changes cannot be read: {one_sentence(error)}") from error
        return found

    def _shown(self, condition: str | Column) -> str:
        rows = self._folded.where(condition).select(*(F.col(quoted(name)) for name in self._keys)).limit(_SHOWN + 1)
        found = [", ".join(f"{name}={row[name]}" for name in self._keys) for row in rows.collect()]
        return "; ".join(found[:_SHOWN]) + ("; …" if len(found) > _SHOWN else "")


def _is_null(schema: StructType, name: str) -> Column:
    """Tell whether a value is null; of a struct also whether one of its fields is."""
    kind = schema[name].dataType
    condition = F.col(name).isNull()
    if isinstance(kind, StructType):
        for field in kind:
            condition = condition | F.col(f"{name}.{quoted(field.name)}").isNull()
    return condition

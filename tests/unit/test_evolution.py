"""Schema evolution: which types hold the values of another type, and which statements widen a table."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from writer_jobs.delta.type_differences import holds, missing_fields, type_differences, type_to_read
from writer_jobs.merge.evolution import alter_clauses, target_type

# Pairs of a table's type and the rows' type. A value is stored unchanged, or it is too large and Spark's cast fails.
SAFE_PAIRS: list[tuple[DataType, DataType]] = [
    (IntegerType(), IntegerType()),
    (LongType(), IntegerType()),
    (IntegerType(), LongType()),
    (DoubleType(), IntegerType()),
    (DoubleType(), FloatType()),
    (StringType(), IntegerType()),
    (DecimalType(12, 4), DecimalType(10, 4)),
    (TimestampNTZType(), DateType()),
    (DecimalType(10, 2), LongType()),
    (LongType(), DecimalType(20, 0)),
]
UNSAFE_PAIRS: list[tuple[DataType, DataType]] = [
    (FloatType(), DoubleType()),
    (DoubleType(), LongType()),
    (IntegerType(), DoubleType()),
    (IntegerType(), DecimalType(5, 2)),
    (DecimalType(10, 2), DecimalType(10, 4)),
    (DecimalType(10, 2), DoubleType()),
    (DateType(), TimestampType()),
    (DateType(), TimestampNTZType()),
    (TimestampType(), TimestampNTZType()),
    (TimestampNTZType(), TimestampType()),
    (TimestampType(), DateType()),
    (StringType(), TimestampType()),
    (LongType(), TimestampType()),
    (IntegerType(), StringType()),
    (DateType(), StringType()),
    (BooleanType(), IntegerType()),
    (StringType(), BinaryType()),
    (StringType(), StructType([])),
]


@pytest.mark.parametrize(("table", "rows"), SAFE_PAIRS)
def test_a_type_keeps_each_value_or_the_cast_fails(table: DataType, rows: DataType) -> None:
    assert holds(table, rows)


@pytest.mark.parametrize(("table", "rows"), UNSAFE_PAIRS)
def test_a_type_that_could_change_a_value_is_refused(table: DataType, rows: DataType) -> None:
    assert not holds(table, rows)
    assert target_type(table, rows) == rows


@pytest.mark.parametrize(
    ("table", "rows", "keeps_table_type"),
    [
        (LongType(), IntegerType(), True),
        (IntegerType(), LongType(), False),
        (StringType(), IntegerType(), True),
        (StructType([]), StructType([StructField("a", LongType())]), False),
    ],
)
def test_rows_take_the_type_of_a_column_that_holds_their_values(
    table: DataType, rows: DataType, *, keeps_table_type: bool
) -> None:
    assert target_type(table, rows) == (table if keeps_table_type else rows)


def struct(fields: dict[str, DataType]) -> StructType:
    return StructType([StructField(name, data_type) for name, data_type in fields.items()])


TABLE = struct(
    {
        "id": IntegerType(),
        "a": struct({"X": IntegerType(), "y": StringType()}),
        "l": ArrayType(struct({"x": IntegerType()})),
        "m": MapType(IntegerType(), struct({"x": IntegerType()})),
        "d": DecimalType(10, 2),
    }
)
ROWS = struct(
    {
        "ID": LongType(),
        "a": struct({"x": DoubleType(), "z-1": struct({"b c": IntegerType()})}),
        "l": ArrayType(struct({"x": LongType(), "y": DateType()})),
        "m": MapType(LongType(), struct({"x": IntegerType(), "n": MapType(StringType(), ArrayType(IntegerType()))})),
        "d": DecimalType(12, 2),
        "more": StringType(),
    }
)


def test_type_differences_are_reported_at_any_depth() -> None:
    differences = list(type_differences(TABLE, ROWS))
    assert [difference.name for difference in differences if difference.is_unknown] == [
        "a.z-1", "l.element.y", "m.value.n", "more",
    ]  # fmt: skip
    assert [difference.name for difference in differences if difference.is_wider] == [
        "id", "l.element.x", "m.key", "d",
    ]  # fmt: skip
    assert [str(difference) for difference in differences if difference.is_refused] == ["a.X: table int, rows double"]
    assert list(missing_fields(TABLE, ROWS)) == ["a.y"]
    exact_names = [difference.name for difference in type_differences(TABLE, ROWS, str) if difference.is_unknown]
    assert exact_names[:3] == ["ID", "a.x", "a.z-1"]


def test_a_table_is_altered_at_any_depth() -> None:
    new_columns = (
        "`a`.`z-1` struct<`b c`: int>, `l`.`element`.`y` date, `m`.`value`.`n` map<string, array<int>>, `more` string"
    )
    assert alter_clauses(TABLE, ROWS, tuple(ROWS.names)) == [
        f"ADD COLUMNS ({new_columns})",
        "SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
        "ALTER COLUMN `id` TYPE bigint",
        "ALTER COLUMN `l`.`element`.`x` TYPE bigint",
        "ALTER COLUMN `m`.`key` TYPE bigint",
        "ALTER COLUMN `d` TYPE decimal(12,2)",
    ]


@pytest.mark.parametrize(
    "data_type",
    [
        TimestampNTZType(),
        struct({"at": TimestampNTZType()}),
        ArrayType(struct({"at": TimestampNTZType()})),
        MapType(TimestampNTZType(), StringType()),
        MapType(StringType(), ArrayType(TimestampNTZType())),
    ],
    ids=lambda data_type: data_type.simpleString(),
)
def test_the_first_local_time_of_a_table_enables_the_feature(data_type: DataType) -> None:
    """A field or a column with the name of the type is no local time."""
    feature = "SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')"
    no_local_times = struct({"id": LongType(), "timestamp_ntz": struct({"timestamp_ntz": StringType()})})
    rows = struct({"id": LongType(), "new": data_type})
    assert alter_clauses(no_local_times, rows, ("id", "new"))[0] == feature
    assert feature not in alter_clauses(struct({"id": LongType(), "old": data_type}), rows, ("id", "new"))
    assert feature not in alter_clauses(struct({"id": LongType()}), no_local_times, ("id", "timestamp_ntz"))


def test_json_is_read_with_the_types_of_the_table() -> None:
    long, text = LongType(), StringType()
    inferred_type = struct(
        {
            "id": long,
            "a": struct({"x": long, "z-1": text}),
            "l": ArrayType(struct({"x": long, "y": text})),
            "m": struct({"1": struct({"x": long}), "2": struct({"y": text})}),
            "d": DoubleType(),
        }
    )
    assert type_to_read(TABLE, inferred_type).simpleString() == (
        "struct<id:int,a:struct<x:int,y:string,z-1:string>,l:array<struct<x:int,y:string>>,"
        "m:map<int,struct<x:int,y:string>>,d:decimal(10,2)>"
    )
    widened_type = type_to_read(TABLE, inferred_type, widens=True)
    assert widened_type["a"].dataType.simpleString() == "struct<x:bigint,y:string,z-1:string>"
    assert widened_type["m"].dataType.simpleString() == "map<int,struct<x:bigint,y:string>>"

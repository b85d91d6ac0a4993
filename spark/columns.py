# SPDX-License-Identifier: Apache-2.0
"""The columns of an export as Spark has them."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_TYPES: Final[dict[pa.DataType, DataType]] = {
    pa.int64(): LongType(),
    pa.int32(): IntegerType(),
    pa.string(): StringType(),
    pa.timestamp("ms", tz="UTC"): TimestampType(),
    pa.map_(pa.string(), pa.int64()): MapType(StringType(), LongType()),
}


def struct_of(schema: pa.Schema) -> StructType:
    """The same columns."""
    return StructType([StructField(field.name, _TYPES[field.type]) for field in schema])

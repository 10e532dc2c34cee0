"""Parquet whose pictures ``datasets`` and the Hugging Face hub show: their storage type, and metadata that names it."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

PICTURE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""How the Image feature of ``datasets`` is stored; without ``path`` the bytes count."""


def with_hub_features(schema: pa.Schema) -> pa.Schema:
    """Returns the schema with the features of its columns, which ``datasets`` believes where they fit the types."""
    features = {field.name: _feature(field.type) for field in schema}
    return schema.with_metadata({b"huggingface": json.dumps({"info": {"features": features}}).encode()})


def pictures(images: pa.Array) -> pa.Array:
    """Returns encoded images as ``PICTURE``."""
    paths = pa.nulls(len(images), pa.string())
    return pa.StructArray.from_arrays([images, paths], fields=list(PICTURE), mask=images.is_null())


def _feature(kind: pa.DataType) -> dict[str, Any]:
    if kind == PICTURE:
        return {"_type": "Image"}
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        length = kind.list_size if pa.types.is_fixed_size_list(kind) else -1
        return {"feature": _feature(kind.value_type), "length": length, "_type": "Sequence"}
    return {"dtype": {"float": "float32", "double": "float64"}.get(str(kind), str(kind)), "_type": "Value"}

"""docs/protocol.md from the messages themselves: every field with its type and range."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
from msgspec import inspect as structure

from digirl_dist.protocol.messages import (
    PROTOCOL,
    EpisodeManifest,
    HostMessage,
    SlotLimits,
    SlotWait,
    TensorEntry,
    WorkerMessage,
)

_INTRODUCTION = f"""\
# The protocol between host and worker program

`script/protocol` writes this page from `digirl_dist/protocol/messages.py`. It describes protocol {PROTOCOL}.

Host and worker program exchange one message a line, as JSON, over one channel: an SSH channel that ends in the
program's Unix socket, or calls of a Ray actor. `type` says which message it is. An `ask` is followed by as many bytes
as its `attached` says. Files (tensors, packed classes, episodes) travel beside, by the courier or the object store.

A host greets with the protocols that it speaks; the program answers with the newest that both do, or with `broken`, and
is then replaced. Unknown fields are ignored. Whatever else is not exactly a message of the other side, or has a field
out of its range, ends the connection with a `ProtocolError` that names the field.
"""


def document() -> str:
    """Returns the whole page."""
    parts = [_INTRODUCTION, *_section("What a host says", get_args(HostMessage))]
    parts += _section("What a worker program says", get_args(WorkerMessage))
    parts += _section("Parts of messages", (EpisodeManifest, SlotLimits, SlotWait, TensorEntry))
    return "\n".join(parts)


def _section(title: str, kinds: tuple[type[msgspec.Struct], ...]) -> Iterator[str]:
    yield f"## {title}\n"
    for kind in kinds:
        yield from _described(kind)


def _described(kind: type[msgspec.Struct]) -> Iterator[str]:
    described: Any = structure.type_info(kind)
    says = _field_docs(kind)
    yield f"### {described.tag or kind.__name__}\n"
    yield f"{inspect.cleandoc(kind.__doc__ or '')}\n"
    if described.fields:
        yield "| field | type | |\n| --- | --- | --- |"
        for field in described.fields:
            default = "" if field.required else " Optional."
            yield f"| `{field.encode_name}` | {_type(field.type)} | {says.get(field.name, '')}{default} |"
        yield ""


def _field_docs(kind: type) -> dict[str, str]:
    """Texts below the fields of a class, which Python itself does not keep."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        says = text.value.value if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) else None
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(says, str):
            found[field.target.id] = inspect.cleandoc(says).replace("\n", " ")
    return found


def _type(kind: Any) -> str:
    match kind:
        case structure.Metadata(type=inner):
            return _type(inner)
        case structure.IntType():
            return "whole number" + _range(kind)
        case structure.FloatType():
            return "number" + _range(kind)
        case structure.StrType(max_length=most, pattern=pattern):
            return "text" + (f", at most {most} characters" if most else f" like `{pattern}`" if pattern else "")
        case structure.ListType(item_type=item):
            return f"list of {_type(item)}"
        case structure.TupleType(item_types=items):
            return f"list of {len(items)}: {_type(items[0])}"
        case structure.DictType(key_type=key, value_type=value):
            return f"mapping from {_type(key)} to {_type(value)}"
        case structure.UnionType(types=kinds):
            return " or ".join(_type(one) for one in kinds)
        case structure.LiteralType(values=values):
            return " or ".join(f"`{value}`" for value in values)
        case structure.NoneType():
            return "null"
        case structure.AnyType():
            return "any JSON"
    return str(kind.cls.__name__)


def _range(kind: structure.IntType | structure.FloatType) -> str:
    low = kind.ge if kind.ge is not None else kind.gt
    high = kind.le if kind.le is not None else kind.lt
    if low is None and high is None:
        return ""
    top = "2^53" if high == 2**53 else f"{high:g}"
    return f" from {low:g} to {top}" if kind.lt is None else f" from {low:g}, below {top}"

"""Describes msgspec's types in Markdown: each field with its type, its range, and the text below it in the source."""

import ast
import inspect

from msgspec import inspect as structure


def described_in(kind):
    described = structure.type_info(kind)
    says = field_docs(kind)
    yield f"### {described.tag or kind.__name__}\n"
    yield f"{inspect.cleandoc(kind.__doc__ or '')}\n"
    if described.fields:
        yield "| field | type | |\n| --- | --- | --- |"
        for field in described.fields:
            default = "" if field.required else " Optional."
            yield f"| `{field.encode_name}` | {type_of(field.type)} | {says.get(field.name, '')}{default} |"
        yield ""


def field_docs(kind):
    """Texts below the fields of a class, which Python itself does not keep."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        says = text.value.value if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) else None
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(says, str):
            found[field.target.id] = inspect.cleandoc(says).replace("\n", " ")
    return found


def type_of(kind):
    match kind:
        case structure.Metadata(type=inner):
            return type_of(inner)
        case structure.IntType():
            return "whole number" + range_of(kind)
        case structure.FloatType():
            return "number" + range_of(kind)
        case structure.StrType(max_length=most, pattern=pattern):
            return "text" + (f", at most {most} characters" if most else f" like `{pattern}`" if pattern else "")
        case structure.BytesType(max_length=most):
            return "bytes" + (f", at most {most}" if most else "")
        case structure.ListType(item_type=item):
            return f"list of {type_of(item)}"
        case structure.TupleType(item_types=items):
            return f"list of {len(items)}: {type_of(items[0])}"
        case structure.DictType(key_type=key, value_type=value):
            return f"mapping from {type_of(key)} to {type_of(value)}"
        case structure.UnionType(types=kinds):
            return " or ".join(type_of(one) for one in kinds)
        case structure.LiteralType(values=values):
            return " or ".join(f"`{value}`" for value in values)
        case structure.NoneType():
            return "null"
        case structure.BoolType():
            return "true or false"
        case structure.AnyType():
            return "any JSON"
    return str(kind.cls.__name__)


def range_of(kind):
    low = kind.ge if kind.ge is not None else kind.gt
    high = kind.le if kind.le is not None else kind.lt
    if low is None and high is None:
        return ""
    top = "2^53" if high == 2**53 else f"{high:g}"
    return f" from {low:g} to {top}" if kind.lt is None else f" from {low:g}, below {top}"

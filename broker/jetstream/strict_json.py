"""JSON of the JetStream API: decoding bodies into Structs and encoding Structs as bodies.

Owns: case-insensitive keys, null as "not set", unknown fields, the omitempty rule, time texts.
May not touch: the meaning of fields, which belongs to the rooms config and api.
Spec: nats-server decodes with Go's encoding/json; in strict mode unknown fields are refused
(error 10025).

A Struct field with a plain default is omitted while it holds that default. A field declared with
`always(x)` is never omitted. Fields of type `WallTime` are nanoseconds in memory and RFC 3339 in
JSON."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import inspect

from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.times import parse_rfc3339, rfc3339
from broker.subjects import Steps, finish

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

WallTime = Annotated[int, msgspec.Meta(extra={"wall_time": True})]
# Sequences are stored as signed 64-bit numbers and counted up from the given value. Values too
# large for that are refused here, because an entry that cannot be applied stops its Raft group.
SEQUENCE_MAX: Final = 2**62
Unsigned = Annotated[int, msgspec.Meta(ge=0, le=SEQUENCE_MAX)]

LONG_BYTES: Final = 32 << 10  # a longer body is decoded field by field
TEXTS_MAX: Final = 110_000  # texts in one field; a stream has at most 100,000 subjects
KEYS_MAX: Final = 20_000  # colons in a long body, if one of its keys differs from ours in case
VALUES_MAX: Final = 5_000  # values in a long field that is not a list or map of texts
_INT64_MAX: Final = 2**63 - 1
_UINT64_MAX: Final = 2**64 - 1


class WireText(StrEnum):
    """An enumeration of texts. One that accepts other spellings as well overrides `spelled`."""

    @classmethod
    def spelled(cls, text: str) -> str:
        """The text of the member for a spelling that clients may send."""
        return text


def always(value: T) -> T:
    """The default of a field that is encoded even when it holds this value."""
    field: T = msgspec.field(default_factory=lambda: value)
    return field


def encode(value: object) -> bytes:
    """JSON bytes of a Struct, or of plain values that contain Structs."""
    return msgspec.json.encode(to_wire(value))


def to_wire(value: object) -> object:
    """Plain JSON values: times as text, fields at their default omitted, keys in declared order."""
    if isinstance(value, msgspec.Struct):
        body: dict[str, object] = {}
        for field in _plan(type(value)).values():
            held = getattr(value, field.name)
            if not field.always and held == field.default:
                continue
            if field.is_plain:
                body[field.key] = held
            elif field.is_time and held is not None:
                body[field.key] = rfc3339(held)
            else:
                body[field.key] = to_wire(held)
        return body
    if isinstance(value, list | tuple):
        return [to_wire(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_wire(item) for key, item in value.items()}
    return value


def decode(body: bytes, kind: type[S], *, strict: bool) -> S:
    """The request in `body`; raises JetStreamError 10025 if it is invalid.

    An empty body counts as an empty object. Unknown fields are refused only if `strict`.
    """
    return finish(decode_steps(body, kind, strict=strict))


def decode_steps(body: bytes, kind: type[S], *, strict: bool) -> Steps[S]:
    """`decode` in steps. A long body is decoded field by field, and long fields directly as their
    expected type: otherwise a megabyte of empty lists would take 40 ms, in one call."""
    if len(body) > LONG_BYTES:
        value = yield from _fields(body, kind, strict=strict)
    else:
        value = _parsed(body, Any) if body.strip() else {}
    return convert(value, kind, strict=strict)


def _parsed(text: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as problem:
        raise invalid_json(f"json: {problem}") from problem
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise invalid_json(_sentence(problem)) from problem


def _fields(text: bytes, kind: type[msgspec.Struct], *, strict: bool) -> Steps[Any]:
    if text.lstrip(b" \t\r\n")[:1] != b"{":
        raise invalid_json(f"json: cannot unmarshal a long value into {kind.__name__}")
    values: dict[str, Any] = {}
    plan = _plan(kind)
    for key, raw in _split(text, kind).items():
        field = plan.get(key.lower())
        part = bytes(raw)
        if field is None:
            values[key] = None
            if strict:
                break  # `convert` refuses it
            continue
        nested = _struct_of(field.type)
        if len(part) <= LONG_BYTES:
            values[key] = _parsed(part, Any)
        elif nested is not None:
            values[key] = yield from _fields(part, nested, strict=strict)
        else:
            values[key] = _long_value(part, field)
            yield
    return values


def _split(text: bytes, kind: type[msgspec.Struct]) -> dict[str, msgspec.Raw]:
    """The fields, not decoded. Keys that differ from ours in case need a dictionary, which takes
    long with 100,000 keys."""
    try:
        found = msgspec.json.decode(text, type=_undecoded(kind))
    except msgspec.ValidationError as problem:
        if text.count(b":") > KEYS_MAX:
            raise invalid_json(f"json: {problem}") from problem
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise invalid_json(_sentence(problem)) from problem
    else:
        return {key: raw for key, raw in msgspec.structs.asdict(found).items() if raw is not None}
    split: dict[str, msgspec.Raw] = _parsed(text, dict[str, msgspec.Raw])
    return split


@cache
def _undecoded(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """A type with the same fields, none of them decoded. None: the field is missing."""
    fields = [(field.key, msgspec.Raw, None) for field in _plan(kind).values()]
    return msgspec.defstruct(f"Undecoded{kind.__name__}", fields, forbid_unknown_fields=True)


def _long_value(text: bytes, field: _Field) -> Any:
    """Decode a long value. A list or map of texts is refused at its first value of another type."""
    texts = _texts_type(field.type)
    if texts is None and _values(text) > VALUES_MAX:
        raise invalid_json(f"json: more than {VALUES_MAX} values in {_quoted(field.key)}")
    if texts is not None and text.count(b'"') > 2 * TEXTS_MAX:
        raise invalid_json(f"json: more than {TEXTS_MAX} texts in {_quoted(field.key)}")
    return _parsed(text, texts or Any)


def _values(text: bytes) -> int:
    """An upper bound of the number of values: commas and brackets inside of texts count too."""
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _struct_of(kind: inspect.Type) -> type[msgspec.Struct] | None:
    if isinstance(kind, inspect.UnionType):
        return next((found for one in kind.types if (found := _struct_of(one))), None)
    return kind.cls if isinstance(kind, inspect.StructType) else None


def _texts_type(kind: inspect.Type) -> Any:
    match kind:
        case inspect.VarTupleType() | inspect.ListType():
            return list[str] if isinstance(kind.item_type, inspect.StrType) else None
        case inspect.DictType():
            return dict[str, str] if isinstance(kind.value_type, inspect.StrType) else None
    return str if isinstance(kind, inspect.StrType) else None


def convert(value: Any, kind: type[S], *, strict: bool) -> S:
    """Like `decode`, for a value that is already parsed."""
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise invalid_json(f"json: cannot unmarshal {_json_type(value)} into {kind.__name__}")
    folded = _fold_struct(value, kind, strict=strict)
    try:
        return msgspec.convert(folded, kind)
    except msgspec.ValidationError as problem:
        raise invalid_json(f"json: {problem}") from problem


def invalid_json(reason: str) -> JetStreamError:
    return JetStreamError.of(ErrCode.INVALID_JSON, err=reason)


class _Field(msgspec.Struct, frozen=True):
    name: str
    key: str
    type: inspect.Type
    always: bool
    default: Any
    is_time: bool
    is_plain: bool  # texts and numbers, or lists and maps of them: the same in memory and in JSON
    is_text: bool  # the same, without numbers


@cache
def _plan(kind: type[msgspec.Struct]) -> dict[str, _Field]:
    """How to decode and encode the fields of a Struct type, by lower-case JSON key."""
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    return {
        field.encode_name.lower(): _Field(
            name=field.name,
            key=field.encode_name,
            type=field.type,
            always=field.default is msgspec.NODEFAULT and field.default_factory is not dict,
            default={} if field.default_factory is dict else field.default,
            is_time=_is_time(field.type),
            is_plain=_consists_of(field.type, (inspect.StrType, inspect.BoolType, inspect.IntType)),
            is_text=_consists_of(field.type, (inspect.StrType, inspect.BoolType)),
        )
        for field in described.fields
    }


def _is_time(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.UnionType):
        return any(_is_time(member) for member in kind.types)
    return isinstance(kind, inspect.Metadata) and bool((kind.extra or {}).get("wall_time"))


def _consists_of(kind: inspect.Type, kinds: tuple[type[inspect.Type], ...]) -> bool:
    match kind:
        case inspect.VarTupleType() | inspect.ListType():
            return isinstance(kind.item_type, kinds)
        case inspect.DictType():
            return isinstance(kind.value_type, kinds)
    return isinstance(kind, kinds)


def _fold_struct(value: dict[str, Any], kind: type[msgspec.Struct], *, strict: bool) -> Any:
    plan = _plan(kind)
    folded: dict[str, Any] = {}
    for key, held in value.items():
        field = plan.get(key.lower())
        if field is None:
            if strict:
                raise invalid_json(f"json: unknown field {_quoted(key)}")
            continue
        if held is not None:
            # The items of a long list of texts are not visited: `msgspec.convert` checks them.
            folded[field.key] = held if field.is_text else _fold(held, field.type, strict=strict)
    return folded


def _fold(value: Any, kind: inspect.Type, *, strict: bool) -> Any:
    """`value` with keys, enumerations and times in the form that `msgspec.convert` expects."""
    match kind:
        case inspect.UnionType():
            wanted = next(t for t in kind.types if not isinstance(t, inspect.NoneType))
            return _fold(value, wanted, strict=strict)
        case inspect.Metadata():
            return _time(value) if _is_time(kind) else _fold(value, kind.type, strict=strict)
        case inspect.StructType() if isinstance(value, dict):
            return _fold_struct(value, kind.cls, strict=strict)
        case inspect.VarTupleType() | inspect.ListType() if isinstance(value, list):
            return [_fold(item, kind.item_type, strict=strict) for item in value]
        case inspect.EnumType() if issubclass(kind.cls, WireText):
            return _enum_text(value, kind.cls)
        case inspect.IntType() if isinstance(value, int):
            return _fitting(value, _UINT64_MAX if kind.ge == 0 else _INT64_MAX)
    return value


def _enum_text(value: Any, kind: type[WireText]) -> str:
    text = kind.spelled(value) if isinstance(value, str) else ""
    if not isinstance(value, str) or text not in kind.__members__.values():
        printed = msgspec.json.encode(value).decode()
        raise invalid_json(f"can not unmarshal {_quoted(printed)}")
    return text


def _fitting(value: int, most: int) -> int:
    """Stored and replicated numbers have 64 bits; larger ones are refused."""
    if not -_INT64_MAX - 1 <= value <= most:
        raise invalid_json(f"json: cannot unmarshal number {value} into 64 bits")
    return value


def _time(value: Any) -> int:
    if not isinstance(value, str):
        raise invalid_json("Time.UnmarshalJSON: input is not a JSON string")
    try:
        return parse_rfc3339(value)
    except ValueError as problem:
        raise invalid_json(f"parsing time {_quoted(value)}: {problem}") from problem


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, list):
        return "array"
    return "string" if isinstance(value, str) else "number"


def _sentence(problem: Exception) -> str:
    if isinstance(problem, RecursionError):
        return "exceeded max depth"
    if "truncated" in str(problem):
        return "unexpected EOF"
    return str(problem)

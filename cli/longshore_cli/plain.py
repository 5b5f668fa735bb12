"""Proto messages as plain values for JSON output: enum names as the contracts spell them, absent optionals as null."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor as Descriptor
from google.protobuf.message import Message

# The type stubs know two classes for a field's descriptor, and messages give either.
FieldDescriptor = Any


def to_plain(message: Message) -> dict[str, Any]:
    """All fields by their proto names; bytes are left out."""
    return {
        field.name: _field(message, field)
        for field in message.DESCRIPTOR.fields
        if field.type != Descriptor.TYPE_BYTES and not _unset_member(message, field)
    }


def enum_name(enum: Any, value: int) -> str:
    """`RUN_STATE_PENDING` of the generated enum as `pending`; unspecified as empty."""
    return _enum_text(enum.DESCRIPTOR, value)


def _unset_member(message: Message, field: FieldDescriptor) -> bool:
    """Members of a real oneof that are not the chosen one say nothing."""
    oneof = field.containing_oneof
    return oneof is not None and not oneof.name.startswith("_") and not message.HasField(field.name)


def _enum_text(descriptor: Any, value: int) -> str:
    found = descriptor.values_by_number.get(value)
    if found is None:
        return str(value)
    prefix = descriptor.values_by_number[0].name.removesuffix("UNSPECIFIED")
    text: str = found.name.removeprefix(prefix).lower()
    return "" if text == "unspecified" else text


def _field(message: Message, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        return {str(k): _one(entry.fields_by_name["value"], v) for k, v in value.items()}
    if field.is_repeated:
        return [_one(field, item) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _one(field, value)


def _one(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return to_plain(value)
    if field.enum_type is not None:
        return _enum_text(field.enum_type, value)
    return value

"""Our KServe messages are those of ``tritonclient``, field by field, in both directions.

Knows descriptors only: no server runs here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto
from grpc_tools import protoc
from tritonclient.grpc import model_config_pb2, service_pb2

PROTO = Path(__file__).parent.parent / "proto" / "kserve"
#: Our file and the module of theirs that holds the same messages.
FILES = {"grpc_service.proto": service_pb2, "model_config.proto": model_config_pb2}

#: One line per fact, by the name of what it is about.
Facts = dict[str, tuple[object, ...]]


def message_facts(message: DescriptorProto, scope: str) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Everything the wire or a generated client can see of a message and what is nested in it."""
    name = f"{scope}.{message.name}"
    yield name, ("message", "map entry" if message.options.map_entry else "plain")
    for field in message.field:
        oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None
        packed = field.options.packed if field.options.HasField("packed") else None
        yield (
            f"{name}.{field.name}",
            (
                "field",
                field.number,
                field.type,
                field.label,
                field.type_name,
                oneof,
                packed,
                field.proto3_optional,
                field.default_value,
            ),
        )
    for nested in message.nested_type:
        yield from message_facts(nested, name)
    for enum in message.enum_type:
        yield from enum_facts(enum, name)


def enum_facts(enum: EnumDescriptorProto, scope: str) -> Iterator[tuple[str, tuple[object, ...]]]:
    """An enum and its numbers."""
    name = f"{scope}.{enum.name}"
    yield name, ("enum", enum.options.allow_alias)
    for value in enum.value:
        yield f"{name}.{value.name}", ("value", value.number)


def facts_of(file: FileDescriptorProto) -> Facts:
    """Every fact of a file; the order of definitions is none."""
    scope = f".{file.package}"
    facts: list[tuple[str, tuple[object, ...]]] = [(scope, ("package", file.syntax))]
    for message in file.message_type:
        facts += message_facts(message, scope)
    for enum in file.enum_type:
        facts += enum_facts(enum, scope)
    for service in file.service:
        name = f"{scope}.{service.name}"
        facts.append((name, ("service",)))
        for method in service.method:
            streaming = (method.client_streaming, method.server_streaming)
            facts.append((f"{name}.{method.name}", (method.input_type, method.output_type, *streaming)))
    named = dict(facts)
    assert len(named) == len(facts), "two definitions share a name"
    return named


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FileDescriptorProto]:
    """Our files, compiled."""
    out = tmp_path_factory.mktemp("descriptors") / "kserve.bin"
    arguments = ["protoc", f"--proto_path={PROTO}", f"--descriptor_set_out={out}", *FILES]
    assert protoc.main(arguments) == 0
    files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    assert sorted(file.name for file in files) == sorted(FILES)
    return {file.name: file for file in files}


def theirs(name: str) -> FileDescriptorProto:
    """The same file as the client package has it."""
    file = FileDescriptorProto()
    FILES[name].DESCRIPTOR.CopyToProto(file)
    return file


def differences(ours: Facts, theirs: Facts) -> list[str]:
    """What one side has and the other lacks or says differently, for people to read."""
    return [
        f"{name}: ours {ours.get(name)}, theirs {theirs.get(name)}"
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    ]


@pytest.mark.parametrize("name", FILES)
def test_messages_enums_and_services_are_tritonclients(
    name: str, ours: dict[str, FileDescriptorProto]
) -> None:
    assert differences(facts_of(ours[name]), facts_of(theirs(name))) == []


def test_the_comparison_covers_the_whole_protocol(ours: dict[str, FileDescriptorProto]) -> None:
    facts = facts_of(ours["grpc_service.proto"])
    assert facts[".inference.GRPCInferenceService.ModelStreamInfer"][2:] == (True, True)
    assert sum(1 for fact in facts.values() if fact[0] == "field") > 100


def drop_field(file: FileDescriptorProto) -> None:
    del file.message_type[0].field[-1]


def add_message(file: FileDescriptorProto) -> None:
    file.message_type.add(name="Extra")


def renumber_field(file: FileDescriptorProto) -> None:
    file.message_type[0].field[0].number += 1


def retype_field(file: FileDescriptorProto) -> None:
    file.message_type[0].field[0].type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES


def repeat_field(file: FileDescriptorProto) -> None:
    file.message_type[0].field[0].label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED


def leave_oneof(file: FileDescriptorProto) -> None:
    file.message_type[0].field[0].ClearField("oneof_index")


def drop_method(file: FileDescriptorProto) -> None:
    del file.service[0].method[0]


def unstream_method(file: FileDescriptorProto) -> None:
    file.service[0].method[0].server_streaming = False


def renumber_value(file: FileDescriptorProto) -> None:
    file.enum_type[0].value[0].number += 1


def unmap(file: FileDescriptorProto) -> None:
    file.message_type[0].nested_type[0].options.map_entry = False


SAMPLE = FileDescriptorProto(
    name="sample.proto",
    package="sample",
    message_type=[
        DescriptorProto(
            name="Message",
            field=[
                descriptor_pb2.FieldDescriptorProto(name="first", number=1, type=9, label=1, oneof_index=0),
                descriptor_pb2.FieldDescriptorProto(name="second", number=2, type=5, label=1),
            ],
            oneof_decl=[descriptor_pb2.OneofDescriptorProto(name="choice")],
            nested_type=[
                DescriptorProto(name="Entry", options=descriptor_pb2.MessageOptions(map_entry=True))
            ],
        )
    ],
    enum_type=[
        EnumDescriptorProto(
            name="Enum", value=[descriptor_pb2.EnumValueDescriptorProto(name="ZERO", number=0)]
        )
    ],
    service=[
        descriptor_pb2.ServiceDescriptorProto(
            name="Service",
            method=[
                descriptor_pb2.MethodDescriptorProto(
                    name="Call", input_type=".m", output_type=".m", server_streaming=True
                )
            ],
        )
    ],
)


@pytest.mark.parametrize(
    "change",
    [
        drop_field,
        add_message,
        renumber_field,
        retype_field,
        repeat_field,
        leave_oneof,
        drop_method,
        unstream_method,
        renumber_value,
        unmap,
    ],
)
def test_the_comparison_sees_a_difference_on_either_side(
    change: Callable[[FileDescriptorProto], None],
) -> None:
    changed = FileDescriptorProto()
    changed.CopyFrom(SAMPLE)
    change(changed)
    assert differences(facts_of(SAMPLE), facts_of(changed))
    assert differences(facts_of(changed), facts_of(SAMPLE))

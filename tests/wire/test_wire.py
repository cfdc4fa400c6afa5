"""The committed protocol code is what the .proto files say, and the method tables are what they declare."""

from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf.descriptor import FileDescriptor
from tools.generate_wire import SOURCES, generate

from colocate.wire import deviceplugin_pb2, methods, pluginregistration_pb2, podresources_pb2
from colocate.wire.rpc import Method

WIRE = Path("colocate", "wire")


@pytest.mark.needs("protoc")
def test_generated_code_is_up_to_date(tmp_path: Path) -> None:
    generate(tmp_path)
    generated = sorted(path.name for path in (tmp_path / WIRE).iterdir())
    assert len(generated) == 2 * len(list((SOURCES / WIRE).glob("*.proto")))
    for name in generated:
        assert (tmp_path / WIRE / name).read_bytes() == (SOURCES / WIRE / name).read_bytes(), (
            f"{name} is not what its .proto file gives: run make proto"
        )


@pytest.mark.parametrize("module", [deviceplugin_pb2, podresources_pb2, pluginregistration_pb2])
def test_every_declared_rpc_has_its_method(module: ModuleType) -> None:
    descriptor: FileDescriptor = module.DESCRIPTOR
    tables = {method.path: method for method in vars(methods).values() if isinstance(method, Method)}
    for service in descriptor.services_by_name.values():
        for rpc in service.methods:
            method = tables[f"/{service.full_name}/{rpc.name}"]
            empty = method.read_request(b"")
            assert empty.DESCRIPTOR is rpc.input_type
            assert method.read_response(b"").DESCRIPTOR is rpc.output_type

"""The whole life of an object, driven by a program that has nothing of this library: the master over gRPC as its .proto file says, and the
bytes on the owner's framed connection, with a plain socket."""

from __future__ import annotations

import importlib
import pathlib
import socket
import struct
import sys
import time

import pytest

import nanomc

grpc = pytest.importorskip("grpc", reason="pip has not installed grpcio")
protoc = pytest.importorskip("grpc_tools.protoc", reason="pip has not installed grpcio-tools")

PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto"
OK, NOT_FOUND, STALE, EXISTS = 0, -20, -23, -10
PUT, PUT_DONE, FETCH, FETCHED = 40, 41, 42, 43


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """What protoc makes of the .proto file: messages, and the service."""
    out = str(tmp_path_factory.mktemp("proto"))
    name = "nanomc/master/v1/master.proto"
    assert protoc.main(["", f"-I{PROTO}", f"--python_out={out}", f"--grpc_python_out={out}", name]) == 0
    sys.path.insert(0, out)
    # The folders of the file are below a package of that name already.
    nanomc.__path__.append(out + "/nanomc")
    yield importlib.import_module("nanomc.master.v1.master_pb2"), importlib.import_module("nanomc.master.v1.master_pb2_grpc")
    sys.path.remove(out)
    nanomc.__path__.pop()


def blob(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text


class Owner:
    """A framed connection: docs/protocol.md."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self.file = self.socket.makefile("rwb")
        self.requests = 0

    def ask(self, kind: int, message: bytes, value: bytes = b""):
        self.requests += 1
        head = struct.pack("<4sIIIQQ", b"NMC\5", kind, len(message), 10000, self.requests, len(value))
        self.file.write(head + message + value)
        self.file.flush()
        magic, kind, length, _, request, follows = struct.unpack("<4sIIIQQ", self.file.read(32))
        assert magic == b"NMC\5" and request == self.requests
        return kind, self.file.read(length), self.file.read(follows)

    def put(self, begun, at, key: bytes, value: bytes, hold: bool = False):
        words = struct.pack("<QQQQQI", begun.put_id, begun.term, at.incarnation, begun.after.term, begun.after.number, at.segment)
        kind, said, _ = self.ask(PUT, words + blob(b"\0" + key) + struct.pack("<QI", len(value), 0) + blob(b"") + struct.pack("<??", hold, at.exact), value)
        assert kind == PUT_DONE
        status, done = struct.unpack("<i?", said[:5])
        return status, struct.unpack("<QQIQQ", said[5:]) if done else None

    def fetch(self, name, key: bytes, length: int):
        words = struct.pack("<QQIQ", name.node, name.incarnation, name.index, name.epoch)
        kind, said, value = self.ask(FETCH, words + blob(b"\0" + key) + struct.pack("<QQQIQI??", 0, 0, length, 0, 0, 0, False, False))
        assert kind == FETCHED
        return struct.unpack("<i", said[:4])[0], value

    def close(self) -> None:
        self.file.close()
        self.socket.close()


def test_a_program_without_this_library_drives_the_whole_life_of_an_object(master, service):
    pb, rpc = service
    key, value = b"prompt/1", bytes(range(256)) * 400
    with nanomc.Client(master, timeout_ms=20000) as node, grpc.insecure_channel(master) as channel:
        stub = rpc.MasterServiceStub(channel)
        node.mount("a", heap_bytes=8 << 20)
        for _ in range(1000):  # until what is unknown does not exist, and the node has told what it has
            told = stub.Ping(pb.PingRequest(node_name="a"), timeout=20)
            if told.settled and told.member == pb.PingResponse.MEMBER_STATE_ACTIVE:
                break
            time.sleep(0.02)
        assert told.status_code == OK and told.settled and told.member == pb.PingResponse.MEMBER_STATE_ACTIVE
        assert [segment.segment_name for segment in stub.ListSegments(pb.ListSegmentsRequest(), timeout=20).segments] == ["a"]
        assert not stub.Exists(pb.ExistsRequest(key=key), timeout=20).exists

        # Put: an id and a place, the bytes to their owner, and the end.
        begun = stub.PutStart(pb.PutStartRequest(key=key, value_length=len(value)), timeout=20)
        at = begun.replica_list[0].handles[0]
        assert begun.status_code == OK and begun.put_id and at.segment_name == "a" and at.size == len(value)
        owner = Owner(at.endpoint)
        status, done = owner.put(begun, at, key, value)
        assert status == OK and done[:2] == (at.node, at.incarnation)
        assert stub.GetReplicaList(pb.GetReplicaListRequest(key=key), timeout=20).status_code != OK, "it has not ended"
        name = pb.ReplicaName(node=done[0], incarnation=done[1], index=done[2], epoch=done[3])
        end = pb.PutEndRequest(key=key, put_id=begun.put_id, done=[pb.PutDone(name=name, fact=done[4])])
        ended = stub.PutEnd(end, timeout=20)
        assert (ended.status_code, ended.replicas) == (OK, 1)
        assert stub.PutEnd(end, timeout=20).status_code == OK, "a repeat is answered like the first"
        assert stub.PutStart(pb.PutStartRequest(key=key, value_length=1), timeout=20).status_code == EXISTS

        # Get: where it is, and its bytes; programs of this library read the same.
        listed = stub.GetReplicaList(pb.GetReplicaListRequest(key=key), timeout=20).replica_list
        assert len(listed) == 1 and listed[0].name == name and listed[0].length == len(value)
        assert owner.fetch(listed[0].name, key, len(value)) == (OK, value)
        assert owner.fetch(listed[0].name, b"another", len(value))[0] == NOT_FOUND
        assert node.get(key) == value
        keys = stub.ListKeys(pb.ListKeysRequest(prefix=b"prompt/"), timeout=20).keys
        assert [found.key for found in keys] == [key]

        # Remove: gone for everybody.
        assert stub.Remove(pb.RemoveRequest(key=key), timeout=20).status_code == OK
        assert stub.GetReplicaList(pb.GetReplicaListRequest(key=key), timeout=20).status_code == NOT_FOUND
        assert owner.fetch(name, key, len(value))[0] == NOT_FOUND
        assert node.get(key, None) is None
        assert stub.Remove(pb.RemoveRequest(key=key), timeout=20).status_code == NOT_FOUND

        # A put that its owner holds back, and publishes when the checksum at its end is that of the bytes.
        right = 0xE3069283  # of b"123456789", as everybody who says CRC32C has it
        for said, expected in ((right, OK), (right ^ 1, -22)):
            begun = stub.PutStart(pb.PutStartRequest(key=b"summed", value_length=9), timeout=20)
            status, done = owner.put(begun, begun.replica_list[0].handles[0], b"summed", b"123456789", hold=True)
            assert status == OK and done[4] == 0
            assert node.get(b"summed", None) is None, "not even its own node reads it"
            name = pb.ReplicaName(node=done[0], incarnation=done[1], index=done[2], epoch=done[3])
            summed = pb.PutEndRequest(key=b"summed", put_id=begun.put_id, done=[pb.PutDone(name=name, fact=0)], crc32c=said)
            assert stub.PutEnd(summed, timeout=20).status_code == expected
            assert node.get(b"summed", None) == (b"123456789" if expected == OK else None)
            assert stub.Remove(pb.RemoveRequest(key=b"summed"), timeout=20).status_code == (OK if expected == OK else NOT_FOUND)

        # One that is given up while its owner holds it back: its key is free at once.
        begun = stub.PutStart(pb.PutStartRequest(key=b"summed", value_length=9), timeout=20)
        assert owner.put(begun, begun.replica_list[0].handles[0], b"summed", b"123456789", hold=True)[0] == OK
        assert stub.PutRevoke(pb.PutRevokeRequest(key=b"summed", put_id=begun.put_id), timeout=20).status_code == OK
        node.put(b"summed", b"another")
        assert node.get(b"summed", None) == b"another"

        # A put that is given up, and one that ends without an owner.
        begun = stub.PutStart(pb.PutStartRequest(key=b"given/up", value_length=3), timeout=20)
        assert owner.put(begun, begun.replica_list[0].handles[0], b"given/up", b"abc")[0] == OK
        assert stub.PutRevoke(pb.PutRevokeRequest(key=b"given/up", put_id=begun.put_id), timeout=20).status_code == OK
        assert stub.PutEnd(pb.PutEndRequest(key=b"given/up", put_id=begun.put_id, done=end.done), timeout=20).status_code == STALE
        assert stub.PutEnd(pb.PutEndRequest(key=b"given/up", put_id=begun.put_id), timeout=20).status_code == -1
        assert not stub.Exists(pb.ExistsRequest(key=b"given/up"), timeout=20).exists
        owner.close()

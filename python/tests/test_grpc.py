"""The whole life of an object, driven by a program that has nothing of this library: the master over gRPC as its .proto file says, and the
bytes on the owner's framed connection, with a plain socket."""

from __future__ import annotations

import importlib
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import time

import pytest

import nanomc

grpc = pytest.importorskip("grpc", reason="pip has not installed grpcio")
protoc = pytest.importorskip("grpc_tools.protoc", reason="pip has not installed grpcio-tools")

PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto"
OK, IN_PROGRESS, NOT_FOUND, STALE, EXISTS = 0, 2, -20, -23, -10
PUT, PUT_DONE, FETCH, FETCHED = 40, 41, 42, 43
JOIN, WELCOME, REPORT, ACK, DROPS = 20, 21, 22, 24, 26
ON_DISK = 1 << 31
RAM, SSD = 1, 2


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
        words = struct.pack("<QQQQQI", begun.put_id, begun.term, at.incarnation, at.after.term, at.after.number, at.segment)
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


class Member:
    """A node, as far as its master can tell: it says what it has, and drops what it is told to."""

    SECRET = 77

    def __init__(self, master: str, name: bytes) -> None:
        host, _, port = master.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self.file = self.socket.makefile("rwb")
        self.requests = self.facts = 0
        self.drops: list[bytes] = []
        segments = b"".join(
            struct.pack("<I", number) + blob(name + suffix) + struct.pack("<IQQi", media, 1 << 30, 0, -1)
            for number, suffix, media in ((0, b"", RAM), (1, b"/ssd", SSD)))
        joined = self.ask(JOIN, blob(name) + struct.pack("<QQ?Q??", self.SECRET, 1, False, 5, False, False) + blob(b"127.0.0.1:1")
                          + blob(b"here") + struct.pack("<IIQI", 1000, 100, 1, 2) + segments, WELCOME)
        self.term, _, self.next = struct.unpack("<QQQ", joined[:24])
        self.head = joined[26:42]
        self.node = 0

    def hear(self) -> tuple[int, int, bytes]:
        magic, kind, length, _, request, _ = struct.unpack("<4sIIIQQ", self.file.read(32))
        assert magic == b"NMC\5"
        return kind, request, self.file.read(length)

    def ask(self, kind: int, message: bytes, answer: int) -> bytes:
        self.requests += 1
        self.file.write(struct.pack("<4sIIIQQ", b"NMC\5", kind, len(message), 10000, self.requests, 0) + message)
        self.file.flush()
        while True:
            kind, request, said = self.hear()
            if request == self.requests:
                assert kind == answer, said
                return said
            if kind == DROPS:
                self.drops.append(said)

    def report(self, news: int, words: bytes) -> None:
        self.ask(REPORT, struct.pack("<QQQQQI", self.term, self.node, self.SECRET, self.next, 1, news) + words, ACK)
        self.next += 1

    def fact(self, kind: int, words: bytes) -> None:
        self.facts += 1
        self.report(1, struct.pack("<QII", self.facts, 1, kind) + words)

    def publish(self, index: int, key: bytes, segment: int) -> None:
        self.fact(1, struct.pack("<IQ", index, 1) + blob(b"\0" + key) + struct.pack("<QQI", 1000 + index, 5, segment))

    def drop_next(self) -> list[int]:
        """Waits until it is told to drop replicas, and says that it has: their places."""
        while True:
            while not self.drops:
                kind, _, said = self.hear()
                if kind == DROPS:
                    self.drops.append(said)
            said = self.drops.pop(0)
            through, count = said[24:40], struct.unpack("<I", said[40:44])[0]
            if count > 0:
                break
        places, at = [], 44
        for _ in range(count):
            kind, _, index, epoch, length = struct.unpack("<IQIQI", said[at + 16:at + 44])
            assert kind == 1
            places.append(index)
            self.fact(2, struct.pack("<IQ", index, epoch))
            at += 44 + length + 8
        self.report(4, through)
        return places

    def close(self) -> None:
        self.file.close()
        self.socket.close()


def is_active(pb, stub, name: str) -> bool:
    """Waits until what is unknown does not exist, and the node has told what it has."""
    for _ in range(1000):
        told = stub.Ping(pb.PingRequest(node_name=name), timeout=20)
        if told.settled and told.member == pb.PingResponse.MEMBER_STATE_ACTIVE:
            return True
        time.sleep(0.02)
    return False


def test_a_program_without_this_library_drives_the_whole_life_of_an_object(master, service):
    pb, rpc = service
    key, value = b"prompt/1", bytes(range(256)) * 400
    with nanomc.Client(master, timeout_ms=20000) as node, grpc.insecure_channel(master) as channel:
        stub = rpc.MasterServiceStub(channel)
        node.mount("a", heap_bytes=8 << 20)
        assert is_active(pb, stub, "a")
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


def test_a_segment_is_drained_and_takes_values_again(master, service):
    pb, rpc = service
    with nanomc.Client(master, timeout_ms=20000) as a, nanomc.Client(master, timeout_ms=20000) as b, grpc.insecure_channel(master) as channel:
        stub = rpc.MasterServiceStub(channel)
        a.mount("a", heap_bytes=8 << 20)
        assert is_active(pb, stub, "a")
        values = {b"k%d" % n: bytes([n]) * 5000 for n in range(20)}
        for key, value in values.items():
            a.put(key, value)
        drain = pb.DrainRequest(segment_name="a")
        told = stub.Drain(drain, timeout=20)
        assert told.status_code == IN_PROGRESS, "there is nowhere to copy them to"
        states = {segment.segment_name: segment.state for segment in stub.ListSegments(pb.ListSegmentsRequest(), timeout=20).segments}
        assert states == {"a": pb.Segment.SEGMENT_STATE_DRAINING}
        assert stub.PutStart(pb.PutStartRequest(key=b"more", value_length=1), timeout=20).status_code != OK, "it takes nothing more"
        for _ in range(1000):
            told = stub.Drain(drain, timeout=20)
            if told.left == len(values):
                break
            time.sleep(0.02)
        assert (told.status_code, told.left) == (IN_PROGRESS, len(values)) and told.message
        b.mount("b", heap_bytes=8 << 20)
        for _ in range(1000):
            told = stub.Drain(drain, timeout=20)
            if told.status_code != IN_PROGRESS:
                break
            time.sleep(0.02)
        assert (told.status_code, told.left) == (OK, 0)
        listed = stub.BatchGetReplicaList(pb.BatchGetReplicaListRequest(keys=values), timeout=20).answers
        assert all({replica.handles[0].segment_name for replica in answer.replica_list} == {"a", "b"} for answer in listed)
        assert stub.Drain(pb.DrainRequest(segment_name="a", cancel=True), timeout=20).status_code == OK
        states = {segment.segment_name: segment.state for segment in stub.ListSegments(pb.ListSegmentsRequest(), timeout=20).segments}
        assert states == {"a": pb.Segment.SEGMENT_STATE_OK, "b": pb.Segment.SEGMENT_STATE_OK}
        assert stub.Drain(pb.DrainRequest(segment_name="none"), timeout=20).status_code == NOT_FOUND
        a.unmount("a")
        assert all(b.get(key) == value for key, value in values.items())


def test_a_program_without_this_library_is_a_node_and_evicts_from_its_disk(master, service):
    pb, rpc = service
    with grpc.insecure_channel(master) as channel:
        stub = rpc.MasterServiceStub(channel)
        node = Member(master, b"n")
        node.node = stub.ListSegments(pb.ListSegmentsRequest(), timeout=20).segments[0].node
        node.report(4, node.head)
        node.publish(3, b"memory", 0)
        for slot, key in enumerate((b"disk/1", b"disk/2", b"disk/3")):
            node.publish(ON_DISK | slot, key, 1)
        node.report(3, struct.pack("<Q", node.facts))
        assert is_active(pb, stub, "n")
        keys = [b"memory", b"disk/1", b"disk/2", b"disk/3"]

        def there():
            return [answer.exists for answer in stub.BatchExists(pb.BatchExistsRequest(keys=keys), timeout=20).answers]

        def objects(*keys):
            return [pb.ListedKey(key=key) for key in keys]

        assert there() == [True] * 4
        written = pb.NotifyOffloadSuccessRequest(node_name="n", secret=node.SECRET, objects=objects(*keys[1:]))
        assert stub.NotifyOffloadSuccess(written, timeout=20).status_code == OK

        # All or none of what is on its disk, for nobody but the node.
        evict = pb.BatchEvictDiskReplicaRequest(node_name="n", secret=node.SECRET, objects=objects(b"disk/1", b"memory"))
        assert stub.BatchEvictDiskReplica(evict, timeout=20).status_code == NOT_FOUND
        evict = pb.BatchEvictDiskReplicaRequest(node_name="n", secret=node.SECRET + 1, objects=objects(b"disk/1", b"disk/3"))
        assert stub.BatchEvictDiskReplica(evict, timeout=20).status_code == STALE
        assert there() == [True] * 4
        evict.secret = node.SECRET
        answer = stub.BatchEvictDiskReplica.future(evict, timeout=20)
        dropped: list[int] = []
        while len(dropped) < 2:
            dropped += node.drop_next()
        assert answer.result().status_code == OK
        assert sorted(dropped) == [ON_DISK, ON_DISK | 2]
        assert there() == [True, False, True, False]
        node.close()


def test_a_standby_says_who_leads(master, service, folder):
    if shutil.which("etcd") is None:
        pytest.skip("there is no etcd on the PATH (Debian: apt-get install etcd-server)")
    pb, rpc = service
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    url, peers = (f"http://127.0.0.1:{port}" for port in ports)
    running = []

    def start(*words: str) -> subprocess.Popen:
        running.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
        return running[-1]

    def start_master() -> str:
        process = start(master.process.args[0], "--port", "0", "--metrics_port", "off", "--etcd", url, "--etcd_prefix", "/test")
        return next(line for line in process.stdout if line.startswith("Master service listening on ")).split()[-1]

    try:
        start("etcd", "--data-dir", f"{folder}/etcd", "--name", "e", "--listen-client-urls", url, "--advertise-client-urls", url,
              "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"e={peers}", "--log-level", "error")
        addresses = [start_master(), start_master()]
        answers = {}
        for _ in range(3000):
            for address in addresses:
                with grpc.insecure_channel(address) as channel:
                    try:
                        answers[address] = rpc.MasterServiceStub(channel).Ping(pb.PingRequest(), timeout=20)
                    except grpc.RpcError as error:
                        answers[address] = error
            leaders = [address for address, answer in answers.items() if not isinstance(answer, grpc.RpcError)]
            standbys = [answer for answer in answers.values() if isinstance(answer, grpc.RpcError)]
            if len(leaders) == 1 and any(key == "nanomc-leader" for key, _ in standbys[0].trailing_metadata()):
                break
            time.sleep(0.02)
        assert len(leaders) == 1 and answers[leaders[0]].status_code == OK
        assert standbys[0].code() == grpc.StatusCode.UNAVAILABLE
        assert dict(standbys[0].trailing_metadata())["nanomc-leader"] == leaders[0]
    finally:
        for process in running:
            process.kill()
            process.communicate()

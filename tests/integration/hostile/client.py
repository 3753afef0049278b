"""Calls of a client that follows no rules: methods from the .proto files, requests and answers as bytes."""

import re
import socket
import ssl
import struct

import grpc
from cluster import SOURCE
from grpc import _channel as _  # grpc imports it at its first channel, which is too late for a process that has become another user.

SERVICES = ("auth", "cluster", "job", "node", "worker")
OPEN = (("/grpc.health.v1.Health/Check", ""), ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "ListServices"))
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
END_STREAM, END_HEADERS = 1, 4
ALL = ("UNAUTHENTICATED", "PERMISSION_DENIED", "UNAVAILABLE", "NOT_FOUND")
SHORT = {**dict(zip(ALL, ("unauthenticated", "denied", "no connection", "not found"))), "CANCELLED": "cancelled"}


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def field(number, value):
    """Encodes one field of a protobuf message: bytes, text, or a number."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def methods():
    """Returns (path, the request's message) of every method of every service."""
    found = []
    for name in SERVICES:
        text = (SOURCE / f"proto/titan/v1/{name}.proto").read_text()
        for service, body in re.findall(r"^service (\w+) \{(.*?)^\}", text, re.S | re.M):
            found += [(f"/titan.v1.{service}/{method}", request) for method, request in re.findall(r"rpc (\w+)\((?:stream )?(\w+)\)", body)]
    return sorted(found)


def request_of(message, job, node):
    """Returns a request that names the job or the node, if the message has a field for it."""
    if message == "CreateJobRequest":
        config = '{"scheduling": {"project": "%s"}, "job": {"dump_folder": "/nonexistent"}}' % job.split("/")[1]
        return field(1, field(1, config) + field(8, job.split("/")[1])) + field(2, "5c3f8c1e-4c1c-4d52-8a3e-0f4f2f9f6d11")
    if message == "ListServices":
        return field(7, "")
    if message == "UpdateJobRequest":
        return field(1, field(1, job))
    for name in SERVICES:
        body = re.search(rf"^message {message} \{{(.*?)^\}}", (SOURCE / f"proto/titan/v1/{name}.proto").read_text(), re.S | re.M)
        if body and re.search(r"string (name|job) = 1;", body.group(1)):
            return field(1, node if name == "node" else job)
    return b""


def identity_in(folder):
    """Returns key and certificate."""
    return tuple((folder / name).read_bytes() for name in ("tls.key", "tls.crt"))


def channel(port, ca=None, identity=(None, None)):
    """Returns a channel, over TLS if `ca` (bytes) is given."""
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1), ("grpc.enable_retries", 0)]
    if ca is None:
        return grpc.insecure_channel(f"127.0.0.1:{port}", options)
    return grpc.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(ca, *identity), options)


def call(open_channel, path, request=b"", token="", metadata=(), timeout=30):
    """Returns the status code of the call, or "answered"."""
    bearer = (("authorization", f"Bearer {token}"),) if token else ()
    stream = open_channel.stream_stream(path)(iter([request]), metadata=[*bearer, *metadata], timeout=timeout)
    try:
        next(stream)
        stream.cancel()
        return "answered"
    except StopIteration:
        return "answered"
    except grpc.RpcError as error:
        return error.code().name


def got(code):
    return SHORT.get(code, "allowed")


# --- Raw HTTP/2 ---


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def headers(path, *more):
    """Encodes headers uncompressed, so that they do not enter the dynamic table."""
    pairs = ((":method", "POST"), (":scheme", "https"), (":path", path), (":authority", "localhost"), ("content-type", "application/grpc"),
             ("te", "trailers"), *more)
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in pairs)


def _text(value):
    data = value.encode()
    if len(data) < 127:
        return bytes([len(data)]) + data
    return b"\x7f" + varint(len(data) - 127) + data


def connect_tls(port, ca):
    context = ssl.create_default_context(cafile=ca)
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), 30), server_hostname="127.0.0.1")


def send(peer, pieces):
    """Sends until the peer stops reading, and discards the answers."""
    peer.settimeout(0.2)
    try:
        for piece in pieces:
            peer.sendall(piece)
        while peer.recv(1 << 16):
            pass
    except (OSError, ssl.SSLError):
        pass


def floods(path):
    """Returns {name: the frames of the flood, including the preface}."""
    begin = [PREFACE + frame(SETTINGS, 0, 0)]
    huge = headers(path, *((f"x-{i}", "v" * 16_000) for i in range(256)))
    pieces = [huge[i:i + 16_000] for i in range(0, len(huge), 16_000)]
    return {
        "5,000 streams opened and reset at once":
            begin + [frame(HEADERS, END_HEADERS, n, headers(path)) + frame(RST_STREAM, 0, n, b"\0\0\0\x08") for n in range(1, 10_001, 2)],
        "5,000 streams left open": begin + [frame(HEADERS, END_HEADERS, n, headers(path)) for n in range(1, 10_001, 2)],
        "50,000 pings": begin + [frame(PING, 0, 0, bytes(8)) * 100] * 500,
        "50,000 settings frames": begin + [frame(SETTINGS, 0, 0) * 100] * 500,
        "headers of 4 MiB": begin + [frame(HEADERS, 0, 1, pieces[0])] + [frame(CONTINUATION, 0, 1, piece) for piece in pieces[1:]],
        "50,000 empty continuations": begin + [frame(HEADERS, 0, 1, headers(path))] + [frame(CONTINUATION, 0, 1) * 100] * 500,
    }

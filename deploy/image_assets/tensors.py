"""Reads and writes safetensors files with the standard library only."""

import array
import json
import math
import struct


def count(shape):
    return math.prod(shape)


def halves(data):
    """Returns the numbers of float16 bytes."""
    return struct.unpack(f"<{len(data) // 2}e", data)


def floats(values):
    """Returns an array of float32, of a list of numbers or of their bytes."""
    return array.array("f", values)


def read(path):
    """Returns {name: (type, shape, bytes)} and the file's metadata."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    facts = header.pop("__metadata__", {})
    body = data[8 + size :]
    return {name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])]) for name, entry in header.items()}, facts


def write(path, weights):
    """Writes {name: (shape, array of floats)} in float32, in the order of names."""
    header, body = {}, []
    at = 0
    for name, (shape, values) in sorted(weights.items()):
        if len(values) != count(shape):
            raise ValueError(f"{name} has {len(values)} values, not {shape}")
        body.append(values.tobytes())
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(body[-1])]}
        at += len(body[-1])
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(body))

"""Tests the CUDA device library on a machine without a GPU: it links, contains the right device code, and reports clearly that
there is no device."""

import ctypes
import os
import struct
import subprocess
import tempfile
import unittest

import torch  # noqa: F401  (brings LibTorch's CUDA libraries)

BIN = os.environ["TITAN_BIN"]
LIBRARY = os.path.join(BIN, "libtitan_cuda.so")
CONFIG = os.path.join(os.environ["TITAN_SOURCE"], "deploy", "gpu_check.toml")


def section(path, wanted):
    """Returns the bytes of the section `wanted` of an ELF file."""
    with open(path, "rb") as file:
        data = file.read()
    table, = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    strings = headers[names][4]
    for name, _, _, _, offset, length in headers:
        start = strings + name
        if data[start:data.index(b"\0", start)].decode() == wanted:
            return data[offset:offset + length]
    return b""


def device_code(fat):
    """Returns (kind, architecture) of all code in a .nv_fatbin section."""
    found, at = set(), 0
    while at + 16 <= len(fat):
        magic, _, header, size = struct.unpack_from("<IHHQ", fat, at)
        if magic != 0xBA55ED50:
            at += 8
            continue
        entry, end = at + header, at + header + size
        while entry < end:
            kind, _, entry_header, payload = struct.unpack_from("<HHIQ", fat, entry)
            architecture, = struct.unpack_from("<I", fat, entry + 28)
            found.add(({1: "ptx", 2: "sm"}.get(kind, kind), architecture))
            entry += entry_header + payload
        at = end
    return found


class CudaLibraryTest(unittest.TestCase):
    def test_every_symbol_is_bound(self):
        library = ctypes.CDLL(LIBRARY, mode=os.RTLD_NOW)
        self.assertTrue(library.titan_make_cuda_device)
        self.assertTrue(library.titan_expect_broken_groups)
        self.assertTrue(library.titan_before_watchdogs_end)
        self.assertTrue(library.titan_cuda_kernels)

    def test_device_code(self):
        self.assertEqual(device_code(section(LIBRARY, ".nv_fatbin")), {("sm", 80), ("sm", 90), ("ptx", 90)})

    @unittest.skipIf(torch.cuda.is_available(), "there is a device")
    def test_a_rank_without_a_device_reports_it(self):
        with tempfile.TemporaryDirectory() as folder:
            ran = subprocess.run(
                [os.path.join(BIN, "titan-rank"), "--config", CONFIG, "--job.dump_folder", folder],
                capture_output=True, text=True, timeout=60)
        self.assertEqual(ran.returncode, 10, ran.stderr)
        self.assertRegex(ran.stderr, "DEVICE: CUDA device 0: .*(driver|CUDA)")
        self.assertNotIn("terminate", ran.stderr)
        self.assertEqual(ran.stderr.count("\n"), 1, ran.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)

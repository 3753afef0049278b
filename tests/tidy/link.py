"""Checks what the programs link: daemons and titanctl start in milliseconds because they do not link LibTorch; ranks never link
Protobuf, because the torch wheel shadows its headers; the shim links neither. Reads the files with readelf and nm."""

import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from paths import BIN

TORCH = ("libtorch", "libc10", "libgomp", "libcuda", "libnccl")
WIRE = ("libgrpc", "libprotobuf", "libgpr")
WEB = ("libcurl",)  # Only users' programs query a hub, and ranks read text from it: no daemon fetches anything.
PROGRAMS = {
    "titanctl": TORCH,
    "titan-controller": (*TORCH, *WEB),
    "titan-worker": (*TORCH, *WEB),
    "titan-shim": (*TORCH, *WIRE, *WEB, "libsqlite", "libyaml", "libdw", "libelf"),  # Ranks die with their shim, so it reads no foreign files.
    "titan-stacks": (*TORCH, *WIRE, *WEB, "libsqlite", "libyaml"),
    "titan-data": (*TORCH, *WIRE, *WEB, "libsqlite", "libyaml", "libsentencepiece", "libarrow", "libparquet"),  # sentencepiece contains its own Protobuf.
    "titan-rank": (*WIRE, "libsentencepiece", "libcudart", "libcublas", "libnccl", "libarrow", "libparquet"),  # Libraries for CUDA, Arrow and sentencepiece are loaded on demand.
}


def needed(program):
    """Returns the names in the file's dynamic section: what the loader loads for this program itself."""
    text = subprocess.run(["readelf", "-d", BIN / program], check=True, capture_output=True, text=True).stdout
    return [line.split("[")[1].rstrip("]") for line in text.splitlines() if "(NEEDED)" in line]


def symbols(program):
    return subprocess.run(["nm", "-C", "--defined-only", BIN / program], check=True, capture_output=True, text=True).stdout


class Link(unittest.TestCase):
    def test_forbidden_libraries(self):
        for program, forbidden in PROGRAMS.items():
            with self.subTest(program):
                self.assertEqual([], [name for name in needed(program) if name.startswith(forbidden)])

    def test_rank_links_torch(self):
        self.assertTrue([name for name in needed("titan-rank") if name.startswith("libtorch_cpu")])

    def test_no_static_copies(self):
        """A static library would not be in NEEDED."""
        self.assertNotIn("google::protobuf::Message", symbols("titan-rank"))
        self.assertNotIn("google::protobuf::Message", symbols("titan-shim"))
        self.assertNotIn("at::native", symbols("titan-worker"))

    def test_no_gloo_vtables(self):
        """Debian's Gloo headers are older than the wheel's code: a vtable emitted from them would have the wrong layout."""
        self.assertEqual([], [line for line in symbols("titan-rank").splitlines() if "vtable for gloo::" in line])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)

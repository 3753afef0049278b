"""Reads a hub's file as a stream, by ranges and through a cache that processes share (common/io/hub/stream.h)."""

import hashlib
import os
import random
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from fake_hub import FakeHub

CAT = Path(os.environ["TITAN_BIN"]).parent / "tests/hub_stream_cat"
CHUNK = 10_000
SHARD = "en/shard.json.gz"
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}


class Streams(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.hub = FakeHub()
        self.addCleanup(self.hub.close)
        self.content = random.Random(5).randbytes(6 * CHUNK + 123)
        self.repo = self.hub.add("org/text", {SHARD: self.content, "whole": self.content[:2 * CHUNK], "empty.gz": b""}, kind="datasets")
        self.commit = self.repo.branches["main"]
        self.cache = self.folder / "cache"

    def start(self, file=SHARD, offset=0, revision=None, read=3000, limit=None):
        cache = [] if limit is None else [self.cache, limit]
        words = [CAT, self.hub.url(), "org/text", file, revision or self.commit, offset, CHUNK, read, *cache]
        return subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)

    def cat(self, *words, **more):
        process = self.start(*words, **more)
        output, errors = process.communicate(timeout=60)
        self.assertEqual(0, process.returncode, errors)
        return output

    def cached_chunks(self):
        return [path for path in self.cache.iterdir() if not path.name.startswith("lock-")]

    def cached_bytes(self):
        return sum(path.stat().st_size for path in self.cached_chunks())

    def test_any_offset(self):
        for offset in (0, 1, CHUNK - 1, CHUNK, 3 * CHUNK + 7, len(self.content) - 1, len(self.content), len(self.content) + 5, 9 * CHUNK):
            self.hub.forget()
            self.assertEqual(self.content[offset:], self.cat(offset=offset), offset)
            self.assertLessEqual(len(self.hub.requests("cdn")), 7 - min(6, offset // CHUNK), "nothing before it is fetched")
        self.assertEqual(self.content, self.cat(revision="main", read=100_000))
        self.assertEqual(self.content[:2 * CHUNK], self.cat("whole"))  # The file ends at the end of a chunk.
        self.assertEqual(b"", self.cat("empty.gz"))

    def test_faults(self):
        for order in (dict(kind="drop", value=77, times=3), dict(kind="reset"), dict(kind="short", value=5), dict(kind="wrong range", value=3),
                      dict(kind="status", value=503), dict(kind="no ranges", times=3)):
            self.hub.order(path=SHARD, server="cdn", **order)
        self.assertEqual(self.content, self.cat())
        self.assertEqual(0, sum(fault.times for fault in self.hub.faults))
        self.hub.order("status", SHARD, value=500, times=100, server="cdn")
        self.start_fails("UNAVAILABLE", SHARD, "tried 4 times")
        self.hub.forget()
        self.start_fails("NOT_FOUND", "no such file", file="nowhere")
        self.hub.order("call", SHARD, server="cdn", value=lambda: self.hub.order("headers", SHARD, headers={"X-Linked-Etag": '"other"'}))
        self.start_fails("ABORTED", "changed")

    def start_fails(self, *words, **more):
        process = self.start(**more)
        output, errors = process.communicate(timeout=60)
        self.assertEqual(1, process.returncode)
        for word in words:
            self.assertIn(word, errors.decode())
        self.assertTrue(self.content.startswith(output), "the bytes read before the error are correct")

    # If the revision is a commit, cached chunks are read without the hub.
    def test_chunks_are_cached(self):
        self.assertEqual(self.content, self.cat(limit=10**9))
        self.assertEqual(0o700, self.cache.stat().st_mode & 0o777)
        self.hub.forget()
        self.assertEqual(self.content, self.cat(limit=10**9))
        self.assertEqual([], self.hub.requests())
        # Chunks that are damaged in the middle, cut or empty are fetched again.
        for number, path in enumerate(sorted(self.cached_chunks())):
            whole = path.read_bytes()
            path.write_bytes([whole[:50] + b"!" + whole[51:], whole[:-1], b""][number % 3])
        self.assertEqual(self.content, self.cat(limit=10**9))
        self.assertEqual(7, len(self.hub.requests("cdn")))

    def test_another_commit_is_another_file(self):
        self.cat(limit=10**9)
        changed = self.repo.commit({SHARD: self.content[::-1]})
        self.assertEqual(self.content[::-1], self.cat(revision=changed, limit=10**9))
        self.assertEqual(self.content, self.cat(limit=10**9))

    # The least recently used chunks are evicted, and the cache never exceeds its limit.
    def test_limit(self):
        limit = 4 * (CHUNK + 12)
        self.cat(limit=limit)
        self.assertEqual(4 * (CHUNK + 12) - CHUNK + 123, self.cached_bytes())
        self.cat(offset=5 * CHUNK, limit=limit)  # Used again, so chunks 3 and 4 are the oldest.
        self.cat("whole", limit=limit)  # Adds two chunks.
        self.assertLessEqual(self.cached_bytes(), limit)
        self.hub.forget()
        self.cat(offset=5 * CHUNK, limit=limit)
        self.assertEqual([], self.hub.requests())
        self.assertEqual(self.content, self.cat(limit=50))  # No chunk fits.

    # Ranks of a node read the same file: each chunk is fetched once.
    def test_concurrent_readers_share_chunks(self):
        gate = self.hub.gates["held"] = threading.Event()
        self.hub.order("wait", SHARD, value=(100, "held"), server="cdn")
        ranks = [self.start(limit=10**9) for _ in range(4)]
        gate.set()
        for rank in ranks:
            output, errors = rank.communicate(timeout=60)
            self.assertEqual((0, hashlib.sha256(self.content).digest()), (rank.returncode, hashlib.sha256(output).digest()), errors)
        self.assertEqual(7, len(self.hub.requests("cdn")))
        tight = [self.start(limit=2 * (CHUNK + 12)) for _ in range(4)]  # They evict each other's chunks.
        for rank in tight:
            output, errors = rank.communicate(timeout=60)
            self.assertEqual((0, self.content), (rank.returncode, output), errors)
        self.assertLessEqual(self.cached_bytes(), 7 * (CHUNK + 12))


if __name__ == "__main__":
    unittest.main()

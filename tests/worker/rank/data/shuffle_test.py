"""Tests shuffled data: the order of each pass is a permutation that a seed and the pass define, computed here a second time. Rows
are the same on every number of ranks, a job resumes at any batch on another number of them, and data that cannot be shuffled is
refused."""

import gzip
import json
import pathlib
import random
import struct
import subprocess
import unittest

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from row_reader import BIN, TOKENIZER, RowReader, in_order

WIDTH, SEED = 33, 7
MASK = (1 << 64) - 1


def scramble(value):
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31


def permutation(count, seed, passes):
    """Permutes range(count) by eight Feistel rounds over halves of equal width, repeated while the result is not below `count`."""
    half = max(1, -(-(count - 1).bit_length() // 2))
    key, keys = scramble(scramble(seed + 0x9E3779B97F4A7C15 & MASK) + passes & MASK), []
    for _ in range(8):
        key = key + 0x9E3779B97F4A7C15 & MASK
        keys.append(scramble(key))
    low = (1 << half) - 1

    def place(value):
        while True:
            left, right = value >> half, value & low
            for k in keys:
                left, right = right, left ^ scramble(right ^ k) & low
            value = left << half | right
            if value < count:
                return value

    return [place(i) for i in range(count)]


class Shuffle(RowReader):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        random_ = random.Random(4)
        cls.documents, cls.lines = [], []  # Documents' tokens in the files' order; lines' tokens, with None for a malformed one.
        (cls.root / "text").mkdir()
        (cls.root / "parts").mkdir()
        for part in range(3):
            lines = []
            for i in range(70):
                text = f"{part} {i} " + " ".join(random_.choices(["the", "perl", "é", "list"], k=random_.randrange(50)))
                tokens = cls.encode(text)
                cls.documents.append(tokens)
                lines.append(json.dumps({"text": text}))
                cls.lines.append(tokens)
                if i % 29 == 11:
                    lines += ["", "{broken"]
                    cls.lines.append(None)
            (cls.root / "text" / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
        paragraphs = [f"paragraph {i}\nof two lines" for i in range(40)]
        cls.paragraphs = [cls.encode(text) for text in paragraphs]
        (cls.root / "parts" / "all.txt").write_text("\n\n\n".join(paragraphs) + "\n")
        subprocess.run([BIN / "titan-data", "tokenize", "--tokenizer", TOKENIZER, "--out", cls.root / "index", cls.root / "text"],
                       check=True, capture_output=True)
        cls.megatron(cls.root / "megatron")

    @classmethod
    def megatron(cls, prefix):
        lengths = [len(document) for document in cls.documents]
        firsts = np.cumsum([0, *lengths[:-1]]) * 4
        pathlib.Path(f"{prefix}.bin").write_bytes(np.concatenate(cls.documents).astype(np.int32).tobytes())
        pathlib.Path(f"{prefix}.idx").write_bytes(
            b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, len(lengths), len(lengths) + 1) + np.asarray(lengths, np.int32).tobytes()
            + firsts.astype(np.int64).tobytes() + np.arange(len(lengths) + 1, dtype=np.int64).tobytes())

    def query(self, where, shuffle, **request):
        return {"row_tokens": WIDTH, "path": str(self.root / where), "format": "auto", "seed": SEED, "shuffle": shuffle,
                "counts": str(self.root / "counts"), **request}

    def run_query(self, where, shuffle, **request):
        return self.answer(**self.query(where, shuffle, **request))

    def globally(self, where, shuffle, size, batch, batches, cursor=None, **request):
        ranks = self.answers(size, **self.query(where, shuffle, batch=batch, batches=batches, cursor=cursor, **request))
        return in_order(ranks, batch, batches), ranks[0]["cursor"]

    def cut(self, documents, order, passes=3):
        """Cuts documents, in the order of each pass, into rows of one stream over all passes."""
        stream = [t for p in range(passes) for i in order(len(documents), SEED, p) for t in documents[i] or []]
        return [stream[i:i + WIDTH] for i in range(0, len(stream) - WIDTH + 1, WIDTH)]

    def whole_rows(self, passes=3):
        stream = [t for document in self.documents for t in document]
        rows = [stream[i:i + WIDTH] for i in range(0, len(stream) - WIDTH + 1, WIDTH)]
        return [rows[i] for p in range(passes) for i in permutation(len(rows), SEED, p)]

    def expected(self, where, shuffle):
        if shuffle == "rows":
            return self.whole_rows()
        return self.cut({"text": self.lines, "parts": self.paragraphs}.get(where, self.documents), permutation)

    CASES = (("text", "documents"), ("index", "documents"), ("index", "rows"), ("megatron", "documents"), ("megatron", "rows"))

    def test_the_order_is_the_permutation_on_every_mesh(self):
        for where, shuffle in self.CASES:
            want = self.expected(where, shuffle)
            for size, batch in ((1, 8), (2, 4), (8, 1)):
                rows, _ = self.globally(where, shuffle, size, batch, len(want) // 8)
                self.assertEqual(rows, want[:len(rows)], (where, shuffle, size))

    def test_paragraphs(self):
        answer = self.run_query("parts", "documents", batches=20, blank_lines=True)
        self.assertEqual(answer["rows"], self.cut(self.paragraphs, permutation)[:20])

    @unittest.skipUnless((BIN / "titan-parquet.so").exists(), "built without Parquet")
    def test_parquet_is_shuffled_in_blocks(self):
        """Row groups come in random order, with their rows in random order; one of more than 8,192 rows counts as several."""
        groups, texts = [[], []], []
        for file, sizes in enumerate(((30, 45, 17), (9000, 5))):
            names = [f"{file} {i} perl" if i % 50 != 9 else None for i in range(sum(sizes))]
            writer = pq.ParquetWriter(self.root / f"{file}.parquet", pa.schema([("text", pa.string())]))
            for i, size in enumerate(sizes):
                first = sum(sizes[:i])
                writer.write_table(pa.table({"text": pa.array(names[first:first + size], pa.string())}), row_group_size=1 << 20)
                groups[file].append(size)
            writer.close()
            texts += names
        blocks, at = [], 0  # (first document, number of documents).
        for size in groups[0] + groups[1]:
            blocks += [(at + row, min(8192, size - row)) for row in range(0, size, 8192)]
            at += size
        order = lambda p: [blocks[b][0] + i for b in permutation(len(blocks), SEED, p)  # noqa: E731
                           for i in permutation(blocks[b][1], SEED + 1 + b, p)]
        self.assertEqual(sorted(order(0)), list(range(len(texts))))
        tokens = [None if text is None else self.encode(text) for text in texts]
        want = self.cut(tokens, lambda count, seed, p: order(p), 2)
        rows, cursor = self.globally("*.parquet", "documents", 2, 100, 5, bad_lines=1000)
        self.assertEqual(rows, want[:1000])
        rows, cursor = self.globally("*.parquet", "documents", 4, 50, len(want) // 200 - 5, cursor, bad_lines=1000)
        self.assertEqual(rows, want[1000:len(want) // 200 * 200])

    def test_resumes_at_any_batch_on_other_ranks(self):
        for where, shuffle in self.CASES:
            want, cursor = self.expected(where, shuffle), None
            for i in range(len(want) // 20):
                size = (1, 4, 2)[i % 3]
                rows, cursor = self.globally(where, shuffle, size, 20 // size, 1, cursor)
                self.assertEqual(rows, want[20 * i:20 * i + 20], (where, shuffle, i))
                self.assertEqual(cursor["shuffle"], shuffle)

    def test_one_pass_gives_each_document_once(self):
        answer = self.run_query("index", "documents", loop=False, batches=10_000, row_tokens=1)
        self.assertEqual(sorted(t for row in answer["rows"] for t in row), sorted(t for d in self.documents for t in d))
        rows = self.run_query("index", "rows", loop=False, batches=10_000)["rows"]
        self.assertEqual(sorted(rows), sorted(self.whole_rows(1)))

    def test_each_rank_shuffles_its_own_documents(self):
        each = len(self.documents) // 3
        for rank in range(3):
            answer = self.run_query("index", "documents", per_rank=True, dp_rank=rank, dp_size=3, batches=40)
            self.assertEqual(answer["rows"], self.cut(self.documents[rank * each:rank * each + each], permutation)[:40])

    def test_other_orders_are_refused(self):
        cursor = self.run_query("index", "documents", batches=3)["cursor"]
        for change in ({"seed": 8}, {"shuffle": "rows"}, {"shuffle": "none"}):
            message = self.run_query("index", change.pop("shuffle", "documents"), cursor=cursor, **change)["error"]
            self.assertIn('saved with shuffle = "documents" of 210 by seed 7', message)
            self.assertIn("exclude_from_loading", message)
        plain = self.run_query("index", "none", batches=3)["cursor"]
        self.assertNotIn("shuffle", plain)  # Like cursors from before shuffling existed.
        self.assertIn("saved without shuffling", self.run_query("index", "documents", cursor=plain)["error"])
        rows = self.run_query("index", "rows", batches=3)["cursor"]
        self.assertIn("seq_len = 32", self.run_query("index", "rows", cursor=rows, row_tokens=17)["error"])

    def test_compressed_streams_are_refused(self):
        packed = self.root / "packed.jsonl.gz"
        packed.write_bytes(gzip.compress((self.root / "text" / "0.jsonl").read_bytes()))
        message = self.run_query("packed.jsonl.gz", "documents")["error"]
        self.assertIn("packed.jsonl.gz", message)
        self.assertIn("titan-data tokenize", message)
        self.assertIn('set shuffle = "documents"', self.run_query("text", "rows")["error"])

    def test_damaged_places_are_detected(self):
        counts = self.root / "damaged"
        want = self.run_query("text", "documents", batches=5, counts=str(counts))["rows"]
        [place] = counts.glob("places-*.bin")
        whole = place.read_bytes()
        self.assertEqual(len(whole), 16 * len(self.lines) + 8 * 4 + 4 + 32)
        for at in range(0, len(whole), 397):
            place.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:])
            self.assertIn("damaged", self.run_query("text", "documents", batches=5, counts=str(counts))["error"])
        place.write_bytes(whole[:-5])
        self.assertIn("remove it", self.run_query("text", "documents", batches=5, counts=str(counts))["error"])
        place.unlink()
        self.assertEqual(self.run_query("text", "documents", batches=5, counts=str(counts))["rows"], want)

    # The copy of the algorithm in this file is fair; the other tests compare the program with it.
    def test_the_permutations_are_fair(self):
        for count in (1, 2, 3, 4, 5, 17, 64, 65, 1000):
            self.assertEqual(sorted(permutation(count, 1, 0)), list(range(count)))
        self.assertNotEqual(permutation(1000, 1, 0), permutation(1000, 1, 1))
        self.assertNotEqual(permutation(1000, 1, 0), permutation(1000, 2, 0))
        count, passes = 20, 1000
        where = np.array([permutation(count, 3, p) for p in range(passes)])
        for place in range(count):  # Chi-squared with 19 degrees of freedom: above 60 once in 200,000.
            seen = np.bincount(where[:, place], minlength=count)
            self.assertLess(((seen - passes / count) ** 2 / (passes / count)).sum(), 60)
        long = np.array(permutation(5000, 3, 0))
        self.assertLess(abs(np.corrcoef(long, np.arange(5000))[0, 1]), 0.06)  # Four standard deviations.
        self.assertLess(abs(np.corrcoef(long[1:], long[:-1])[0, 1]), 0.06)
        self.assertLess(np.mean(np.abs(np.diff(long)) == 1), 0.003)


if __name__ == "__main__":
    unittest.main()

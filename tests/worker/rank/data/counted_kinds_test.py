"""Tests distributed row counting for every kind of file, including compressed ones, in order, shuffled and packed: rows, cursors
and warnings equal those of one reader of everything, and each can resume from the other's cursor."""

import gzip
import json
import os
import pathlib
import random
import unittest

import pyarrow as pa
import pyarrow.parquet as pq
from row_reader import BIN, RowReader, in_order

WIDTH = 33
PARQUET = (BIN / "titan-parquet.so").exists()


class CountedKinds(RowReader):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        random_ = random.Random(8)
        words = lambda: " ".join(random_.choices(["the", "perl", "é", "list"], k=random_.choice((0, 3, 9, 20, 400))))  # noqa: E731
        texts = [words() for _ in range(200)]
        for kind in ("jsonl", "text", "parquet", "jsonl.compressed", "text.compressed"):
            (cls.root / kind).mkdir()
        for part in range(3):
            own = texts[part::3] if part != 1 else []
            (cls.root / "jsonl" / f"{part}.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" + "{bad\n" * (i % 50 == 9) for i, t in enumerate(own)))
            (cls.root / "text" / f"{part}.txt").write_text("\n\n \n".join(own))
            rows = [None if i % 41 == 7 else b"\xff" if i % 41 == 8 else t.encode() for i, t in enumerate(own)]
            options = {"row_group_size": 27} if part == 0 else {"data_page_size": 300, "use_dictionary": False}
            cls.compress("jsonl", part)
            cls.compress("text", part)
            pq.write_table(pa.table({"n": list(range(len(rows))), "text": pa.array(rows, pa.binary())}), cls.root / "parquet" / f"{part}.parquet", **options)

    @classmethod
    def compress(cls, kind, part):
        """Compresses a file in several members of gzip and one with zstd, and leaves one uncompressed."""
        data = (cls.root / kind / f"{part}.{kind.replace('text', 'txt')}").read_bytes()
        path = cls.root / f"{kind}.compressed" / f"{part}.{kind.replace('text', 'txt')}"
        if part == 0:
            pathlib.Path(f"{path}.gz").write_bytes(b"".join(gzip.compress(data[i:i + 30_000]) for i in range(0, len(data), 30_000)))
        elif part == 1:
            path.write_bytes(data)
        else:
            pathlib.Path(f"{path}.zst").write_bytes(pa.compress(data, codec="zstd", asbytes=True))

    def query(self, kind, **request):
        return {"row_tokens": WIDTH, "path": str(self.root / kind), "format": kind.split(".")[0], "counts": str(self.root / "counts"), "blank_lines": True,
                "seed": 5, **request}

    def run_ranks(self, kind, size, **request):
        return self.answers(size, **self.query(kind, **request))

    def check(self, kind, **arrangement):
        batches = 72  # Batches of 12 rows: more than two passes.
        alone = self.run_ranks(kind, 1, batch=12, batches=batches, **arrangement)
        rows, ends = in_order(alone, 12, batches), alone[0].get("ends")
        self.assertGreaterEqual(alone[0]["cursor"]["pass"], 1)
        for size in (4, 6):
            together = self.run_ranks(kind, size, batch=12 // size, batches=batches, **arrangement)
            self.assertEqual(in_order(together, 12 // size, batches), rows, (kind, size))
            if ends is not None:
                self.assertEqual(in_order(together, 12 // size, batches, "ends"), ends, (kind, size))
            for rank in together:
                self.assertEqual(rank["warnings"], alone[0]["warnings"])
        # One reader and several ranks alternate, each resuming from the other's cursor.
        cursor, at = None, 0
        for i in range(16):
            size, count = (1, 4, 2, 6)[i % 4], i % 5 + 1
            ranks = self.run_ranks(kind, size, batch=12 // size, batches=count, cursor=cursor, **arrangement)
            self.assertEqual(in_order(ranks, 12 // size, count), rows[at:at + 12 * count], (kind, i))
            cursor, at = ranks[0]["cursor"], at + 12 * count
        # Without a loop both end at the same row.
        once = [self.run_ranks(kind, size, batches=1000, loop=False, **arrangement) for size in (1, 4)]
        whole = len(once[1][0]["rows"]) - 1
        self.assertLessEqual(0, len(once[0][0]["rows"]) - 4 * whole, kind)
        self.assertLess(len(once[0][0]["rows"]) - 4 * whole, 8, kind)
        self.assertEqual(in_order(once[1], 1, whole), once[0][0]["rows"][:4 * whole])

    ARRANGED = ({"shuffle": "documents"}, {"window": 16}, {"shuffle": "documents", "window": 16})

    def test_json_lines(self):
        self.check("jsonl")

    def test_paragraphs(self):
        self.check("text")

    def test_compressed(self):
        self.check("jsonl.compressed")
        self.check("text.compressed")

    @unittest.skipUnless(PARQUET, "built without Arrow")
    def test_parquet(self):
        self.check("parquet")

    def test_arranged_text(self):
        for kind in ("jsonl", "text"):
            for arrangement in self.ARRANGED:
                self.check(kind, **arrangement)

    @unittest.skipUnless(PARQUET, "built without Arrow")
    def test_arranged_parquet(self):
        for arrangement in self.ARRANGED:
            self.check("parquet", **arrangement)

    def test_malformed_documents_are_named_and_limited(self):
        for kind, word, line in (("jsonl", "line", "0.jsonl:11: not JSON"), ("parquet", "row", "row 7 of row group 0: null")):
            if kind == "parquet" and not PARQUET:
                continue
            for arrangement in ({}, *self.ARRANGED):
                warnings = self.run_ranks(kind, 4, batches=200, **arrangement)[0]["warnings"]
                self.assertTrue(any(line in warning for warning in warnings), (kind, arrangement, warnings))
                for size in (1, 4):
                    message = self.answer(dp_size=size, batches=500, bad_lines=0, **self.query(kind, **arrangement))["error"]
                    self.assertIn(f"that is malformed {word} 1, more than dataloader.max_bad_lines = 0", message)

    def test_damaged_counts_do_not_change_rows(self):
        random_, counts = random.Random(2), self.root / "damaged"
        for arrangement in ({}, *self.ARRANGED):
            query = self.query("jsonl", counts=str(counts), dp_rank=1, dp_size=4, batches=90, **arrangement)
            rows = self.answer(**query)["rows"]
            for path in [*counts.glob("token-counts-*"), *counts.glob("document-lengths-*")]:
                good = path.read_bytes()
                for i in range(4):
                    bad = bytearray(good[:random_.randrange(len(good))] if i % 2 else good)
                    for _ in range(3 * (1 - i % 2)):
                        bad[random_.randrange(len(bad))] = random_.randrange(256)
                    path.write_bytes(bad)
                    self.assertEqual(self.answer(**query)["rows"], rows, (arrangement, i))

    def test_warns_of_compressed_text_on_many_ranks(self):
        path = self.root / "packed.jsonl.gz"
        path.write_bytes(gzip.compress((self.root / "jsonl" / "0.jsonl").read_bytes()))
        for arrangement, limit, does in (({}, 1024, "decompresses"), ({"window": 16}, 64, "reads and tokenises")):
            for size, warned in ((limit - 1, False), (limit, True)):
                query = self.query("packed.jsonl.gz", format="jsonl", dp_size=size, batches=1, **arrangement)
                warnings = self.answer(**query)["warnings"]
                self.assertEqual(warned, any(f"so each of {limit} data-parallel ranks {does} all of it" in w for w in warnings), warnings)
                self.assertNotIn("all of it", " ".join(self.answer(**{**query, "per_rank": True, "dp_size": limit}).get("warnings", [])))
        plain = self.answer(**self.query("jsonl", dp_size=1024, batches=1))["warnings"]
        self.assertNotIn("all of it", " ".join(plain))

    def test_malformed_lines_after_the_last_row_are_reported(self):
        """In a stream that does not loop, each rank that keeps reading reports them, and all ranks report the same."""
        path = self.root / "tail.jsonl"
        path.write_text(json.dumps({"text": "the perl list " * 200}) + "\n" + "{bad\n" * 5)
        query = dict(path=str(path), format="jsonl", counts=str(self.root / "tail"), row_tokens=WIDTH, loop=False, batches=1000)
        alone = self.answer(batch=4, bad_lines=5, **query)
        self.assertEqual(len(alone["warnings"]), 5)
        for rank in self.answers(4, batch=1, bad_lines=5, **query):
            self.assertEqual(rank["warnings"], alone["warnings"])
        for rank in range(4):
            message = self.answer(dp_rank=rank, dp_size=4, batch=1, bad_lines=4, **query)["error"]
            self.assertIn("tail.jsonl:6: not JSON; that is malformed line 5, more than dataloader.max_bad_lines = 4", message)

    def test_only_visible_files_of_a_folder_are_read(self):
        """Hidden files of tools are not trained on; a missing file is not silently left out."""
        folder = self.root / "visible"
        (folder / "folder.jsonl").mkdir(parents=True)
        (folder / "a.jsonl").write_text(json.dumps({"text": "the perl list " * 50}) + "\n")
        query = dict(path=str(folder), format="auto", row_tokens=WIDTH, batches=9)
        expected = self.answer(**query)["rows"]
        self.assertEqual(len(expected), 9)
        for name in (".a.jsonl", "._a.jsonl"):
            (folder / name).write_text(json.dumps({"text": "left over"}) + "\n")
        os.mkfifo(folder / "pipe.jsonl")
        self.assertEqual(self.answer(**query)["rows"], expected)
        for pattern in ("*", "*.jsonl", "[af]*"):
            self.assertEqual(self.answer(**{**query, "path": str(folder / pattern)})["rows"], expected, pattern)
        self.assertIn("f*: no file matches", self.answer(**{**query, "path": str(folder / "f*")})["error"])
        (folder / "gone.jsonl").symlink_to(self.root / "nowhere")
        self.assertIn("gone.jsonl", self.answer(**{**query, "path": str(folder / "*")})["error"])
        self.assertIn("gone.jsonl", self.answer(**query)["error"])

    def test_resumes_in_the_same_file_among_equal_names(self):
        folder = self.root / "dumps"
        line = lambda name: json.dumps({"text": f"the perl list of {name} " * 50}) + "\n"  # noqa: E731
        for name in ("B", "C"):
            (folder / name).mkdir(parents=True)
            (folder / name / "0.jsonl").write_text(line(name))
        query = lambda root, **more: dict(path=f"{root}/0.jsonl", format="jsonl", row_tokens=WIDTH, **more)  # noqa: E731
        one, two = (self.answer(**query(folder / of))["cursor"] for of in ("B", "*"))
        rows = self.answer(cursor=two, **query(folder / "*"))["rows"]
        self.assertEqual((one["file_name"], one["file_path"], two["file_path"]), ("0.jsonl", "0.jsonl", "B/0.jsonl"))
        self.assertEqual(self.answer(cursor=one, **query(folder / "*"))["rows"], rows, "a folder was added after it")
        folder = folder.rename(self.root / "moved")
        self.assertEqual(self.answer(cursor=two, **query(folder / "*"))["rows"], rows)
        self.assertEqual(self.answer(cursor=one, **query(folder / "B"))["rows"], rows)
        (folder / "A").mkdir()
        (folder / "A" / "0.jsonl").write_text(line("A"))
        for cursor in (one, two):
            message = self.answer(cursor=cursor, **query(folder / "*"))["error"]
            self.assertIn(f'/dumps/B/0.jsonl" and is "{folder}/A/0.jsonl" now', message)
        old = {key: value for key, value in two.items() if key not in ("file_path", "files_folder")}
        self.assertNotIn("error", self.answer(cursor=old, **query(folder / "*")))  # A cursor of an older Titan does not have these members.

    def test_gzip_padding_and_longest_zstd_windows(self):
        line = lambda word: json.dumps({"text": f"the perl list {word} " * 50}).encode() + b"\n"  # noqa: E731
        (self.root / "two.jsonl").write_bytes(line("one") + line("two"))
        padded, window, zeros = self.root / "two.jsonl.gz", self.root / "two.jsonl.zst", bytes(200_000)
        data = gzip.compress(line("one")) + gzip.compress(line("two"))
        text = line("one") + line("two")
        # A frame as zstd --long=31 writes it, with one stored block.
        window.write_bytes(b"\x28\xb5\x2f\xfd\0\xa8" + (len(text) << 3 | 1).to_bytes(3, "little") + text)
        query = lambda path, **more: dict(path=str(path), format="jsonl", row_tokens=WIDTH, loop=False, batches=1000, **more)  # noqa: E731
        expected = self.answer(batch=4, **query(self.root / "two.jsonl"))["rows"]
        self.assertGreater(len(expected), 9)
        padded.write_bytes(data + zeros)
        for path in (padded, window):
            self.assertEqual(self.answer(batch=4, **query(path))["rows"], expected)
            ranks = self.answers(4, counts=str(self.root / "padded"), **query(path))
            self.assertEqual(in_order(ranks, 1, len(expected) // 4), expected[:len(expected) // 4 * 4])
        for more in (zeros + b"x", zeros + gzip.compress(line("three")), b"x"):  # Extra data is never silently left out.
            padded.write_bytes(data + more)
            self.assertRegex(self.answer(**query(padded))["error"], "two.jsonl.gz: the gzip data is (damaged|cut short)")

    def test_other_data_is_refused(self):
        path = self.root / "other.jsonl"
        lines = [json.dumps({"text": "one two three " * (i % 7)}) for i in range(300)]
        path.write_text("\n".join(lines) + "\n")
        query = self.query("other.jsonl", format="jsonl", counts=str(self.root / "other"), dp_size=4)
        for arrangement in ({}, {"window": 16}):
            cursor = self.answer(batches=20, **query, **arrangement)["cursor"]
            path.write_text("\n".join(["{}"] + lines[:40] + ["x" * 76] + lines[40:]) + "\n")
            self.assertIn("the dataset has changed", self.answer(batches=20, cursor=cursor, **query, **arrangement).get("error", ""))
            path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    unittest.main(verbosity=1)

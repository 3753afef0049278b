"""Compares kinds of files with the packages that write them: Titan reads the same content as pyarrow, gzip and Python, from the
start and from every document's position, and never reads damaged Parquet silently."""

import gzip
import os
import random
import re
import sys
import unittest

import pyarrow as pa
import pyarrow.parquet as pq
from request_program import BIN, RequestProgram

PARQUET = (BIN / "titan-parquet.so").exists()
DAMAGED = 260 if os.environ.get("TITAN_LONG") != "1" else 5000


class Formats(RequestProgram):
    PROGRAM = "read_documents"

    def read(self, *files, **request):
        return self.reply_to({"files": [str(f) for f in files], "seek": True, **request})

    def complete_texts(self, answer):
        self.assertIsNone(answer.get("error"))
        self.assertIsNone(answer.get("seek"))
        return answer["texts"]

    def write(self, name, data):
        path = self.root / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    def texts(self, count, seed=1):
        random_ = random.Random(seed)
        return ["".join(random_.choice("ab cé\n漢🙂") for _ in range(random_.randrange(1, 60))) for _ in range(count)]

    def test_a_text_file_is_a_document(self):
        texts = ["one\n\ntwo\r\n", "drei é", "x" * 3_000_000]
        files = [self.write(f"{i}.txt", text) for i, text in enumerate(texts)]
        packed = self.write("3.txt.gz", gzip.compress(b"packed"))
        empty = self.write("4.txt", "\n \n")
        wrong = self.write("5.txt", b"\xff\xfe")
        answer = self.read(*files, packed, empty, wrong, format="text")
        self.assertEqual(texts + ["packed"], self.complete_texts(answer))
        self.assertEqual([f"{wrong}: not UTF-8, skipped"], answer["warnings"])

    def test_blank_lines_separate_documents(self):
        text = "\n\none\ntwo\n\n \t\nthree\r\n\r\nfour\n" + "long " * 300_000 + "\n\nend"
        expected = [re.sub(r"\r?\n\Z", "", part) for part in re.split(r"(?m)(?:^[ \t\r]*\n)+", text) if part.strip()]
        files = [self.write("a.txt", text), self.write("b.txt.gz", gzip.compress(b"packed\n\nagain\n"))]
        self.assertEqual(expected + ["packed", "again"], self.complete_texts(self.read(*files, format="text", blank_lines=True)))

    def test_text_key_selects_the_field(self):
        lines = self.write("k.jsonl", '{"content": "yes", "text": "no"}\n{"text": "no"}\n')
        answer = self.read(lines, format="jsonl", text_key="content")
        self.assertEqual(["yes"], answer["texts"])
        self.assertEqual([f'{lines}:2: no "content" (its keys: "text"; dataloader.text_key selects one), skipped'], answer["warnings"])

    @unittest.skipUnless(PARQUET, "built without Arrow")
    def test_parquet_as_pyarrow_writes_it(self):
        texts = self.texts(1000) + ["x" * 200_000]
        table = pa.table({"id": range(len(texts)), "text": texts, "other": [str(i) for i in range(len(texts))]})
        large = table.set_column(1, "text", table["text"].cast(pa.large_string()))
        for i, (data, options) in enumerate([
                (table, {}), (table, {"row_group_size": 7}), (table, {"compression": "zstd", "row_group_size": 333}),
                (table, {"compression": "gzip", "use_dictionary": False}), (table, {"compression": "none", "data_page_version": "2.0"}),
                (table, {"compression": "lz4", "data_page_size": 500}), (table, {"compression": "brotli"}), (large, {"row_group_size": 100}),
                (table, {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY", "id": "PLAIN", "other": "PLAIN"}})]):
            path = self.root / f"{i}.parquet"
            pq.write_table(data, path, **options)
            seek = options.get("row_group_size", 0) < 200  # Seeking decodes a row group up to the row.
            self.assertEqual(texts, self.complete_texts(self.read(path, format="parquet", seek=seek)), options)
        column = self.read(self.root / "1.parquet", format="parquet", text_key="other")
        self.assertEqual([str(i) for i in range(len(texts))], self.complete_texts(column))

    @unittest.skipUnless(PARQUET, "built without Arrow")
    def test_rows_without_text_are_named(self):
        path, empty = self.root / "nulls.parquet", self.root / "empty.parquet"
        pq.write_table(pa.table({"text": pa.array([b"a", None, b"\xff", b"b", None], pa.binary())}), path, row_group_size=2)
        pq.write_table(pa.table({"text": pa.array([], pa.string())}), empty)
        answer = self.read(empty, path, format="parquet")
        self.assertEqual(["a", "b"], self.complete_texts(answer))
        self.assertEqual([f"{path}, row 1 of row group 0: null, skipped", f"{path}, row 0 of row group 1: not UTF-8, skipped",
                          f"{path}, row 0 of row group 2: null, skipped"], answer["warnings"])
        self.assertIn("malformed row 2, more than", self.read(path, format="parquet", max_bad=1)["error"])

    @unittest.skipUnless(PARQUET, "built without Arrow")
    def test_columns_without_texts_are_refused(self):
        path = self.root / "kinds.parquet"
        pq.write_table(pa.table({"number": [1], "list": [["a"]], "s": [{"text": "deep"}]}), path)
        missing = self.read(path, format="parquet")["error"]
        for part in (str(path), 'no column "text"', "number, list.list.element, s.text", "text_key"):
            self.assertIn(part, missing)
        for key in ("number", "list.list.element"):
            self.assertIn("holds no texts", self.read(path, format="parquet", text_key=key)["error"])
        self.assertEqual(["deep"], self.read(path, format="parquet", text_key="s.text")["texts"])
        for bad in (self.write("no.parquet", b"PAR1"), self.root / "gone.parquet", self.write("text.parquet", b"hello" * 100)):
            self.assertIn(str(bad), self.read(bad, format="parquet")["error"])

    @unittest.skipUnless(PARQUET, "built without Arrow")
    def test_damaged_parquet_is_never_read_silently(self):
        texts = self.texts(300)
        path, damaged = self.root / "good.parquet", self.root / "damaged.parquet"
        pq.write_table(pa.table({"text": texts}), path, row_group_size=100, write_page_checksum=True, compression="snappy")
        good, random_, refused = path.read_bytes(), random.Random(3), 0
        for i in range(DAMAGED):
            bad = bytearray(good)
            if i % 4 == 0:
                del bad[random_.randrange(len(bad)):]
            elif i % 4 == 1:  # The footer has no checksum.
                bad[len(bad) - 1 - random_.randrange(1200)] ^= 1 << random_.randrange(8)
            else:
                for _ in range(random_.randrange(1, 4)):
                    bad[random_.randrange(len(bad))] = random_.randrange(256)
            damaged.write_bytes(bad)
            answer = self.read(damaged, format="parquet", seek=False, max_bad=0)
            if "error" in answer:
                refused += 1
                self.assertIn(str(damaged), answer["error"])
                self.assertEqual(texts[:len(answer["texts"])], answer["texts"], f"damage {i}")
            else:
                self.assertEqual(texts, answer["texts"], f"damage {i} was not detected")
        print(f"{refused} of {DAMAGED} damaged files refused, the others read as they were", flush=True)
        self.assertGreater(refused, DAMAGED // 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)

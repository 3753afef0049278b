"""Text that ranks count together: of every kind of file, rows, cursors and warnings are those of one reader of everything, and
either goes on from the other's cursor."""

import json
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
        texts = [words() for _ in range(400)]
        for kind in ("jsonl", "text", "parquet"):
            (cls.root / kind).mkdir()
        for part in range(3):
            own = texts[part::3] if part != 1 else []
            (cls.root / "jsonl" / f"{part}.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" + "{bad\n" * (i % 50 == 9) for i, t in enumerate(own)))
            (cls.root / "text" / f"{part}.txt").write_text("\n\n \n".join(own))
            rows = [None if i % 41 == 7 else b"\xff" if i % 41 == 8 else t.encode() for i, t in enumerate(own)]
            options = {"row_group_size": 27} if part == 0 else {"data_page_size": 300, "use_dictionary": False}
            pq.write_table(pa.table({"n": list(range(len(rows))), "text": pa.array(rows, pa.binary())}), cls.root / "parquet" / f"{part}.parquet", **options)

    def ask(self, kind, size, **request):
        return self.answers(size, row_tokens=WIDTH, path=str(self.root / kind), format=kind, counts=str(self.root / "counts"),
                            blank_lines=True, **request)

    def check(self, kind):
        batches = 160  # Of 12 rows: two passes and more.
        alone = self.ask(kind, 1, batch=12, batches=batches)
        rows = in_order(alone, 12, batches)
        for size in (4, 6):
            together = self.ask(kind, size, batch=12 // size, batches=batches)
            self.assertEqual(in_order(together, 12 // size, batches), rows, (kind, size))
            for rank in together:
                self.assertEqual(rank["warnings"], alone[0]["warnings"])
        self.assertGreater(alone[0]["cursor"]["pass"], 1)
        # From the one's cursors to the other's and back.
        cursor, at = None, 0
        for i in range(30):
            size, count = (1, 4, 2, 6)[i % 4], i % 5 + 1
            ranks = self.ask(kind, size, batch=12 // size, batches=count, cursor=cursor)
            self.assertEqual(in_order(ranks, 12 // size, count), rows[at:at + 12 * count], (kind, i))
            cursor, at = ranks[0]["cursor"], at + 12 * count

    def test_json_lines(self):
        self.check("jsonl")

    def test_paragraphs(self):
        self.check("text")

    @unittest.skipUnless(PARQUET, "built without Arrow")
    def test_parquet(self):
        self.check("parquet")
        limited = self.ask("parquet", 1, batches=500)  # Malformed rows are within the limit.
        self.assertIn("row 7 of row group 0: null, skipped", limited[0]["warnings"][0])
        for size in (1, 4):
            said = self.answer(row_tokens=WIDTH, path=str(self.root / "parquet"), format="parquet", counts=str(self.root / "counts"),
                               dp_size=size, batches=500, bad_lines=3)["error"]
            self.assertIn("that is malformed row 4, more than training.dataloader.max_bad_lines = 3", said)


if __name__ == "__main__":
    unittest.main(verbosity=1)

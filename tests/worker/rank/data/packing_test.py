"""Tests documents packed by best fit: the rows are those of the algorithm written here, on every number of ranks. Every token
except a document's first is a label exactly once, always inside its own document, and a job resumes at any row of a window."""

import gzip
import json
import random
import subprocess
import unittest

from row_reader import BIN, TOKENIZER, RowReader, in_order
from shuffle_test import permutation

WIDTH, WINDOW, SEED = 33, 16, 5


def best_fit(documents):
    """Returns the rows of one window, each a list of pieces (document, begin, tokens)."""
    pieces = [(d, begin, min(WIDTH, len(tokens) - begin))
              for d, tokens in enumerate(documents) for begin in range(0, max(0, len(tokens) - 1), WIDTH - 1)]
    rows = []
    for piece in sorted(pieces, key=lambda p: (-p[2], p[0], p[1])):
        free = [(WIDTH - sum(p[2] for p in row), i) for i, row in enumerate(rows)]
        fitting = [one for one in free if one[0] >= piece[2]]
        if fitting:
            rows[min(fitting)[1]].append(piece)
        else:
            rows.append([piece])
    return sorted(sorted(row) for row in rows)


class Packing(RowReader):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.padding = cls.end[0]
        random_ = random.Random(6)
        cls.documents, lines = [], []
        for i in range(150):  # From empty to several rows long.
            text = " ".join(random_.choices(["the", "perl", "é", "list"], k=random_.choice((0, 3, 9, 20, 90))))
            cls.documents.append(cls.encode(text))
            lines.append(json.dumps({"text": text}))
        data = "\n".join(lines[:70] + ["{broken"] + lines[70:]).encode() + b"\n"
        (cls.root / "text").mkdir()
        (cls.root / "text" / "all.jsonl").write_bytes(data)
        (cls.root / "stream.jsonl.gz").write_bytes(gzip.compress(data))
        subprocess.run([BIN / "titan-data", "tokenize", "--tokenizer", TOKENIZER, "--out", cls.root / "index", cls.root / "text"],
                       check=True, capture_output=True)

    def query(self, where, **request):
        return {"row_tokens": WIDTH, "path": str(self.root / where), "format": "auto", "seed": SEED, "window": WINDOW,
                "counts": str(self.root / "counts"), **request}

    def run_query(self, where, **request):
        return self.answer(**self.query(where, **request))

    def globally(self, where, size, batch, batches, cursor=None, **request):
        ranks = self.answers(size, **self.query(where, batch=batch, batches=batches, cursor=cursor, **request))
        return in_order(ranks, batch, batches), in_order(ranks, batch, batches, "ends"), ranks[0]["cursor"]

    def expected(self, documents):
        rows, ends = [], []
        for first in range(0, len(documents), WINDOW):
            window = documents[first:first + WINDOW]
            for row in best_fit(window):
                tokens, stops = [], []
                for d, begin, count in row:
                    tokens += window[d][begin:begin + count]
                    stops.append(len(tokens))
                rows.append(tokens + [self.padding] * (WIDTH - len(tokens)))
                ends.append(stops)
        return rows, ends

    def passes(self, where, shuffle="none", passes=2):
        order = lambda p: permutation(count, SEED, p) if shuffle == "documents" else range(count)  # noqa: E731
        documents = list(self.documents)
        if where == "text" and shuffle == "documents":
            documents.insert(70, None)  # A malformed document has a place in the order.
        count = len(documents)
        return [documents[i] for p in range(passes) for i in order(p) if documents[i] is not None]

    CASES = (("text", "none"), ("stream.jsonl.gz", "none"), ("index", "none"), ("text", "documents"), ("index", "documents"))

    def test_rows_follow_the_algorithm_on_every_mesh(self):
        for where, shuffle in self.CASES:
            rows, ends = self.expected(self.passes(where, shuffle))
            for size, batch in ((1, 8), (2, 4), (4, 2)):
                batches = len(rows) // 8 - 2  # The last window of these passes has fewer documents than the program's.
                got, stops, _ = self.globally(where, size, batch, batches, shuffle=shuffle)
                self.assertEqual(got, rows[:8 * batches], (where, shuffle, size))
                self.assertEqual(stops, ends[:8 * batches], (where, shuffle, size))

    def test_resumes_at_any_row_on_other_ranks(self):
        for where, shuffle in self.CASES:
            rows, _ = self.expected(self.passes(where, shuffle))
            cursor, inside = None, 0
            for i in range(len(rows) // 12 - 2):
                size = (1, 4, 2)[i % 3]
                got, _, cursor = self.globally(where, size, 12 // size, 1, cursor, shuffle=shuffle)
                self.assertEqual(got, rows[12 * i:12 * i + 12], (where, shuffle, i))
                inside += cursor["window_row"] > 0
            self.assertGreater(inside, 10)

    def test_every_token_is_predicted_once(self):
        answer = self.run_query("index", loop=False, batches=10_000)
        predicted = []
        for row, ends in zip(answer["rows"], answer["ends"]):
            for begin, end in zip([0, *ends], ends):
                predicted += zip(row[begin:end - 1], row[begin + 1:end])
        self.assertEqual(sorted(predicted), sorted(pair for d in self.documents for pair in zip(d, d[1:])))
        # No document that fits into a row is cut.
        whole = [row[begin:end] for row, ends in zip(answer["rows"], answer["ends"]) for begin, end in zip([0, *ends], ends)]
        for document in self.documents:
            if len(document) <= WIDTH:
                self.assertIn(document, whole)

    def test_mismatched_cursors_are_refused(self):
        cursor = self.run_query("index", batches=5)["cursor"]
        for change in ({"window": 17}, {"window": 0}, {"row_tokens": 34}, {"shuffle": "documents"}):
            message = self.run_query("index", cursor=cursor, **change)["error"]
            self.assertIn("packing_window = 16, seq_len = 32", message)
        self.assertIn('set shuffle = "documents"', self.run_query("index", shuffle="rows")["error"])
        cursor["window_row"] = 1000
        self.assertIn("after row 1000 of a window", self.run_query("index", cursor=cursor)["error"])


if __name__ == "__main__":
    unittest.main()

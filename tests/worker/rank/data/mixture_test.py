"""Tests several sources in one stream. An exact rule in integers decides the source of each row; the test computes it again with
fractions. Rows are the same on every number of ranks, and a job resumes at any batch, on another number of ranks, with other
sources and weights."""

import gzip
import json
import random
import subprocess
import unittest
from fractions import Fraction

from row_reader import BIN, TOKENIZER, RowReader, in_order

WIDTH = 33


def schedule(changes, rows, lengths):
    """Returns the source of each row. `changes` is {row: weights}; `lengths` has each source's number of rows, or None if it does
    not end."""
    order, ended, current, given = [], set(), None, [0] * len(lengths)
    while len(order) < rows:
        weights = list(changes[max(row for row in changes if row <= len(order))])
        for source in ended:
            weights[source] = 0
        if sum(weights) == 0:
            return order
        if weights != current:
            current, dealt = weights, [0] * len(weights)
        shares = [Fraction(weight, sum(weights)) for weight in weights]
        now = sum(dealt)
        started = [i for i, share in enumerate(shares) if share > 0 and dealt[i] / share < now + 1]
        source = min(started, key=lambda i: ((dealt[i] + 1) / shares[i], i))
        if given[source] == lengths[source]:
            ended.add(source)
            continue
        order.append(source)
        given[source] += 1
        dealt[source] += 1
        assert all(abs(dealt[i] - (now + 1) * shares[i]) < 1 for i in range(len(shares)))
    return order


class Mixture(RowReader):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        random_ = random.Random(3)
        cls.streams = {}
        for source, documents in (("web", 200), ("code", 90), ("books", 40)):
            words = ["the", "perl", "é", "list", source]
            texts = [" ".join(random_.choices(words, k=random_.randrange(60))) for _ in range(documents)]
            cls.streams[source] = [t for text in texts for t in cls.encode(text)]
            lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
            (cls.root / source).mkdir()
            place = cls.root / source / ("a.jsonl.gz" if source == "code" else "a.jsonl")
            place.write_bytes(gzip.compress(lines) if source == "code" else lines)
        subprocess.run([BIN / "titan-data", "tokenize", "--tokenizer", TOKENIZER, "--out", cls.root / "books-index",
                        cls.root / "books"], check=True, capture_output=True)

    def run_query(self, **request):
        return self.answer(row_tokens=WIDTH, **request)

    def source(self, name, **more):
        path = self.root / ("books-index" if name == "books" else name)
        return {"name": name, "path": str(path), "format": "auto", **more}

    def globally(self, size, batch, batches, cursor=None, **request):
        """Returns the rows of all ranks in the order of the stream, and the cursor, which is the same on every rank."""
        ranks = self.answers(size, row_tokens=WIDTH, batch=batch, batches=batches, cursor=cursor, counts=str(self.root / "counts"), **request)
        return in_order(ranks, batch, batches), ranks[0]["cursor"]

    def expected(self, names, order):
        given, rows = [0] * len(names), []
        for source in order:
            stream, at = self.streams[names[source]], given[source] * WIDTH
            rows.append([stream[(at + i) % len(stream)] for i in range(WIDTH)])
            given[source] += 1
        return rows

    NAMES = ("web", "code", "books")
    CHANGES = {0: (700_000_000, 200_000_000, 100_000_000), 41: (1, 1, 1), 77: (0, 5, 2)}

    def test_rows_follow_the_rule_on_every_mesh(self):
        sources = [self.source(name) for name in self.NAMES]
        weights = [[row, list(w)] for row, w in self.CHANGES.items()]
        want = self.expected(self.NAMES, schedule(self.CHANGES, 120, [None] * 3))
        for size, batch in ((1, 1), (1, 8), (2, 2), (5, 1), (8, 1)):
            rows, _ = self.globally(size, batch, 120 // (size * batch), sources=sources, weights=weights)
            self.assertEqual(rows, want, f"{size} ranks")

    def test_resumes_at_any_batch_on_other_ranks(self):
        sources = [self.source(name) for name in self.NAMES]
        weights = [[row, list(w)] for row, w in self.CHANGES.items()]
        want = self.expected(self.NAMES, schedule(self.CHANGES, 120, [None] * 3))
        cursor = None
        for i in range(30):  # Each batch of four rows by another number of ranks.
            size = (1, 4, 2)[i % 3]
            rows, cursor = self.globally(size, 4 // size, 1, cursor, sources=sources, weights=weights)
            self.assertEqual(rows, want[4 * i:4 * i + 4], f"batch {i}")

    def test_other_sources_replace_ended_ones(self):
        sources = [self.source("web"), self.source("code", repeat=False), self.source("books", repeat=False)]
        lengths = [None] + [len(self.streams[name]) // WIDTH for name in ("code", "books")]
        changes = {0: (2, 5, 1)}
        rows = lengths[1] + lengths[2] + 200
        order = schedule(changes, rows, lengths)
        self.assertEqual(order.count(1), lengths[1])
        self.assertEqual(order.count(2), lengths[2])
        want = self.expected(self.NAMES, order)
        weights = [[0, [2, 5, 1]]]
        for size in (1, 4):
            cursor, got = None, []
            while len(got) + 8 <= rows:
                more, cursor = self.globally(size, 8 // size, 1, cursor, sources=sources, weights=weights)
                got += more
            self.assertEqual(got, want[:len(got)])
        # The stream ends when every source with a weight has ended, and contains every whole row once.
        ends = [self.source(name, repeat=False) for name in self.NAMES]
        every = [len(self.streams[name]) // WIDTH for name in self.NAMES]
        answer = self.run_query(sources=ends, weights=[[0, [3, 2, 1]]], batches=10_000)
        self.assertEqual(answer["rows"], self.expected(self.NAMES, schedule({0: (3, 2, 1)}, 10_000, every)))
        self.assertEqual(len(answer["rows"]), sum(every))

    def test_sources_and_weights_may_change_on_resume(self):
        two = [self.source("web"), self.source("code")]
        _, cursor = self.globally(1, 1, 50, sources=two, weights=[[0, [9, 1]]])
        given = {one["name"]: one["rows"] for one in cursor["sources"]}
        self.assertEqual(given, {"web": 45, "code": 5})
        # New weights apply only to later rows: the source "code" does not catch up on earlier ones.
        more, _ = self.globally(1, 1, 20, cursor, sources=two, weights=[[0, [1, 1]]])
        web = self.expected(self.NAMES, [0] * 100)
        self.assertEqual(sum(row in web for row in more), 10)
        # A new source starts at its beginning, and the position of a removed one is dropped.
        other = [self.source("books"), self.source("web")]
        more, after = self.globally(1, 1, 2, cursor, sources=other, weights=[[0, [1, 1]]])
        self.assertEqual(more[0], self.expected(self.NAMES, [2])[0])
        self.assertEqual(more[1], web[45])
        self.assertEqual(after["row"], 52)

    def test_mismatched_cursors_are_refused(self):
        two = [self.source("web"), self.source("code")]
        _, cursor = self.globally(1, 1, 5, sources=two, weights=[[0, [9, 1]]])
        plain = self.run_query(path=str(self.root / "web"), format="auto", batches=3)["cursor"]
        self.assertIn("saved without training.dataloader.sources", self.run_query(sources=two, weights=[[0, [1, 1]]], cursor=plain)["error"])
        self.assertIn("saved with training.dataloader.sources",
                      self.run_query(path=str(self.root / "web"), format="auto", cursor=cursor)["error"])
        broken = json.loads(json.dumps(cursor))
        broken["sources"][1]["dealt"] = -1
        self.assertIn('source "code": dataloader state: "dealt"', self.run_query(sources=two, weights=[[0, [9, 1]]], cursor=broken)["error"])
        broken["sources"][1].update(dealt=0, file_name="other.jsonl.gz")
        self.assertIn('was "other.jsonl.gz"', self.run_query(sources=two, weights=[[0, [9, 1]]], cursor=broken)["error"])


if __name__ == "__main__":
    unittest.main()

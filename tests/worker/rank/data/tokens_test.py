"""Tests documents that are already tokens. titan-data's index and Megatron-LM's files give the rows of the concatenated
documents' tokens, on every number of ranks and when it changes. A killed titan-data resumes and gives the same bytes. Damaged
files are never read silently."""

import gzip
import hashlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import unittest

import numpy as np
from row_reader import BIN, TOKENIZER, RowReader, in_order

DATA = BIN / "titan-data"
DAMAGED = 200 if os.environ.get("TITAN_LONG") != "1" else 5000
KINDS = {1: np.uint8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}  # Types of Megatron-LM's index.


def megatron(prefix, documents, kind, ends):
    """The documented format. A document may be several sequences: `ends` holds how many each document has."""
    sequences = [part for document, n in zip(documents, ends) for part in np.array_split(document, n)]
    lengths = [len(s) for s in sequences]
    width = np.dtype(KINDS[kind]).itemsize
    firsts = [0, *np.cumsum(lengths[:-1])] if lengths else []
    with open(f"{prefix}.bin", "wb") as out:
        for sequence in sequences:
            out.write(np.asarray(sequence, KINDS[kind]).tobytes())
    with open(f"{prefix}.idx", "wb") as out:
        out.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, kind, len(sequences), len(documents) + 1))
        out.write(np.asarray(lengths, np.int32).tobytes())
        out.write((np.asarray(firsts, np.int64) * width).tobytes())
        out.write(np.asarray([0, *np.cumsum(ends)], np.int64).tobytes())


def in_rows(documents, width, count, loop=True):
    stream = [token for document in documents for token in document]
    if loop:
        stream = stream * (1 + count * width // len(stream))
    return [stream[i * width:(i + 1) * width] for i in range(count) if (i + 1) * width <= len(stream)]


class Tokens(RowReader):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        random_ = random.Random(2)
        cls.text = cls.root / "text"
        cls.text.mkdir()
        cls.documents = []
        for part in range(4):
            lines = []
            for i in range(80):
                words = " ".join(random_.choice(["the", "perl", "é", "list", "\n", "12"]) for _ in range(random_.randrange(0, 50)))
                cls.documents.append(cls.encode(words))
                lines.append(json.dumps({"text": words}))
                if i % 37 == 11:
                    lines += ["", "{broken"]
            (cls.text / f"part-{part}.jsonl").write_text("\n".join(lines) + "\n")
        cls.index = cls.root / "index"
        cls.make(cls.index)

    @classmethod
    def command(cls, out, *more):
        return [DATA, "tokenize", "--tokenizer", TOKENIZER, "--out", out, "--shard-mib", "1", "--threads", "2", *more, cls.text]

    @classmethod
    def make(cls, out, *more):
        return subprocess.run(cls.command(out, *more), check=True, capture_output=True, text=True)

    def read(self, path, format="auto", **request):
        return self.answer(path=str(path), format=format, **request)

    def read_ok(self, *args, **request):
        answer = self.read(*args, **request)
        self.assertIsNone(answer.get("error"))
        return answer

    def deal(self, path, size, batch, batches, cursor=None, **request):
        """Returns all ranks' rows in the order of the stream, and the cursor, which is the same on each."""
        answers = [self.read_ok(path, dp_rank=rank, dp_size=size, batch=batch, batches=batches, cursor=cursor, **request) for rank in range(size)]
        self.assertTrue(all(a["cursor"] == answers[0]["cursor"] for a in answers))
        return in_order(answers, batch, batches), answers[0]["cursor"]

    def check_rows(self, path):
        """Compares two passes with the concatenated documents, on 1, 2 and 4 ranks and with changes of that number in between."""
        width = 33
        expected = in_rows(self.documents, width, 480)
        for size in (1, 2, 4):
            rows, cursor = self.deal(path, size, 8 // size, 29, row_tokens=width)
            self.assertEqual(expected[:232], rows, size)
            for after in (1, 2, 4):
                self.assertEqual(expected[232:480], self.deal(path, after, 8 // after, 31, cursor, row_tokens=width)[0], f"{size} to {after}")
        other = self.deal(path, 2, 4, 10, cursor, row_tokens=50)[0]  # Another row length continues at the same token.
        stream = [t for row in expected for t in row][232 * width:]
        self.assertEqual(stream[:50 * 80], [t for row in other for t in row])
        alone = self.read_ok(path, row_tokens=width, batch=8, batches=10**6, loop=False)
        self.assertEqual(in_rows(self.documents, width, 10**5, loop=False), alone["rows"])

    def test_text_and_index_give_the_same_rows(self):
        self.check_rows(self.text)
        self.check_rows(self.index)
        for i, part in enumerate(sorted(self.text.iterdir())):
            subprocess.run([*self.command(self.root / f"part-{i}")[:-1], part], check=True, capture_output=True)
        self.check_rows(self.root / "part-*")  # A glob of indexes.

    def test_chunks_of_documents(self):
        """In order per_rank, without malformed lines: in text a malformed line counts as a document, but it is not in the
        index."""
        lines = [line for path in sorted(self.text.iterdir()) for line in path.read_text().splitlines() if line not in ("", "{broken")]
        text = self.root / "clean.jsonl"
        text.write_text("\n".join(lines) + "\n")
        index = self.root / "clean"
        subprocess.run([*self.command(index)[:-1], text], check=True, capture_output=True)
        for rank in range(3):
            request = {"row_tokens": 20, "per_rank": True, "dp_rank": rank, "dp_size": 3, "batches": 300}
            self.assertEqual(self.read_ok(text, **request)["rows"], self.read_ok(index, **request)["rows"])

    def test_megatron_files_of_every_kind(self):
        random_ = random.Random(4)
        ends = [random_.randrange(1, 4) for _ in self.documents]
        for kind in KINDS:
            if kind == 1 and max(map(max, self.documents)) > 255:
                continue
            folder = self.root / f"megatron-{kind}"
            folder.mkdir()
            half = len(self.documents) // 2
            megatron(folder / "a_text_document", self.documents[:half], kind, ends[:half])
            megatron(folder / "b_text_document", self.documents[half:], kind, ends[half:])
            self.assertIn("intact", subprocess.run([DATA, "verify", folder], check=True, capture_output=True, text=True).stdout)
            if kind == 8:
                self.check_rows(folder)
            else:
                self.assertEqual(in_rows(self.documents, 33, 100), self.read_ok(folder, row_tokens=33, batches=100)["rows"])
        by_prefix = self.root / "megatron-8" / "a_text_document"
        self.assertEqual(in_rows(self.documents[:half], 9, 50), self.read_ok(by_prefix, row_tokens=9, batches=50)["rows"])

    def test_every_kind_of_text_becomes_an_index(self):
        texts = [json.loads(line)["text"] for path in sorted(self.text.iterdir()) for line in path.read_text().splitlines() if line.startswith('{"')]
        kinds = {"packed.jsonl.gz": gzip.compress("".join(json.dumps({"text": t}) + "\n" for t in texts).encode())}
        for name, data in kinds.items():
            (self.root / name).write_bytes(data)
        if (BIN / "titan-parquet.so").exists():
            import pyarrow as pa
            import pyarrow.parquet as pq
            kinds["rows.parquet"] = None
            pq.write_table(pa.table({"text": texts}), self.root / "rows.parquet", row_group_size=50)
        for name in kinds:
            index = self.root / f"of-{name}"
            subprocess.run([*self.command(index)[:-1], self.root / name], check=True, capture_output=True)
            for source in (self.root / name, index):
                self.assertEqual(in_rows(self.documents, 33, 480), self.read_ok(source, row_tokens=33, batches=480)["rows"], source)

    def test_malformed_lines_are_named_and_counted(self):
        made = self.make(self.root / "again")
        self.assertEqual(8, made.stderr.count("not JSON, skipped"))
        self.assertIn(f"{self.text}/part-0.jsonl:14: not JSON", made.stderr)
        self.assertIn("8 malformed documents skipped", made.stdout)
        few = subprocess.run(self.command(self.root / "few", "--max-bad", "3"), capture_output=True, text=True)
        self.assertEqual(2, few.returncode)
        self.assertIn("malformed line 4, more than --max-bad = 3", few.stderr)

    def test_another_tokenizer_or_input_is_refused(self):
        other = self.root / "other"
        shutil.copytree(TOKENIZER, other)
        text = json.loads((other / "tokenizer.json").read_text())
        (other / "tokenizer.json").write_text(json.dumps(text, indent=3))
        answer = self.read(self.index, row_tokens=9, tokenizer=str(other))
        self.assertIn("was made with another tokenizer", answer["error"])
        again = subprocess.run([*self.command(self.index)[:-1], self.text / "part-0.jsonl"], capture_output=True, text=True)
        self.assertEqual(1, again.returncode)
        self.assertIn("other options", again.stderr)
        tokens = self.root / "beyond"
        megatron(tokens, [[1, 2, 60000, 3]], 8, [1])
        self.assertIn("holds token 60000", self.read(tokens, row_tokens=4)["error"])

    def test_ranks_warn_of_held_out_files(self):
        folder = self.root / "splits"
        folder.mkdir()
        for name in ("train.jsonl", "test.jsonl"):
            shutil.copy(self.text / "part-0.jsonl", folder / name)
        for warned, request in [(1, {}), (1, {"per_rank": True, "dp_size": 2}), (0, {"per_rank": True, "dp_size": 2, "dp_rank": 1}),
                              (0, {"path": f"{folder}/train*"})]:
            answer = self.answer(**{"dataset": "c4_test", "path": str(folder), "row_tokens": 9, "batches": 2, **request})
            self.assertEqual(warned, sum("another split (test.jsonl)" in warning for warning in answer["warnings"]), (request, answer))

    def test_resumes_after_kills_with_the_same_bytes(self):
        lines = [line for path in sorted(self.text.iterdir()) for line in path.read_text().splitlines() if line != "{broken"]
        big = self.root / "big.jsonl"
        big.write_text("\n".join(lines * 150) + "\n")
        command = [DATA, "tokenize", "--tokenizer", TOKENIZER, "--shard-mib", "1", "--threads", "2", big, "--out"]

        def sums(folder):
            return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}

        undisturbed, killed = self.root / "undisturbed", self.root / "killed"
        subprocess.run([*command, undisturbed], check=True, capture_output=True)
        for point in ("written:1", "finished:3", "written:2", "written:1"):
            ended = subprocess.run([*command, killed], capture_output=True, env={**os.environ, "TITAN_FAILPOINT": f"data.shard.{point}"})
            self.assertEqual(-signal.SIGKILL, ended.returncode, point)
            self.assertFalse((killed / "titan-tokens.json").exists())
            shards = sorted(killed.glob("shard-*.json"))
            if point == "finished:3":
                self.assertTrue(shards)
                damaged = shards[0].with_suffix(".tokens")  # A finished shard that is damaged is made again.
                damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
        done = subprocess.run([*command, killed], check=True, capture_output=True, text=True)
        self.assertRegex(done.stdout, r"[1-9]\d* already existed")
        self.assertEqual(sums(undisturbed), sums(killed))
        self.assertGreater(len(list(undisturbed.glob("shard-*.tokens"))), 5)
        request = {"row_tokens": 2000, "batches": 700}  # Cut at lines or not, the documents are the file's.
        self.assertEqual(self.read_ok(big, **request)["rows"], self.read_ok(undisturbed, **request)["rows"])

    def damage(self, path, random_, i):
        bad = bytearray(path.read_bytes())
        if i % 5 == 0:
            del bad[random_.randrange(len(bad)):]
        elif i % 5 == 1:
            bad += bytes(random_.randrange(1, 9))
        else:
            for _ in range(random_.randrange(1, 3)):
                at = random_.randrange(min(len(bad), 64)) if i % 5 == 2 else random_.randrange(len(bad))
                bad[at] = random_.randrange(256)
        path.write_bytes(bad)

    def check_damage_is_detected(self, good, names, request):
        expected = self.read_ok(good, **request)["rows"]
        random_, refused = random.Random(6), 0
        for i in range(DAMAGED):
            work = self.root / "damaged"
            shutil.copytree(good, work)
            name = names[i % len(names)]
            self.damage(work / name, random_, i)
            answer = self.read(work, **request)
            if "error" in answer:
                refused += 1
                self.assertIn(str(work), answer["error"], f"damage {i} of {name}")
                self.assertEqual(expected[:len(answer["rows"])], answer["rows"], f"damage {i} of {name}")
            else:
                self.assertEqual(expected, answer["rows"], f"damage {i} of {name} was not detected")
            shutil.rmtree(work)
        print(f"{names}: {refused} of {DAMAGED} damaged sets refused, the others read as they were", flush=True)
        self.assertGreater(refused, DAMAGED // 2)

    def test_damaged_index_is_never_read_silently(self):
        names = ["shard-00000.tokens", "shard-00000.index", "titan-tokens.json"]
        self.check_damage_is_detected(self.index, names, {"row_tokens": 33, "batches": 480})
        broken = self.root / "broken"
        shutil.copytree(self.index, broken)
        tokens = bytearray((broken / names[0]).read_bytes())
        tokens[20_000] ^= 1
        (broken / names[0]).write_bytes(tokens)
        verified = subprocess.run([DATA, "verify", broken], capture_output=True, text=True)
        self.assertEqual(1, verified.returncode)
        self.assertIn(f"{broken}/{names[0]}: damaged between byte 0 and byte", verified.stdout)

    def test_damaged_megatron_files_are_never_read_silently(self):
        good = self.root / "megatron-good"
        good.mkdir()
        megatron(good / "a", self.documents, 4, [2] * len(self.documents))
        self.check_damage_is_detected(good, ["a.idx"], {"format": "megatron", "row_tokens": 33, "batches": 100})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)

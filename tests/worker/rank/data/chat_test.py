"""Tests that conversations give the text and the tokens of transformers' apply_chat_template, byte for byte and id for id, over
templates with the features of released ones. Labels come from generation blocks (transformers' mask), else from what each of the
assistant's messages adds to the text before it. Rows are the same on every number of ranks and from every cursor."""

import array
import collections
import datetime
import decimal
import gzip
import json
import math
import os
import random
import shutil
import signal
import subprocess
import unittest
from unittest import mock

import pyarrow
import pyarrow.parquet
from chat_templates import TEMPLATES
from row_reader import BIN, TOKENIZER, RowReader, in_order
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

COUNT = 400 if os.environ.get("TITAN_LONG") else 25
WIDTH = 65
TOOLS = [{"type": "function", "function": {"name": "find", "description": "Finds é \"things\" <b>", "parameters": {
    "type": "object", "properties": {"what": {"type": "string"}, "many": {"type": ["integer", "null"]}, "tags": {"type": "array", "items": {"type": "string"}},
                                     "kind": {"enum": ["a", "b"]}, "deep": {"type": "object", "properties": {"x": {"type": "number"}}}}, "required": ["what"]}}}]  # fmt: skip
WORDS = ["the", "perl", "é", "世界", "\U0001f600", "{{ x }}", "{% if %}", "<|end|>", "'quoted' \"twice\"", "\\n", "line\n", " ", "\t", "</think>", "1.5", "<b>&amp;"]


def conversation(rng):
    say = lambda: rng.choice(["", " ".join(rng.choices(WORDS, k=rng.randrange(12)))])  # noqa: E731
    messages = [{"role": "system", "content": say()}] if rng.random() < 0.4 else []
    for _ in range(rng.choice((1, 1, 2, 4))):
        messages.append({"role": "user", "content": say()})
        if rng.random() < 0.3:
            arguments = {"what": say(), "many": rng.choice([1, 2.5, None, True]), "deep": {"x": [1, {"é": "ü"}]}}
            messages.append({"role": "assistant", "content": rng.choice([None, say()]), "tool_calls": [
                {"id": "123456789", "type": "function", "function": {"name": "find", "arguments": arguments}}]})  # fmt: skip
            messages.append({"role": "tool", "content": say()})
        messages.append({"role": "assistant", "content": say(), **({"reasoning_content": say()} if rng.random() < 0.2 else {})})
    row = {"messages": messages}
    if rng.random() < 0.3:
        row["tools"] = TOOLS
    if rng.random() < 0.2:
        row["chat_template_kwargs"] = {"enable_thinking": False, "date": "02 Feb 2022", "reasoning_effort": "high"}
    return row


def crc32c(data):
    value = 0xffffffff
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82f63b78 if value & 1 else 0)
    return value ^ 0xffffffff


def write_manifest(path, manifest):
    """Writes the manifest of a token index with a fitting checksum."""
    compact = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    path.write_text(json.dumps({**manifest, "crc32c": f"{crc32c(compact):08x}"}))


class Fixed(chat_template_utils.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


class Chats(RowReader):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.enterClassContext(mock.patch.object(chat_template_utils, "datetime", Fixed))
        rng = random.Random(4)
        cls.rows = [conversation(rng) for _ in range(COUNT)]
        cls.place = cls.root / "chats.jsonl"
        cls.place.write_text("".join(json.dumps(row) + "\n" for row in cls.rows))

    def tokenizer(self, name, template, **config):
        """Makes a folder with this template, as text of the configuration or as a file."""
        folder = self.root / name
        if not folder.exists():
            folder.mkdir()
            (folder / "tokenizer.json").write_bytes((TOKENIZER / "tokenizer.json").read_bytes())
            settings = {**json.loads((TOKENIZER / "tokenizer_config.json").read_text()), **config}
            if len(name) % 2:
                (folder / "chat_template.jinja").write_text(template)
            else:
                settings["chat_template"] = template
            (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        return folder

    def shown(self, folder, place=None, *flags):
        done = subprocess.run([BIN / "titan-data", "chat", place or self.place, "--tokenizer", folder, "-o", "json", "--rows", "0", *flags],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def expected(self, package, row, messages=None, **more):
        """Returns the text and None, or None and the error of the template."""
        messages = row["messages"] if messages is None else messages
        kwargs = {"tools": row.get("tools"), **row.get("chat_template_kwargs", {}), **more}
        try:
            return package.apply_chat_template(messages, tokenize=False, **kwargs), None
        except Exception as error:  # noqa: BLE001: of the template.
            return None, str(error)

    def spans(self, package, row, text):
        """Returns the text that each message of the assistant adds, or None if the text of a shorter conversation is not a prefix of
        the whole text."""
        spans = []
        for i, message in enumerate(row["messages"]):
            if message["role"] != "assistant":
                continue
            before, _ = self.expected(package, row, row["messages"][:i], add_generation_prompt=True)
            extended, _ = self.expected(package, row, row["messages"][:i + 1])
            if i + 1 == len(row["messages"]):
                extended = text
            if before is None or extended is None or not text.startswith(before) or not text.startswith(extended):
                return None
            if len(extended) > len(before):
                spans.append([len(before.encode()), len(extended.encode())])
        return spans

    def test_templates(self):
        for name, template in TEMPLATES.items():
            folder = self.tokenizer(name, template)
            package = PreTrainedTokenizerFast.from_pretrained(folder)
            ends = collections.Counter()
            for row, shown in zip(self.rows, self.shown(folder), strict=True):
                text, error = self.expected(package, row)
                if error is not None:
                    self.assertIn("problem", shown, f"{name}: {error}")
                    ends["refused by the template"] += 1
                    continue
                spans = None if "% generation" in template else self.spans(package, row, text)
                if "% generation" not in template and spans is None:
                    self.assertIn("the first", shown.get("problem", ""), name)
                    ends["labels not derivable"] += 1
                    continue
                self.assertNotIn("problem", shown, name)
                self.assertEqual(shown["text"], text, name)
                self.assertEqual(shown["ids"], package.apply_chat_template(row["messages"], tools=row.get("tools"), **row.get("chat_template_kwargs", {})), name)
                if spans is not None:
                    self.assertEqual(shown["labels"], spans, name)
                else:
                    reference = package.apply_chat_template(row["messages"], tools=row.get("tools"), return_dict=True, return_assistant_tokens_mask=True,
                                                         **row.get("chat_template_kwargs", {}))  # fmt: skip
                    self.assertEqual(shown["mask"], reference["assistant_masks"], name)
                ends["equal"] += 1
            print(name, dict(ends))
            self.assertGreater(ends["equal"], 0, name)

    def test_labels_are_the_assistants_messages(self):
        folder = self.tokenizer("im", TEMPLATES["im"])
        for shown in self.shown(folder):
            if "problem" in shown:
                continue
            labeled = [self.package.decode([i], skip_special_tokens=False) for i, m in zip(shown["ids"], shown["mask"]) if m]
            self.assertTrue(labeled)
        everything = self.shown(folder, None, "--train-on", "all")
        self.assertTrue(all(all(row["mask"]) for row in everything if "problem" not in row))

    def test_parquet_and_compressed_files_give_the_same_rows(self):
        folder = self.tokenizer("im", TEMPLATES["im"])
        plain = [{"messages": [{"role": m["role"], "content": m["content"] or ""} for m in row["messages"] if m["role"] != "tool"],
                  "tools": json.dumps(row["tools"]) if "tools" in row else None} for row in self.rows]  # fmt: skip
        lines = "".join(json.dumps(row) + "\n" for row in plain)
        (self.root / "plain.jsonl").write_text(lines)
        (self.root / "plain.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(plain), self.root / "plain.parquet", row_group_size=7)
        expected = self.shown(folder, self.root / "plain.jsonl")
        self.assertTrue(any("problem" not in row for row in expected))
        for other in ("plain.jsonl.gz", "plain.parquet"):
            got = self.shown(folder, self.root / other)
            self.assertEqual([{**row, "row": ""} for row in got], [{**row, "row": ""} for row in expected], other)

    def test_parquet_values_without_json_form(self):
        """Parquet values that JSON lacks have a documented form, or the error names the row and the field instead of calling the file
        damaged."""
        pa, messages = pyarrow, [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
        day = datetime.datetime(2024, 1, 31, 12)
        template = "{% for m in messages %}[{{ m.role }} {{ m.content }} {{ m.x }}]{% endfor %}"
        folder = self.tokenizer("extras", template)
        coded = pa.dictionary(pa.int32(), pa.string())
        for kind, value, shown in ((coded, "blue", "blue"), (pa.timestamp("us"), day, "2024-01-31 12:00:00.000000"), (pa.date32(), day.date(), "2024-01-31"),
                                   (pa.timestamp("ms", "UTC"), day, "2024-01-31 12:00:00.000Z"), (pa.decimal128(5, 2), decimal.Decimal("1.50"), "1.50"),
                                   (pa.float64(), math.nan, "None"), (pa.float64(), 1.5, "1.5"), (pa.int8(), -3, "-3"), (pa.uint64(), 2**63 - 1, str(2**63 - 1)),
                                   (pa.binary(), "é".encode(), "é"), (pa.list_(pa.int16(), 2), [1, 2], "[1, 2]"), (pa.map_(pa.string(), pa.int32()), {"a": 1}, "{'a': 1}"),
                                   (pa.duration("s"), datetime.timedelta(1), None), (pa.float32(), math.inf, None)):  # fmt: skip
            message = pa.struct([("role", coded), ("content", pa.string()), ("x", kind)])
            rows = [[{**m, "x": value if i == 1 else None} for m in messages] for i in range(3)]
            path = self.root / "extras.parquet"
            pyarrow.parquet.write_table(pa.table({"messages": pa.array(rows, pa.list_(message))}), path, row_group_size=2)
            got = self.shown(folder, path)
            plain = "[user hi None][assistant yes None]"
            self.assertEqual([got[0].get("text"), got[2].get("text")], [plain, plain], (kind, got))
            if shown is not None:
                self.assertEqual(got[1].get("text"), plain.replace("None", shown), (kind, got[1]))
                continue
            why = "messages.x: " + (f"values of type {kind} have" if value != math.inf else "an infinity has") + " no form in JSON"
            self.assertEqual(got[1]["problem"], why)
            request = dict(tokenizer=str(folder), path=str(path), format="parquet", messages_key="messages", row_tokens=WIDTH)
            self.assertIn(f"extras.parquet, row 1 of row group 0: {why}, skipped", self.answer(**request)["warnings"][0])
            self.assertIn(f"row 1 of row group 0: {why}; that is malformed row 1", self.answer(bad_lines=0, **request)["error"])

    def stream(self, folder):
        """Returns the documents, with ~token where a token is not a label."""
        return [[i if m else ~i for i, m in zip(row["ids"], row["mask"])] for row in self.shown(folder) if "problem" not in row]

    def test_rows_are_the_same_on_every_mesh_and_from_every_cursor(self):
        folder = self.tokenizer("im", TEMPLATES["im"])
        flat = [t for document in self.stream(folder) * 3 for t in document]
        self.assertTrue(any(t < 0 for t in flat) and any(t >= 0 for t in flat))
        request = dict(tokenizer=str(folder), path=str(self.place), format="jsonl", messages_key="messages", row_tokens=WIDTH)
        rows = len(flat) // WIDTH // 8 * 8
        one = self.answer(batches=rows, **request)
        self.assertEqual(one["rows"], [flat[i * WIDTH:(i + 1) * WIDTH] for i in range(rows)])
        four = self.answers(4, batch=2, batches=rows // 8, **request)
        self.assertEqual(in_order(four, 2, rows // 8), one["rows"])
        for arranged in ({}, {"window": 8}, {"shuffle": "documents", "seed": 3}, {"shuffle": "documents", "window": 8}):
            whole = self.answer(batches=16, counts=str(self.root / "counts"), **request, **arranged)
            first = self.answers(2, batches=4, counts=str(self.root / "counts"), **request, **arranged)
            rest = self.answers(4, batches=2, cursor=first[0]["cursor"], counts=str(self.root / "counts"), **request, **arranged)
            self.assertEqual(in_order(first, 1, 4) + in_order(rest, 1, 2), whole["rows"], arranged)
            self.assertEqual(in_order(first, 1, 4, "ends") + in_order(rest, 1, 2, "ends"), whole["ends"], arranged)

    ARRANGED = ({}, {"window": 8}, {"shuffle": "documents", "seed": 3}, {"shuffle": "documents", "seed": 3, "window": 8})

    def tokenised(self, out, place, folder, *flags, code=0, killed_at=""):
        done = subprocess.run([BIN / "titan-data", "tokenize", "--tokenizer", folder, "--messages-key", "messages", "--out", self.root / out, *flags, place],
                              capture_output=True, text=True, timeout=60, env={**os.environ, "TITAN_FAILPOINT": killed_at})
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout + done.stderr

    def test_index_keeps_the_label_mask(self):
        """An index has the same rows as the conversations, with their ends, in every arrangement and on every mesh."""
        folder = self.tokenizer("im", TEMPLATES["im"])
        right = [row for row, shown in zip(self.rows, self.shown(folder), strict=True) if "problem" not in shown]
        text, index = self.root / "right.jsonl", self.root / "marked"
        text.write_text("".join(json.dumps(row) + "\n" for row in right))
        self.assertRegex(self.tokenised("marked", text, folder), rf"{len(right)} documents")
        stored = array.array("i", (index / "shard-00000.tokens").read_bytes())
        self.assertEqual(list(stored), [t for document in self.stream(folder) for t in document])
        request = dict(tokenizer=str(folder), row_tokens=WIDTH, counts=str(self.root / "counts"))
        for arranged in self.ARRANGED:
            mine = {**request, "path": str(index), "format": "titan", **arranged}
            expected = self.answer(path=str(text), format="jsonl", messages_key="messages", batches=24, **request, **arranged)
            for size in (1, 2, 4):
                ranks = self.answers(size, batch=4 // size, batches=6, **mine)
                self.assertEqual(in_order(ranks, 4 // size, 6), expected["rows"], (arranged, size))
                self.assertEqual(in_order(ranks, 4 // size, 6, "ends"), expected["ends"], (arranged, size))
            first = self.answers(2, batches=4, **mine)
            rest = self.answers(4, batches=4, cursor=first[0]["cursor"], **mine)
            self.assertEqual(in_order(first, 1, 4) + in_order(rest, 1, 4), expected["rows"], arranged)
        self.assertIn('set shuffle = "documents"', self.answer(path=str(index), format="titan", shuffle="rows", **request)["error"])
        self.assertIn("the files hold tokens", self.answer(path=str(index), format="titan", messages_key="messages", **request)["error"])
        for point in ("data.shard.written", "data.shard.finished"):
            self.tokenised("killed", text, folder, code=-signal.SIGKILL, killed_at=point)
        self.tokenised("killed", text, folder)
        for name in ("shard-00000.tokens", "shard-00000.index", "titan-tokens.json"):
            self.assertEqual((self.root / "killed" / name).read_bytes(), (index / name).read_bytes(), name)
        everything = self.tokenised("marked", text, folder, "--train-on", "all", code=1)
        self.assertIn("holds an index of other input, another tokenizer or other options", everything)

    def test_index_is_bound_to_one_template(self):
        folder = self.tokenizer("one", TEMPLATES["im"])
        self.tokenised("templates", self.place, folder, "--max-bad", "1000", code=-signal.SIGKILL, killed_at="data.shard.finished")
        (folder / "chat_template.jinja").write_text(TEMPLATES["im"] + "{# later #}")
        self.assertIn("holds an index of other input", self.tokenised("templates", self.place, folder, "--max-bad", "1000", code=1))
        (folder / "chat_template.jinja").write_text(TEMPLATES["im"])
        self.tokenised("templates", self.place, folder, "--max-bad", "1000")

    def test_index_keeps_the_labels_it_was_built_with(self):
        folder = self.tokenizer("im", TEMPLATES["im"])
        request = dict(tokenizer=str(folder), format="titan", row_tokens=WIDTH, batches=4)
        for made, other in (("assistant", "all"), ("all", "assistant")):
            path = self.root / f"labels-{made}"
            self.tokenised(path.name, self.place, folder, "--train-on", made, "--max-bad", "1000")
            rows = self.answer(path=str(path), train_on=made, **request)["rows"]
            self.assertEqual(len(rows), 4)
            self.assertEqual(all(token >= 0 for row in rows for token in row), made == "all")
            error = self.answer(path=str(path), train_on=other, **request)["error"]
            self.assertIn(f'was made with --train-on {made}, and the job has dataloader.train_on = "{other}"', error)
            manifest = json.loads((path / "titan-tokens.json").read_text())  # Like older indexes.
            self.assertEqual((manifest.pop("train_on"), manifest.pop("crc32c") != ""), (made, True))
            write_manifest(path / "titan-tokens.json", manifest)
            for train_on in (made, other):
                self.assertEqual(self.answer(path=str(path), train_on=train_on, **request)["rows"], rows)

    def test_rebuilt_index_of_other_data_is_refused(self):
        folder, index, text = self.tokenizer("im", TEMPLATES["im"]), self.root / "again", self.root / "again.jsonl"
        rows = [json.dumps(row) for row, shown in zip(self.rows, self.shown(folder), strict=True) if "problem" not in shown]
        request = dict(path=str(index), format="titan", tokenizer=str(folder), row_tokens=WIDTH)
        for arranged in self.ARRANGED:
            for order in (rows, rows[::-1]):
                shutil.rmtree(index, ignore_errors=True)
                text.write_text("\n".join(order) + "\n")
                self.tokenised(index.name, text, folder)
                if order is rows:
                    cursors = (self.answer(batches=count, **request, **arranged)["cursor"] for count in range(9, 60))
                    cursor = next(one for one in cursors if one["offset"] > 0)  # For packed rows, a cursor after the first window.
                    expected = self.answer(cursor=cursor, **request, **arranged)
                    self.assertNotIn("error", expected)
                    old = self.answer(cursor={**cursor, "offset": 0}, **request, **arranged)  # Older cursors lack this member.
                    self.assertEqual(old["rows"], expected["rows"])
            self.assertIn("the dataset has changed", self.answer(cursor=cursor, **request, **arranged)["error"], arranged)

    def test_damaged_or_mixed_index_is_never_misread(self):
        """Versions, checksums and the manifest's facts about the shards are compared; text without a conversation is named."""
        folder = self.tokenizer("im", TEMPLATES["im"])
        output = self.tokenised("kept", self.place, folder, "--max-bad", "1000")
        self.assertEqual(sum("problem" in row for row in self.shown(folder)), output.count(", left out\n"))
        request = dict(tokenizer=str(folder), row_tokens=WIDTH, format="titan", batches=20)
        expected = self.answer(path=str(self.root / "kept"), **request)["rows"]
        self.assertEqual(len(expected), 20)
        rng = random.Random(8)
        for name in ("shard-00000.tokens", "shard-00000.index", "titan-tokens.json"):
            for _ in range(12):
                work = self.root / "corrupt"
                shutil.copytree(self.root / "kept", work)
                corrupt = bytearray((work / name).read_bytes())
                corrupt[rng.randrange(len(corrupt))] ^= 1 << rng.randrange(8)
                (work / name).write_bytes(corrupt)
                answer = self.answer(path=str(work), **request)
                self.assertTrue("error" in answer or answer["rows"] == expected, name)
                verified = subprocess.run([BIN / "titan-data", "verify", work], capture_output=True, text=True, timeout=60)
                self.assertEqual(verified.returncode, 1, name)
                shutil.rmtree(work)
        work = self.root / "later"
        shutil.copytree(self.root / "kept", work)
        manifest = work / "titan-tokens.json"
        later = {**json.loads(manifest.read_text()), "version": 3}
        manifest.write_text(json.dumps(later))
        self.assertIn("does not match its checksum", self.answer(path=str(work), **request)["error"])
        del later["crc32c"]
        write_manifest(manifest, later)
        self.assertIn("this Titan reads versions 1 and 2", self.answer(path=str(work), **request)["error"])
        plain = self.root / "plain-text.jsonl"
        plain.write_text(json.dumps({"text": "one two three"}) + "\n")
        subprocess.run([BIN / "titan-data", "tokenize", "--tokenizer", folder, "--out", self.root / "unmarked", plain], check=True, capture_output=True)
        for manifest, shards, word in (("kept", "unmarked", "should have"), ("unmarked", "kept", "should have")):
            mixed = self.root / f"{manifest}-{shards}"
            shutil.copytree(self.root / shards, mixed)
            shutil.copy(self.root / manifest / "titan-tokens.json", mixed)
            self.assertIn(word, self.answer(path=str(mixed), **request)["error"])

    def test_errors_name_the_line_and_the_problem(self):
        folder = self.tokenizer("im", TEMPLATES["im"])
        lines = ['{"messages": [{"from": "human", "value": "x"}]}', '{"messages": "x"}', '{"text": "x"}', "{", '{"messages": [{"content": "x"}]}',
                 '{"messages": [{"role": "user", "content": "x"}]}', '{"messages": [{"role": "assistant", "content": "x"}], "tools": 1}',
                 f'{{"messages": [{{"role": "assistant", "content": "x"}}], "tools": [{{"a": {"[" * 60_000}{"]" * 60_000}}}]}}']
        (self.root / "bad.jsonl").write_text("\n".join(lines))
        words = ["ShareGPT", "is not a list of messages", 'no "messages"', "not JSON", 'no "role"', 'no message has the role "assistant"', '"tools" is not a list', "JSON nested deeper than 64"]
        for shown, word in zip(self.shown(folder, self.root / "bad.jsonl"), words, strict=True):
            self.assertIn(word, shown["problem"])
        request = dict(path=str(self.root / "bad.jsonl"), format="jsonl", messages_key="messages", row_tokens=WIDTH)
        got = self.answer(tokenizer=str(folder), bad_lines=2, **request)
        self.assertIn("bad.jsonl:3: no \"messages\" (its keys: \"text\"; dataloader.messages_key selects one); that is malformed line 3, "
                      "more than dataloader.max_bad_lines = 2", got["error"])
        for template, word in (("{{ x|pprint }}", 'line 1, column 6: the filter "pprint" is not supported'),
                               ("{{ messages|length }}", "does not begin the text of all 2; they differ at byte 0"),
                               ("{{ raise_exception('No') }}", "the template says: No")):  # fmt: skip
            bad = self.tokenizer(f"bad{len(word)}", template)
            self.assertIn(word, self.answer(tokenizer=str(bad), **request)["error"])
        self.assertIn("has no chat template", self.answer(tokenizer=str(TOKENIZER), **request)["error"])
        (self.root / "plain.txt").write_text("x")
        text = self.answer(tokenizer=str(folder), path=str(self.root / "plain.txt"), format="text", messages_key="messages", row_tokens=WIDTH)
        self.assertIn("is only for JSON lines and Parquet, but the files hold plain text", text["error"])


if __name__ == "__main__":
    unittest.main()

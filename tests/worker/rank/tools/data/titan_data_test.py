"""Tests titan-data encode and decode: ids, pieces and positions of texts from arguments, files and standard input, and what is
refused."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "testing"))
from paths import BIN

TOKENIZER = Path(os.environ["TITAN_DEPS"]) / "assets" / "tokenizer"
# "a", "b", their marks, and bytes for the rest.
PAIRS = {"model": {"type": "BPE", "byte_fallback": True, "unk_token": "<unk>",
                   "vocab": {"<unk>": 0, "▁": 1, "a": 2, "b": 3, "ab": 4, "▁ab": 5, **{f"<0x{b:02X}>": 6 + b for b in range(256)}},
                   "merges": [["a", "b"], ["▁", "ab"]]},
         "normalizer": None, "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
         "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                                      {"type": "ByteFallback"}, {"type": "Fuse"},
                                                      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}}


def titan_data(*arguments, stdin=b""):
    done = subprocess.run([BIN / "titan-data", *map(str, arguments)], input=stdin, capture_output=True, timeout=60)
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode()


class TitanData(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "tokenizer.json").write_text(json.dumps(PAIRS))

    def encode(self, *arguments, tokenizer=None, stdin=b""):
        code, out, stderr_text = titan_data("encode", "--tokenizer", tokenizer or self.folder, *arguments, stdin=stdin)
        self.assertEqual((0, ""), (code, stderr_text))
        return out

    def test_decode_restores_the_text(self):
        for text in ("Hello wörld 😀", "two\nlines ", "spaces  within"):
            for tokenizer in (TOKENIZER, self.folder):
                ids = self.encode("--", text, tokenizer=tokenizer)
                self.assertEqual((0, text + "\n", ""), titan_data("decode", "--tokenizer", tokenizer, stdin=ids.encode()))
        self.assertEqual((0, "ab\n", ""), titan_data("decode", "--tokenizer", self.folder, "[2,", "3]"))

    def test_texts_of_arguments_files_and_standard_input(self):
        (self.folder / "text").write_bytes(b"ab\n")
        self.assertEqual("5\n5 16\n", self.encode("ab", "--file", self.folder / "text"))
        self.assertEqual("5 16\n", self.encode(stdin=b"ab\n"))

    def test_pieces_and_offsets(self):
        result = json.loads(self.encode("-o", "json", "ab abé"))
        self.assertEqual({"ids": [5, 5, 6 + 0xC3, 6 + 0xA9], "pieces": ["▁ab", "▁ab", "<0xC3>", "<0xA9>"],
                          "offsets": [[0, 2], [2, 5], [5, 6], [6, 7]]}, result)
        self.assertEqual('5\t0-2\t"▁ab"\n16\t2-3\t"<0x0A>"\n', self.encode("-o", "table", "ab\n"))
        result = json.loads(self.encode("-o", "json", "--bos", "--eos", "a", tokenizer=TOKENIZER))
        self.assertEqual(["<|begin_of_text|>", "a", "<|end_of_text|>"], result["pieces"])
        self.assertEqual([None, [0, 1], None], result["offsets"])

    def test_offsets_are_null_if_the_text_was_normalized(self):
        (self.folder / "tokenizer.json").write_text(json.dumps(PAIRS | {"normalizer": {"type": "Lowercase"}}))
        self.assertEqual([None], json.loads(self.encode("-o", "json", "AB"))["offsets"])

    def test_index_must_not_overlap_its_input(self):
        texts = self.folder / "all" / "texts"
        texts.mkdir(parents=True)
        (texts / "a.jsonl").write_text('{"text": "ab"}\n')
        (self.folder / "link").symlink_to(texts)
        make = lambda out, place: titan_data("tokenize", "--tokenizer", self.folder, "--out", out, place)  # noqa: E731
        for out in (texts, f"{texts}/", texts / "tokens", texts.parent, self.folder / "link", texts / "x" / ".." / ".."):
            code, _, stderr_text = make(out, texts)
            self.assertEqual(2, code, stderr_text)
            self.assertIn(f"--out {out}: overlaps the input {texts}", stderr_text)
        self.assertEqual(2, make(texts, texts / "*.jsonl")[0])
        self.assertEqual(["a.jsonl"], [path.name for path in texts.iterdir()])
        for out, place in ((texts.parent / "texts-tokens", texts), (texts / "tokens", texts / "a.jsonl")):
            self.assertEqual(0, make(out, place)[0])

    def test_input_without_documents_makes_no_index(self):
        text, out = self.folder / "text" / "a.jsonl", self.folder / "out"
        text.parent.mkdir()
        rows = [json.dumps({"text": "ab"})] * 3
        for content, *reasons in [
                ("x\n" * 60, "holds no document", "a.jsonl:1: not JSON, begins with x", "and 57 more"),
                ("[\n" + ",\n".join(rows) + "\n]\n", "a.jsonl:1", "array", "jq -c '.[]'"),
                ('{"body": "ab"}\n' * 2, 'its keys: "body"; --text-key selects one'),
                ('{"text": ""}\n', "its text is empty")]:
            text.write_text(content)
            code, output, stderr_text = titan_data("tokenize", "--tokenizer", self.folder, "--out", out, text.parent)
            self.assertEqual((1, "", False), (code, output, out.exists()), stderr_text)
            for reason in reasons:
                self.assertIn(reason, stderr_text)
        for made in (False, True):  # Only tokenizing finds that the text is malformed; a folder that existed stays.
            (text.parent / "b.txt").write_bytes(b"\xff\xfe")
            if made:
                out.mkdir()
                (out / "notes").write_text("mine")
            code, _, stderr_text = titan_data("tokenize", "--tokenizer", self.folder, "--out", out, text.parent / "b.txt")
            self.assertEqual(1, code, stderr_text)
            self.assertIn("the input holds no document: " + str(text.parent / "b.txt") + ": not UTF-8", stderr_text)
            self.assertEqual([".titan-tokens.lock", "notes"] if made else [], sorted(os.listdir(out)) if out.exists() else [])
        text.write_text("\ufeff\n" + "\n".join(rows) + "\nx\n")
        code, result, stderr_text = titan_data("tokenize", "--tokenizer", self.folder, "--out", self.folder / "index", text)
        self.assertEqual(0, code, stderr_text)
        self.assertIn("3 tokens in 3 documents, 1 shard (0 already existed), 1 malformed document skipped", result)

    def test_train_on_requires_messages_key(self):
        code, _, stderr_text = titan_data("tokenize", "--tokenizer", self.folder, "--out", self.folder / "out", "--train-on", "all", self.folder)
        self.assertEqual(2, code)
        self.assertIn("--train-on requires --messages-key", stderr_text)

    def test_prompts_are_padded_and_cut(self):
        tokens = ["a", "b", "a</w>", "b</w>", "ab</w>", "<|startoftext|>", "<|endoftext|>"]
        clip = self.folder / "clip"
        clip.mkdir()
        (clip / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
        (clip / "merges.txt").write_text("#version: 0.2\na b</w>\n")
        self.assertEqual("5 4 0 4 6 6\n5 6 6 6 6 6\n", self.encode("--pad-to", 6, "AB aab", "", tokenizer=clip))
        self.assertEqual("5 4 4 6\n", self.encode("--pad-to", 4, stdin=b"ab ab ab ab\n", tokenizer=clip))
        self.assertEqual(77, len(self.encode("--pad-to", 0, "a", tokenizer=clip).split()))
        result = json.loads(self.encode("--pad-to", 3, "-o", "json", "b", tokenizer=clip))
        self.assertEqual({"ids": [5, 3, 6], "pieces": ["<|startoftext|>", "b</w>", "<|endoftext|>"], "offsets": [None] * 3}, result)
        for words, arguments in [("neither T5's nor CLIP's", ["--tokenizer", self.folder, "--pad-to", 8]),
                                 ("cannot have 1 tokens", ["--tokenizer", clip, "--pad-to", 1]),
                                 ("--eos excludes --pad-to", ["--tokenizer", clip, "--pad-to", 8, "--eos"])]:
            code, _, stderr_text = titan_data("encode", *arguments, "a")
            self.assertEqual(2, code)
            self.assertIn(words, stderr_text)

    def test_errors_and_exit_codes(self):
        for code, words, arguments in [
                (3, "no such folder", ["encode", "--tokenizer", self.folder / "none", "a"]),
                (3, "cannot be read", ["encode", "--tokenizer", self.folder, "--file", self.folder / "none"]),
                (2, "has no BOS token; leave --bos out", ["encode", "--tokenizer", self.folder, "--bos", "a"]),
                (2, "--tokenizer is required", ["encode", "a"]),
                (2, '"262" is not a token id: ids are numbers from 0 to 261', ["decode", "--tokenizer", self.folder, "262"])]:
            got, _, stderr_text = titan_data(*arguments)
            self.assertEqual(code, got, stderr_text)
            self.assertIn(words, stderr_text)
        code, _, stderr_text = titan_data("encode", "--tokenizer", self.folder, stdin=b"\xff")
        self.assertEqual((2, "titan-data: standard input: text is not UTF-8\n"), (code, stderr_text))


if __name__ == "__main__":
    unittest.main()

"""Tests the text and tokenizer of deploy/make_assets.sh: their size and shape, that a second run changes nothing, and the error
on a machine without a network."""

import json
import os
import pathlib
import subprocess
import tempfile

from tokenizers import Tokenizer

SCRIPT = pathlib.Path(os.environ["TITAN_SOURCE"]) / "deploy" / "make_assets.sh"
DEPS = pathlib.Path(os.environ["TITAN_DEPS"])
ASSETS = DEPS / "assets"


def documents(name):
    lines = (ASSETS / name / "data.json").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def check_text():
    train, held_out = documents("c4_test"), documents("c4_validation")
    assert all(set(document) == {"text", "timestamp", "url"} for document in train + held_out)
    lengths = [len(document["text"]) for document in train + held_out]
    assert min(lengths) >= 500 and max(lengths) <= 5000, (min(lengths), max(lengths))
    assert sum(len(document["text"].encode()) for document in train) > 2_000_000
    assert not {d["text"] for d in train} & {d["text"] for d in held_out}
    urls = [document["url"] for document in train]
    runs = sum(a != b for a, b in zip(urls, urls[1:]))
    assert runs > len(urls) * 0.8, "documents are not shuffled"


def check_tokenizer():
    tokenizer = Tokenizer.from_file(str(ASSETS / "tokenizer" / "tokenizer.json"))
    config = json.loads((ASSETS / "tokenizer" / "tokenizer_config.json").read_text())
    assert tokenizer.get_vocab_size() == 2048
    assert max(tokenizer.get_vocab().values()) == 2047
    for key in ("bos_token", "eos_token"):
        assert tokenizer.token_to_id(config[key]) is not None
    text = documents("c4_validation")[0]["text"]
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert len(text.encode()) / len(ids) > 2.5, "the tokenizer compresses badly"


def check_second_run():
    before = {path: path.stat().st_mtime_ns for path in ASSETS.rglob("*") if path.is_file()}
    subprocess.run(["bash", SCRIPT, ASSETS], check=True, capture_output=True)
    assert before == {path: path.stat().st_mtime_ns for path in ASSETS.rglob("*") if path.is_file()}


def check_offline():
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        (work / "bin").mkdir()
        (work / "bin" / "apt-get").write_text("#!/bin/sh\necho 'E: Failed to fetch' >&2\nexit 100\n")
        (work / "bin" / "apt-get").chmod(0o755)
        (work / "deps").mkdir()
        (work / "deps" / "venv").symlink_to(DEPS / "venv")
        environment = {**os.environ, "PATH": f"{work / 'bin'}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", SCRIPT, work / "deps" / "assets"], env=environment, capture_output=True, text=True)
        assert done.returncode == 1
        assert "cannot download the Debian package perl-doc" in done.stderr and "Failed to fetch" in done.stderr, done.stderr
        assert not any((work / "deps" / "assets").iterdir()), "a failed run left something behind"


check_text()
check_tokenizer()
check_second_run()
check_offline()
print("the assets are complete")

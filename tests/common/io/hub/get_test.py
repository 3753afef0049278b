"""Tests `titanctl assets get` against a local hub that behaves like the real one and injects faults."""

import contextlib
import hashlib
import json
import os
import pty
import random
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[3] / "testing")]
from fake_hub import FakeHub
from mounts import PRIVATE_MOUNTS, may_mount_privately

TITANCTL = Path(os.environ["TITAN_BIN"]) / "titanctl"
TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"
PIECE = 64 << 10  # Bytes per range request.
WEIGHTS = "model.safetensors"
ENVIRONMENT = {name: value for name, value in os.environ.items()
               if not name.startswith(("HF_", "HUGGING", "TITAN_")) and not name.lower().endswith("_proxy")}


def content(size, seed=0):
    return random.Random(seed).randbytes(size)


def digests(files):
    """Returns sizes and digests for comparison: with the contents themselves unittest would spend minutes on printing
    the differences."""
    return {name: (len(bytes_), hashlib.sha256(bytes_).hexdigest()) for name, bytes_ in files.items()}


def repository():
    return {"config.json": b'{"vocab_size": 1}', "generation_config.json": b"{}", "tokenizer.json": content(30_000, 1),
            "tokenizer_config.json": b'{"a": 1}', "README.md": b"# What it is", "model.safetensors.index.json": b'{"metadata": {}}',
            WEIGHTS: content(10 * PIECE + 1234, 2), "original/params.json": b"", "onnx/model.onnx": content(100, 3)}


ASSETS = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json", WEIGHTS}


def wait_until(what, condition):
    for _ in range(6000):
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError(f"no {what} within a minute")


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "home").mkdir()
        self.hub = FakeHub()
        self.addCleanup(self.hub.close)
        self.files = repository()
        self.repo = self.hub.add("org/tiny", self.files)
        self.started = []
        self.addCleanup(self.end_started)
        self.out = self.folder / "out/tiny"

    def end_started(self):
        for process in self.started:
            process.kill()
            process.communicate()

    def words(self, *words, repo="org/tiny"):
        usual = {"--local-dir": self.folder / "out", "--piece-mib": PIECE / 2**20, "--parallel": 3, "--retry-seconds": 0.001,
                 "--endpoint": self.hub.url()}
        chosen = [str(word) for flag, value in usual.items() if flag not in words for word in (flag, value)]
        return [TITANCTL, "assets", "get", repo, *chosen, *map(str, words)]

    def environment(self, **more):
        return {**ENVIRONMENT, "HOME": str(self.folder / "home"), **more}

    def start(self, *words, repo="org/tiny", **environment):
        process = subprocess.Popen(self.words(*words, repo=repo), env=self.environment(**environment), cwd=self.folder, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.started.append(process)
        return process

    def get(self, *words, code=0, repo="org/tiny", **environment):
        process = self.start(*words, repo=repo, **environment)
        output, errors = process.communicate(timeout=60)
        self.assertEqual(code, process.returncode, output + errors)
        return output + errors

    def get_json(self, *words, **more):
        """Returns the answer as JSON."""
        return json.loads(self.get(*words, "-o", "json", **more))

    def here(self):
        return {str(path.relative_to(self.out)): path.read_bytes() for path in self.out.rglob("*")
                if path.is_file() and not path.name.startswith(".titan-assets")}

    def check_downloaded(self, names=ASSETS):
        self.assertEqual(digests({name: self.files[name] for name in names}), digests(self.here()))

    def ranges(self):
        """Returns the ranges of the weights that were requested, as [begin, end)."""
        found = []
        for request in self.hub.requests("cdn", WEIGHTS):
            first, last = request.range.removeprefix("bytes=").split("-")
            found.append((int(first), int(last) + 1))
        return sorted(found)

    def parts(self):
        """Returns the number of bytes of the weights that the record marks as present."""
        record = self.out / f"{WEIGHTS}.part.json"
        return sum(end - begin for begin, end in json.loads(record.read_text())["there"]) if record.exists() else 0

    def hold(self, after):
        """Stops the first piece of the weights after `after` bytes, and returns the event that lets it continue."""
        self.hub.gates["held"] = threading.Event()
        self.hub.order("wait", WEIGHTS, value=(after, "held"), server="cdn")
        return self.hub.gates["held"]


class Downloads(Case):
    def test_downloads_equal_the_hub(self):
        printed = self.get()
        self.check_downloaded()
        self.assertIn(self.repo.branches["main"], printed)
        self.assertEqual(sorted({(at, min(at + PIECE, len(self.files[WEIGHTS]))) for at in range(0, len(self.files[WEIGHTS]), PIECE)}),
                         self.ranges())
        self.hub.forget()
        self.assertIn("nothing to do", self.get())
        self.assertEqual([], self.hub.requests(ending=WEIGHTS) + self.hub.requests(ending="config.json"))

    # A file that this command did not download is compared once, and replaced if it differs.
    def test_existing_files_are_compared(self):
        self.out.mkdir(parents=True)
        for name in ("config.json", WEIGHTS):
            (self.out / name).write_bytes(self.files[name])
        (self.out / "tokenizer.json").write_bytes(self.files["tokenizer.json"][:-1] + b"!")
        was = {file["name"]: file["was"] for file in self.get_json()["files"]}
        self.assertEqual(("there", "there", "missing"), (was["config.json"], was[WEIGHTS], was["tokenizer.json"]))
        self.check_downloaded()
        self.assertEqual([], self.hub.requests(ending=WEIGHTS))
        # A file that changed since the last download is replaced.
        (self.out / "config.json").write_bytes(b"x" * len(self.files["config.json"]))
        self.get_json()
        self.check_downloaded()

    def test_file_selection(self):
        everything = set(self.files)
        for words, expected in ((["--include", "*.md", "--include", "original/*"], {"README.md", "original/params.json"}),
                                (["--assets", "config", "--include", "*.onnx", "--exclude", "gen*"], {"config.json", "onnx/model.onnx"})):
            listed = self.get_json("--dry-run", *words)
            self.assertEqual(expected, {file["name"] for file in listed["files"]}, words)
            self.assertEqual(sum(len(self.files[name]) for name in expected), listed["bytes_left"])
        self.assertFalse(self.out.exists(), "a dry run creates nothing")
        self.get("--assets", "all")
        self.check_downloaded(everything)
        self.assertIn("no file for --include *.bin", self.get("--include", "*.bin", "--assets", "config"))
        self.assertIn("config.json", self.get("--include", "*.bin", code=3))
        self.assertIn("did you mean 'tokenizer'", self.get("--assets", "tokeniser", code=2))
        before = subprocess.run([TITANCTL, "assets", "get", "--assets", "index,config", "--include", "*.md", "org/tiny", "--dry-run", "--endpoint",
                                 self.hub.url()], env=self.environment(), capture_output=True, text=True, cwd=self.folder)
        self.assertIn("4 files of", before.stdout, before.stderr)

    def test_a_dataset_over_pages(self):
        self.hub.page = 2
        files = {f"en/c4-train.{i:05}.json.gz": content(100, i) for i in range(5)}
        self.hub.add("org/tiny", files, kind="datasets")
        self.get("--dataset", "--include", "en/*")
        self.files = files
        self.check_downloaded(files)
        self.assertEqual(3, len(self.hub.requests("hub", f"tree/{self.hub.repos['datasets', 'org/tiny'].branches['main']}")))

    def test_renamed_repository(self):
        self.hub.renamed["org/old"] = "org/tiny"
        self.hub.repos["models", "org/old"] = self.repo
        self.get(repo="org/old")
        self.assertEqual(self.files["config.json"], (self.folder / "out/old/config.json").read_bytes())

    # A branch may move during a download: all files come from its first commit.
    def test_commits_are_not_mixed(self):
        first = self.repo.branches["main"]
        changed = {**self.files, "config.json": b"{}", WEIGHTS: content(1000, 9)}
        self.hub.order("call", f"tree/{first}", value=lambda: self.repo.commit(changed))
        self.assertEqual(first, self.get_json()["commit"])
        self.check_downloaded()
        self.files = changed
        self.get_json()
        self.check_downloaded()
        self.assertEqual(first, self.get_json("--revision", first, "--dry-run")["commit"])

    # A terminal shows bytes, rate and time, and no partial line remains.
    def test_progress(self):
        ours, theirs = pty.openpty()
        process = subprocess.Popen(self.words(), env=self.environment(TERM="xterm"), stdout=subprocess.DEVNULL, stderr=theirs)
        self.started.append(process)
        os.close(theirs)
        printed = b""
        with contextlib.suppress(OSError):  # read() fails once the other end is closed.
            while more := os.read(ours, 4096):
                printed += more
        os.close(ours)
        self.assertEqual(0, process.wait(timeout=60))
        self.assertRegex(printed, rb"\r\x1b\[K\d+ B of 0.7 MiB")
        self.assertIn(f"{WEIGHTS}  0.6 MiB\r\n".encode(), printed)
        self.assertRegex(printed, rb"\w  [\d.]+ (B|MiB)\r\n$")  # The last file is not known.

    def test_two_concurrent_downloads(self):
        gate = self.hold(100)
        one = self.start()
        wait_until("first bytes", lambda: self.parts() >= 100)
        two = self.start()
        self.assertIn("waiting", two.stderr.readline())
        gate.set()
        for process in (one, two):
            output, errors = process.communicate(timeout=60)
            self.assertEqual(0, process.returncode, output + errors)
        self.assertIn("nothing to do", output)
        self.check_downloaded()
        self.assertEqual(1, len(self.hub.requests("hub", "/config.json")))


class Interruptions(Case):
    def resume_download(self, before):
        self.hub.forget()
        self.hub.gates["held"].set()
        self.assertEqual("partly", {file["name"]: file["was"] for file in self.get_json()["files"]}[WEIGHTS])
        self.check_downloaded()
        self.assertEqual(len(self.files[WEIGHTS]) - before, sum(end - begin for begin, end in self.ranges()))

    def interrupted(self, number, code):
        self.hold(1000)
        process = self.start()
        others = 9 * PIECE + 1234  # All bytes but those of the first piece, which is held.
        wait_until("all that is not held", lambda: self.parts() >= others + 1000)
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
        self.assertEqual(code, process.returncode, output + errors)
        self.assertFalse((self.out / WEIGHTS).exists())
        self.resume_download(self.parts())
        return errors

    def test_kill(self):
        self.interrupted(signal.SIGKILL, -signal.SIGKILL)

    def test_ctrl_c(self):
        self.assertIn("run the same command again to resume", self.interrupted(signal.SIGINT, 130))

    # A record of other content, or one that cannot be parsed, is ignored.
    def test_invalid_records_are_ignored(self):
        digest = hashlib.sha256(self.files[WEIGHTS]).hexdigest()
        good = {"digest": digest, "size": len(self.files[WEIGHTS]), "etag": digest, "there": [[0, 500]]}
        for record, requested_from in ((good, 500), ({**good, "digest": "0" * 64}, 0), ({**good, "there": [[0, 2000]]}, 0), (None, 0)):
            with self.subTest(record):
                self.out.mkdir(parents=True, exist_ok=True)
                (self.out / WEIGHTS).unlink(missing_ok=True)
                (self.out / f"{WEIGHTS}.part").write_bytes(self.files[WEIGHTS][:1000])
                (self.out / f"{WEIGHTS}.part.json").write_text("{" if record is None else json.dumps(record))
                self.hub.forget()
                self.get("--assets", "safetensors")
                self.assertEqual(self.files[WEIGHTS], (self.out / WEIGHTS).read_bytes())
                self.assertEqual(requested_from, self.ranges()[0][0])

    # A record may list bytes that the disk has lost.
    def test_a_damaged_part(self):
        digest = hashlib.sha256(self.files[WEIGHTS]).hexdigest()
        self.out.mkdir(parents=True)
        (self.out / f"{WEIGHTS}.part").write_bytes(bytes(5000))
        (self.out / f"{WEIGHTS}.part.json").write_text(json.dumps(
            {"digest": digest, "size": len(self.files[WEIGHTS]), "etag": digest, "there": [[0, 5000]]}))
        self.assertIn("downloaded again", self.get())
        self.check_downloaded()

    # Parts of a file are joined only while the server reports the same etag.
    def test_changed_etag_discards_parts(self):
        self.out.mkdir(parents=True)
        digest = hashlib.sha256(self.files[WEIGHTS]).hexdigest()
        (self.out / f"{WEIGHTS}.part").write_bytes(self.files[WEIGHTS][:5000])
        (self.out / f"{WEIGHTS}.part.json").write_text(json.dumps(
            {"digest": digest, "size": len(self.files[WEIGHTS]), "etag": "before", "there": [[0, 5000]]}))
        self.assertIn("(ETag)", self.get())
        self.check_downloaded()


class Faults(Case):
    def order_all(self, path, server, orders):
        self.hub.forget()
        for order in orders:
            self.hub.order(path=path, server=server, **order)

    # One download meets all of these faults, one after the other.
    def test_transient_faults_are_retried(self):
        busy = dict(kind="status", value=429, headers={"Retry-After": "0"})
        mixed_up = dict(kind="bytes", value=lambda all: all[::-1])
        unlike = [dict(kind="drop", value=777, times=3), dict(kind="drop", value=5000, headers={"reset": 1}), dict(kind="reset", times=2),
                  dict(kind="short", value=99), dict(kind="wrong range", value=7), dict(kind="status", value=500),
                  dict(kind="status", value=503), dict(kind="status", value=403), busy, dict(kind="no ranges", times=2)]
        wait = dict(kind="status", value=429, headers={"Retry-After": "1"})
        small = [dict(kind="status", value=500, times=2), dict(kind="reset"), dict(kind="drop", value=3), dict(kind="short", value=2), wait]
        for path, server, orders in ((WEIGHTS, "cdn", unlike), ("/config.json", "hub", small), (WEIGHTS, "cdn", [mixed_up]),
                                     ("/config.json", "hub", [mixed_up])):
            with self.subTest(path, orders=orders):
                self.order_all(path, server, orders)
                (self.out / path.strip("/")).unlink(missing_ok=True)
                start = time.monotonic()
                self.get("--parallel", 1)
                if wait in orders:
                    self.assertGreaterEqual(time.monotonic() - start, 1)  # The client waits as long as Retry-After says.
                self.check_downloaded()
                self.assertEqual(0, sum(fault.times for fault in self.hub.faults), "a fault was never triggered")

    def test_persistent_faults_fail(self):
        always = dict(times=1000)
        for path, order, code, words in (
                (WEIGHTS, dict(kind="status", value=502, **always), 5, [WEIGHTS, "502", "tried 4 times"]),
                (WEIGHTS, dict(kind="wrong range", value=1, **always), 5, [WEIGHTS, "instead of bytes"]),
                (WEIGHTS, dict(kind="bytes", value=lambda all: bytes(len(all)), **always), 1, [WEIGHTS, "checksum", "downloaded again", "sha256"]),
                ("/config.json", dict(kind="bytes", value=lambda all: all[::-1], **always), 1, ["config.json", "git blob"]),
                ("/config.json", dict(kind="headers", headers={"X-Repo-Commit": "0" * 40}, **always), 5, ["0" * 40, "instead of"]),
                ("/" + WEIGHTS, dict(kind="headers", headers={"X-Linked-Etag": f'"{"1" * 64}"'}, **always), 1, ["not the one in the hub's list", "ETag"]),
                ("/config.json", dict(kind="redirect", value="/org/tiny/resolve/main/config.json", **always), 1, ["redirects too many times"]),
                ("revision/main", dict(kind="text", value=b"<html>", **always), 1, ["not a hub's", "--endpoint"])):
            with self.subTest(path, **order):
                self.hub.forget()
                shutil.rmtree(self.out, ignore_errors=True)
                self.hub.order(path=path, server="cdn" if path == WEIGHTS else "hub", **order)
                printed = self.get("--retries", "4", code=code)
                for word in words:
                    self.assertIn(word, printed)
                self.assertNotIn("secret-of-the-cdn", printed)
                self.assertFalse((self.out / path.strip("/")).exists())

    def test_unreachable_hub(self):
        self.assertIn("127.0.0.1", self.get("--endpoint", "http://127.0.0.1:1", "--retries", "2", code=5))

    def test_too_little_disk_space(self):
        self.repo.listed[WEIGHTS] = {"type": "file", "path": WEIGHTS, "size": 2**50, "oid": "0" * 40,
                                     "lfs": {"oid": "0" * 64, "size": 2**50, "pointerSize": 9}}
        self.assertIn("1073741824.0 MiB", self.get(code=1).replace("1048576.0 GiB", "1073741824.0 MiB"))
        self.assertEqual([], self.hub.requests(ending="config.json"))

    @unittest.skipUnless(may_mount_privately(), "may not mount a small disk that only the test sees")
    def test_the_disk_fills_up(self):
        gate = self.hold(100)
        (self.folder / "out").mkdir()
        script = 'mount -t tmpfs -o size=3m none out || exit; "$@"; echo "first: $?"; rm out/filler; "$@"; echo "second: $?"'
        process = subprocess.Popen([*PRIVATE_MOUNTS, "sh", "-c", script, "sh", *self.words("--parallel", "1")],
                                   env=self.environment(), cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.started.append(process)
        inside = Path(f"/proc/{process.pid}/root") / self.folder.relative_to("/") / "out"
        record = inside / f"tiny/{WEIGHTS}.part.json"
        wait_until("a part, or an end", lambda: process.poll() is not None or (record.exists() and "[[0," in record.read_text()))
        filler = os.open(inside / "filler", os.O_WRONLY | os.O_CREAT)
        with self.assertRaises(OSError):
            while True:
                os.write(filler, bytes(4096))
        os.close(filler)
        gate.set()
        printed, _ = process.communicate(timeout=60)
        self.assertIn("first: 1", printed)
        self.assertIn("No space left", printed)
        self.assertIn("second: 0", printed)


class Names(Case):
    def list_also(self, name):
        self.repo.listed = {"bad": {"type": "file", "path": name, "size": 3, "oid": "0" * 40}}

    def test_unsafe_names_are_refused(self):
        for name in ("../up", "/etc/up", "a\x1b[31m"):
            with self.subTest(name):
                self.list_also(name)
                printed = self.get("--all", code=2)
                self.assertNotIn("\x1b", printed)
                self.assertFalse(self.out.exists())
        for name in (".titan-assets.json", "config.json.part"):
            self.list_also(name)
            self.assertIn("--exclude", self.get("--all", code=2))

    def test_links_are_not_followed(self):
        outside = self.folder / "outside"
        outside.mkdir()
        self.out.mkdir(parents=True)
        (self.out / "original").symlink_to(outside)
        self.assertIn("original", self.get("--all", code=1))
        (self.out / "original").unlink()
        (outside / "file").write_bytes(b"mine")
        (self.out / "config.json").symlink_to(outside / "file")
        self.assertIn("config.json", self.get("--all", code=1))
        self.assertEqual({"file": b"mine"}, {path.name: path.read_bytes() for path in outside.iterdir()})
        (self.out / "config.json").unlink()
        (self.out / f"{WEIGHTS}.part").symlink_to(outside / "file")
        self.get("--all", code=1)
        self.assertEqual(b"mine", (outside / "file").read_bytes())


class Tokens(Case):
    def setUp(self):
        super().setUp()
        self.hub.token = TOKEN
        self.hub.private.add("org/tiny")

    def token_file(self, name, mode=0o600, text=TOKEN + "\n"):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def test_token_sources(self):
        file = self.token_file("cache/huggingface/token")
        for words, environment in (([], {"HF_TOKEN": TOKEN}), (["--token-file", file], {"HF_TOKEN": "hf_wrong"}), ([], {"HF_TOKEN_PATH": str(file)}),
                                   ([], {"HF_HOME": str(file.parent)}), ([], {"XDG_CACHE_HOME": str(self.folder / "cache")})):
            with self.subTest(words, **environment):
                self.assertNotIn(TOKEN, self.get("--dry-run", *words, **environment))
        self.assertIn("page of access tokens", self.get("--token-file", self.token_file("empty", text=" \n"), code=2))
        self.assertIn("no such file", self.get("--token-file", "nowhere", code=2).lower())

    def test_token_goes_only_to_the_hub(self):
        self.get(HF_TOKEN=TOKEN)
        self.check_downloaded()
        self.assertEqual({f"Bearer {TOKEN}"}, {request.token for request in self.hub.requests("hub")})
        self.assertEqual({None}, {request.token for request in self.hub.requests("cdn")})
        self.assertGreater(len(self.hub.requests("cdn")), 10)

    def test_token_is_not_shown(self):
        open_file = self.token_file("open", mode=0o644)
        self.assertIn("chmod 600", self.get("--token-file", open_file, code=1))
        self.assertIn("chmod 600", self.get("--dry-run", HF_TOKEN_PATH=str(open_file)))  # The token file of a login.
        self.assertIn("HF_TOKEN", self.get("--hf_token", TOKEN, code=2))
        for printed in (self.get(HF_TOKEN=TOKEN + "x", code=3), self.get("--hf_token", TOKEN, code=2)):
            self.assertNotIn(TOKEN, printed)
        self.hub.order("status", "revision/main", value=500, times=2)
        self.assertNotIn(TOKEN, self.get("--retries", "2", HF_TOKEN=TOKEN, code=5))
        self.get(HF_TOKEN=TOKEN)
        for path in self.out.rglob("*"):
            self.assertNotIn(TOKEN.encode(), path.read_bytes())

    def test_refusals(self):
        self.assertIn("without a token", self.get(code=1))
        self.hub.private.clear()
        self.hub.gated.add("org/tiny")
        printed = self.get(code=1)
        self.assertIn("gated", printed)
        self.assertIn("HF_TOKEN", printed)
        self.assertIn("account", self.get(HF_TOKEN="hf_other", code=1))
        self.assertIn("no such revision", self.get("--revision", "v9", HF_TOKEN=TOKEN, code=3))
        self.assertIn("there is no such repository", self.get(repo="org/none", HF_TOKEN=TOKEN, code=3))
        self.assertIn("ORG/NAME", self.get(repo="../none", code=2))

    # A token goes through a proxy, and over plain HTTP to another machine only with --insecure.
    def test_proxies_and_plain_http(self):
        far = ["--endpoint", "http://hub.invalid", "--dry-run"]
        self.assertIn("--insecure", self.get(*far, HF_TOKEN=TOKEN, http_proxy=self.hub.url(), code=1))
        self.hub.private.clear()
        self.assertEqual([], self.hub.requests())
        self.get(*far, http_proxy=self.hub.url())
        self.get(*far, "--insecure", HF_TOKEN=TOKEN, http_proxy=self.hub.url())
        self.get(*far, http_proxy=self.hub.url(), no_proxy="hub.invalid", code=5)
        self.assertIn("HF_HUB_OFFLINE", self.get(HF_HUB_OFFLINE="1", code=1))
        self.assertIn("HF_ENDPOINT", subprocess.run([TITANCTL, "assets", "get", "org/tiny"], cwd=self.folder, capture_output=True, text=True,
                                                    env=self.environment(HF_ENDPOINT="ftp://x")).stderr)


class Encrypted(Case):
    def setUp(self):
        super().setUp()
        self.command("init-ca", "ca")
        self.command("issue", "--ca", "ca", "--controller", "--address", "127.0.0.1", "--out", "tls")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "tls/tls.crt", self.folder / "tls/tls.key")
        self.hub = FakeHub(tls=context)
        self.addCleanup(self.hub.close)
        self.hub.repos["models", "org/tiny"] = self.repo

    def command(self, *words):
        subprocess.run([TITANCTL, "cluster", *words], cwd=self.folder, env=self.environment(), check=True, capture_output=True)

    def test_certificate_authority(self):
        printed = self.get(code=1)
        self.assertIn("certificate", printed)
        self.assertIn(self.hub.url(), printed)
        ours = {"SSL_CERT_FILE": str(self.folder / "tls/ca.crt")}
        self.get("--assets", "config", **ours)
        self.check_downloaded({"config.json", "generation_config.json"})
        # No machine between client and hub may choose where the bytes come from.
        self.assertIn("from https to http", self.get(code=1, **ours))
        self.assertEqual([], self.hub.requests("cdn"))


@unittest.skipUnless(os.environ.get("TITAN_LONG") == "1", "TITAN_LONG=1: seconds of waiting")
class Soak(Case):
    # If a server is silent, before its first byte or after some, the request is repeated once --timeout is over.
    def test_silence(self):
        for after in (0, 1000):
            with self.subTest(after):
                shutil.rmtree(self.out, ignore_errors=True)
                self.hold(after)
                self.get("--timeout", "1")
                self.check_downloaded()

    # A download that is killed many times ends with the right content and fetches few bytes twice.
    def test_kills(self):
        draw = random.Random(11)
        for turn in range(20):
            self.files = {"model.safetensors": content(4_000_000, turn), "config.json": content(5000, turn)}
            self.repo = self.hub.add("org/tiny", self.files)
            shutil.rmtree(self.out, ignore_errors=True)
            self.hub.forget()
            self.hub.order("drop", WEIGHTS, server="cdn", value=draw.randrange(50_000), times=5)
            kills = 0
            while True:
                process = self.start("--assets", "config,safetensors", "--retries", "100")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=draw.uniform(0.03, 0.4))
                if process.poll() is not None:
                    break
                process.send_signal(draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM]))
                kills += 1
                if process.wait() == 0:
                    break
            self.assertEqual(0, process.returncode)
            self.check_downloaded(self.files)
            print(f"turn {turn}: {kills} kills, {len(self.hub.requests('cdn'))} ranges", flush=True)


@unittest.skipUnless(os.environ.get("TITAN_LONG") == "1", "TITAN_LONG=1: Hugging Face's own client against this hub")
class Oracle(Case):
    """The hub of these tests works with Hugging Face's own client, too."""

    def snapshot(self, *words, **environment):
        script = ("import sys, json, huggingface_hub as h\nrepo, folder, kind = sys.argv[1:4]\n"
                  "print(h.snapshot_download(repo, local_dir=folder, repo_type=kind, max_workers=4))")
        done = subprocess.run([sys.executable, "-c", script, *map(str, words)], capture_output=True, text=True, cwd=self.folder,
                              env=self.environment(HF_ENDPOINT=self.hub.url(), HF_HUB_DISABLE_XET="1", **environment))
        return done

    def downloaded(self, folder):
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file() and ".cache" not in path.parts}

    def test_the_same_files(self):
        self.hub.page = 3
        self.hub.gated.add("org/tiny")
        self.hub.token = TOKEN
        self.assertIn("GatedRepoError", self.snapshot("org/tiny", self.folder / "theirs", "model").stderr)
        done = self.snapshot("org/tiny", self.folder / "theirs", "model", HF_TOKEN=TOKEN)
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertEqual({None}, {request.token for request in self.hub.requests("cdn")})
        self.get("--all", HF_TOKEN=TOKEN)
        self.assertEqual(digests(self.downloaded(self.folder / "theirs")), digests(self.here()))
        self.assertEqual(digests(self.files), digests(self.here()))

    def test_a_dataset(self):
        self.hub.add("org/tiny", {"en/a.json.gz": content(PIECE)}, kind="datasets")
        done = self.snapshot("org/tiny", self.folder / "theirs", "dataset")
        self.assertEqual(0, done.returncode, done.stderr)
        self.get("--all", "--dataset")
        self.assertEqual(digests(self.downloaded(self.folder / "theirs")), digests(self.here()))

    def test_errors(self):
        self.assertIn("RepositoryNotFoundError", self.snapshot("org/none", self.folder / "theirs", "model").stderr)


if __name__ == "__main__":
    unittest.main()

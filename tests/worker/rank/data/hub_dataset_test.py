"""Tests a dataset read from a hub during a job: rows equal those of the same files on disk, also after a cursor in the middle of
a shard and on every rank; a job stays with its first commit; only the needed files are fetched; and errors say what to do."""

import gzip
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(os.environ["TITAN_SOURCE"]) / "tests/common/io/hub"))
from fake_hub import FakeHub

PROGRAM = pathlib.Path(os.environ["TITAN_BIN"]).parent / "tests" / "read_rows"
TOKENIZER = pathlib.Path(os.environ["TITAN_DEPS"]) / "assets" / "tokenizer"
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy") and not name.startswith("HF_")}
C4 = "hf://datasets/allenai/c4"
SHARDS = 16


def shard(name, lines=12):
    random_ = random.Random(name)
    word = lambda: "".join(random_.choice("abcdefghij") for _ in range(random_.randrange(1, 9)))  # noqa: E731
    rows = [json.dumps({"text": f"{name} {i} " + " ".join(word() for _ in range(80)), "url": "x"}) for i in range(lines)]
    return gzip.compress(("\n".join(rows) + "\n").encode(), mtime=0)


def start(endpoint, folder, *requests, **environment):
    """Starts a new process, as a resumed job does, that answers each request with rows."""
    defaults = {"dataset": "c4", "path": C4, "records": str(folder / "data"), "tokenizer": str(TOKENIZER), "row_tokens": 65}
    process = subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env={**ENVIRONMENT, "HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "home"), **environment})
    process.stdin.write("".join(json.dumps({**defaults, **request}) + "\n" for request in requests))
    process.stdin.flush()
    return process


class HubDataset(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        names = [f"en/c4-train.{i:05}-of-{SHARDS:05}.json.gz" for i in range(SHARDS)] + ["en/c4-validation.00000-of-00001.json.gz"]
        cls.files = {name: shard(name) for name in names}
        cls.files["texts/a.txt"] = b"".join(b"paragraph %d\n\n" % i for i in range(900))
        cls.files["rows/a.parquet"] = b"PAR1"
        cls.files["realnewslike/c4-train.00000-of-00001.json.gz"] = b"never read"
        cls.scratch = tempfile.TemporaryDirectory()
        cls.mirror = pathlib.Path(cls.scratch.name) / "mirror"
        for name, content in cls.files.items():
            (cls.mirror / name).parent.mkdir(parents=True, exist_ok=True)
            (cls.mirror / name).write_bytes(content)

        closed = FakeHub()
        closed.close()
        cls.nowhere = closed.url()
        cls.without_a_hub = start(cls.nowhere, pathlib.Path(cls.scratch.name), {"batches": 1})  # It takes a while to give up.

    @classmethod
    def tearDownClass(cls):
        cls.without_a_hub.kill()  # Has no effect if the process has ended.
        cls.without_a_hub.wait()
        cls.scratch.cleanup()

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.hub = FakeHub(page=5)
        self.addCleanup(self.hub.close)
        self.repo = self.hub.add("allenai/c4", self.files, kind="datasets")
        self.commit = self.repo.branches["main"]

    def start(self, *requests, **environment):
        return start(self.hub.url(), self.folder, *requests, **environment)

    def read(self, *requests, **environment):
        output, self.log = self.start(*requests, **environment).communicate(timeout=60)
        answers = [json.loads(line) for line in output.splitlines()]
        self.assertEqual(len(requests), len(answers), self.log)
        return answers if len(answers) > 1 else answers[0]

    def rows(self, **request):
        answer = self.read(request)
        self.assertNotIn("error", answer)
        self.assertTrue(answer["rows"])
        return answer

    def error(self, *words, environment=None, **request):
        error = self.read(request, **(environment or {})).get("error", "")
        for word in words:
            self.assertIn(word, error)
        self.assertNotIn("hf_secret", error + self.log)
        return error

    def shards_fetched(self):
        return len(self.hub.requests("cdn"))

    def test_rows_equal_those_of_files_on_disk(self):
        queries = [{"batches": 400}, {"dataset": "c4_validation", "batches": 40},
                 {"batches": 30, "batch": 2, "dp_rank": 5, "dp_size": 8},
                 {"batches": 30, "dp_rank": 1, "dp_size": 4, "per_rank": True}, {"batches": 30, "dp_rank": 2, "dp_size": 3, "per_rank": True},
                 {"dataset": "c4_test", "path": C4 + "/texts", "batches": 20},
                 {"dataset": "c4_test", "path": C4 + "@main/en/c4-train.0000[3-5]*", "batches": 150},
                 {"dataset": "c4_test", "path": f"{C4}@{self.commit}/en/c4-validation.00000-of-00001.json.gz", "batches": 90}]
        on_disk = [{**request, "path": request.get("path", C4).replace(C4, str(self.mirror)).replace("@main", "").replace("@" + self.commit, "")}
                   for request in queries]
        answers = self.read(*queries, *on_disk)
        for request, streamed, there in zip(queries, answers, answers[len(queries):]):
            with self.subTest(request):
                self.assertTrue(streamed["rows"])
                self.assertNotIn("error", streamed)
                self.assertEqual(self.commit, streamed["cursor"].pop("commit"))
                folders = [answer["cursor"].pop("files_folder") for answer in (there, streamed)]
                self.assertEqual(folders[1], folders[0].replace(str(self.mirror), f"{C4}@{self.commit}"))
                self.assertEqual(there, streamed)

    # Together the ranks of a node request one list of files, and fetch each shard of their rows once and no other shard.
    def test_fetches_only_needed_shards(self):
        first = self.rows(batches=2)
        self.assertEqual(1, self.shards_fetched())
        listed = [request.path for request in self.hub.requests("hub") if "/tree/" in request.path]
        self.assertTrue(all("/en?" in path for path in listed), "only the needed variant is listed")
        self.hub.forget()
        ranks = [self.start({"batches": 400, "dp_rank": rank, "dp_size": 2}) for rank in range(2)]
        for rank in ranks:
            output, errors = rank.communicate(timeout=60)
            self.assertNotIn("error", json.loads(output), errors)
        fetched = [request.path.split("?")[0] for request in self.hub.requests("cdn")]
        self.assertEqual(sorted(set(fetched)), sorted(fetched), "each shard is fetched once")
        self.assertGreater(len(fetched), 5)
        self.assertEqual([], self.hub.requests("hub", "/api/datasets/allenai/c4/revision/main"))
        self.hub.forget()
        self.assertEqual(first, self.rows(batches=2))
        self.assertEqual([], self.hub.requests(), "cached shards need no hub")

    def test_resumes_in_the_middle_of_a_shard(self):
        whole = self.rows(batches=120)["rows"]
        begin = self.rows(batches=50)
        self.assertGreater(begin["cursor"]["offset"], 0)
        for environment in ({}, {"TITAN_RANK_HUB_CACHE_GIB": "0"}):
            rest = self.read({"batches": 70, "cursor": begin["cursor"]}, **environment)
            self.assertEqual(whole[50:], rest["rows"])
        moved = self.rows(batches=70, cursor=begin["cursor"], path=str(self.mirror))  # Moved to a copy on disk.
        self.assertEqual(whole[50:], moved["rows"])

    # Many ranks and shards of many blocks: each rank tokenizes its own blocks, and no shard is fetched twice.
    def test_distributed_row_counting(self):
        self.repo.commit({**self.files, "en/c4-train.00000-of-00016.json.gz": shard("long", 150)})
        whole = self.rows(batches=640)
        for environment in ({}, {"TITAN_RANK_HUB_CACHE_GIB": "0"}):
            with self.subTest(environment):
                self.hub.forget()
                counts = self.folder / f"counts{len(environment)}"
                requests = [{"batches": 160, "dp_rank": rank, "dp_size": 4, "counts": str(counts)} for rank in range(4)]
                ranks = self.read(*requests, **environment)
                self.assertEqual(whole["rows"], [rank["rows"][i] for i in range(160) for rank in ranks])
                self.assertEqual([whole["cursor"]] * 4, [rank["cursor"] for rank in ranks])
                self.assertEqual(1, len(list(counts.glob("token-counts-*"))))
                fetched = [request.path.split("?")[0] for request in self.hub.requests("cdn")]
                self.assertTrue(environment or len(set(fetched)) == len(fetched), "each shard is fetched once")
                middle = self.read(*({**request, "batches": 70} for request in requests), **environment)
                rest = self.read(*({**request, "batches": 90, "cursor": middle[0]["cursor"]} for request in requests), **environment)
                self.assertEqual(whole["rows"][280:], [rank["rows"][i] for i in range(90) for rank in rest])

    # Records of an older Titan have no sizes: every rank then reads everything.
    def test_resumes_from_a_record_without_sizes(self):
        whole = self.rows(batches=80)["rows"]
        record, = (self.folder / "data").glob("hub-*.json")
        recorded = json.loads(record.read_text())
        self.assertEqual([len(self.files[name]) for name in recorded["files"]], recorded["sizes"])
        for sizes, counted in ((None, 0), (recorded["sizes"], 1), ([1], 1)):  # If sizes are missing, they are requested again.
            changed = {key: value for key, value in recorded.items() if key != "sizes"} | ({"sizes": sizes} if sizes else {})
            record.write_text(json.dumps(changed))
            counts = self.folder / f"counts-{len(sizes or [])}"
            mine = self.rows(batches=20, dp_rank=1, dp_size=4, counts=str(counts))["rows"]
            self.assertEqual(whole[1::4], mine)
            self.assertEqual(counted, len(list(counts.glob("token-counts-*"))))

    # A started job does not follow a branch that changes. If its record is lost, it gets an error instead of other text.
    def test_a_job_stays_with_its_commit(self):
        whole = self.rows(batches=80)["rows"]
        begin = self.rows(batches=30)
        changed = self.repo.commit({**self.files, "en/c4-train.00000-of-00016.json.gz": shard("other")})
        self.assertEqual(whole[30:], self.rows(batches=50, cursor=begin["cursor"])["rows"])
        elsewhere = str(self.folder / "elsewhere")
        self.error(self.commit, changed, "dataset_path", cursor=begin["cursor"], records=elsewhere)
        pinned = self.rows(batches=50, cursor=begin["cursor"], records=elsewhere, path=f"{C4}@{self.commit}")
        self.assertEqual(whole[30:], pinned["rows"])
        self.assertNotEqual(whole[:5], self.rows(batches=5, records=elsewhere)["rows"])
        records = list(pathlib.Path(elsewhere).glob("hub-*.json"))
        self.assertEqual({self.commit, changed}, {json.loads(path.read_text())["commit"] for path in records})
        for path, damage in zip(sorted(records), ("{", '{"path": 5, "commit": [], "files": 7}')):  # The commit is requested again.
            path.write_text(damage)
        self.assertEqual(pinned, self.rows(batches=50, cursor=begin["cursor"], records=elsewhere, path=f"{C4}@{self.commit}"))

    def test_recovers_from_hub_failures(self):
        whole = self.rows(batches=100, path=str(self.mirror))["rows"]
        self.hub.order("drop", "00000-of-00016.json.gz", value=1500, server="cdn")  # Drops after this many bytes.
        self.hub.order("status", "00001-of-00016.json.gz", value=503, server="hub")
        self.assertEqual(whole, self.rows(batches=100)["rows"])
        self.assertEqual(0, sum(fault.times for fault in self.hub.faults))
        ranges = [request.range for request in self.hub.requests("cdn", "00000-of-00016.json.gz")]
        self.assertEqual("bytes=1500-", ranges[1][:11], "it resumes after the received bytes")

    def test_errors_say_what_to_do(self):
        self.hub.order("status", "00003-of-00016.json.gz", value=404, times=9)
        error = self.error("no such", "c4-train.00003-of-00016.json.gz", batches=400)
        self.assertIn(f"@{self.commit}", error)
        self.error("only JSON lines and plain text", "titanctl assets get allenai/c4", path=C4 + "/rows")
        self.error("no file of commit", C4, path=C4 + "/en/*.txt")
        self.error("no such file", C4 + "@main/nowhere", path=C4 + "/nowhere")
        self.error("no such revision", C4 + "@nowhere", path=C4 + "@nowhere")
        self.error("hf://datasets/ORG/NAME", path="hf://allenai/c4")
        self.error("HF_HUB_OFFLINE", environment={"HF_HUB_OFFLINE": "1"})
        self.error("TITAN_RANK_HUB_CACHE_GIB", "much", environment={"TITAN_RANK_HUB_CACHE_GIB": "much"})
        self.hub.private.add("allenai/c4")
        self.hub.token = "hf_secret"
        elsewhere = str(self.folder / "elsewhere")
        self.error("HF_TOKEN", records=elsewhere)
        self.assertTrue(self.read({"records": elsewhere}, HF_TOKEN="hf_secret")["rows"])

    def test_without_a_hub(self):
        output, log = self.without_a_hub.communicate(timeout=60)
        for word in ("HF_ENDPOINT", self.nowhere, "dataset_path", C4, "tried 4 times"):
            self.assertIn(word, json.loads(output)["error"])
        self.assertIn("request is repeated in", log)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)

"""An object store's objects as files, and who may change a checkpoint folder there, against a server that injects
faults."""

import json
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
import unittest
from concurrent.futures import Future
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "testing"))
from object_store import SECRET, Fault, ObjectStore

DRIVER = Path(os.environ["TITAN_BIN"]).parent / "tests/s3_driver"
MIB = 1 << 20
PART = 5 * MIB // 4
TIMEOUT = 60
CLEAN = {name: value for name, value in os.environ.items()
         if not name.startswith(("AWS_", "TITAN_")) and not name.lower().endswith("_proxy")}


class Driver:
    """Runs the driver, which executes operations concurrently."""

    def __init__(self, environment):
        self.process = subprocess.Popen([DRIVER], env={**CLEAN, **environment}, text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.outstanding, self.said = {}, []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.said.append(line)
            answer = json.loads(line)
            self.outstanding.pop(answer["id"]).set_result(answer)

    def start(self, op, **members):
        id_ = f"{len(self.said)}-{len(self.outstanding)}-{random.random()}"
        self.outstanding[id_] = future = Future()
        self.process.stdin.write(json.dumps({"id": id_, "op": op, **members}) + "\n")
        self.process.stdin.flush()
        return future

    def __call__(self, op, **members):
        return self.start(op, **members).result(TIMEOUT)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.store = ObjectStore()
        cls.driver = Driver({**cls.store.environment(), "HOME": "/nowhere"})

    @classmethod
    def tearDownClass(cls):
        cls.driver.close()
        cls.store.close()
        assert SECRET not in "".join(cls.driver.said)

    def setUp(self):
        self.store.reset()

    def ok(self, op, **members):
        answer = self.driver(op, **members)
        self.assertEqual("OK", answer["code"], answer)
        return answer

    def refused(self, code, op, *words, **members):
        answer = self.driver(op, **members)
        self.assertEqual(code, answer["code"], answer)
        for word in words:
            self.assertIn(word, answer["message"])
        return answer


class FilesTest(Case):
    # Objects of whole parts or with a rest, and with names that an address has to escape, are read back in one piece and
    # in small ones.
    def test_written_bytes_are_read_back(self):
        for number, (name, size) in enumerate([("one", 1), ("whole", PART), ("rest", 2 * PART + 77), ("a b+c&d=e(f)~é.bin", 3 * MIB + 5)]):
            path = f"s3://titan/run/step-1/{name}"
            self.assertFalse(self.ok("exists", path=path)["there"])
            self.ok("write", path=path, size=size, seed=number)
            self.assertTrue(self.ok("exists", path=path)["there"])
            self.assertTrue(self.ok("read", path=path, size=size, seed=number)["same"])
            self.assertTrue(self.ok("read", path=path, size=size, seed=number, piece=700_001)["same"])
        self.ok("whole", path="s3://titan/run/manifest.json", text="old")
        self.ok("whole", path="s3://titan/run/manifest.json", text="new")
        self.assertEqual(b"new", self.store.get("run/manifest.json"))
        self.assertEqual(["manifest.json", "step-1"], self.ok("list", path="s3://titan/run")["names"])
        self.ok("remove", path="s3://titan/run/step-1/one")
        self.refused("NOT_FOUND", "read", "s3://titan/run/step-1/one", path="s3://titan/run/step-1/one", size=1)
        self.refused("NOT_FOUND", "list", "s3://titan/empty", path="s3://titan/empty")

    # A folder with more names than fit on one page of the store's list is listed completely.
    def test_long_lists_have_pages(self):
        for number in range(10):
            self.store.put(f"many/{number:04}", b"x")
        self.store.rule = lambda request: Fault("pages")
        self.assertEqual([f"{number:04}" for number in range(10)], self.ok("list", path="s3://titan/many")["names"])
        self.assertEqual(4, self.store.counted("list"))

    # Each request meets each fault once, and what was acknowledged is complete.
    def test_faults_of_writing(self):
        kinds = [Fault("status"), Fault("status", 503, "SlowDown", {"Retry-After": "0"}), Fault("reset"), Fault("lost"),
                 Fault("corrupt"), Fault("slow"), Fault("status", 409, "ConditionalRequestConflict")]
        due = {what: list(kinds) for what in ("put", "upload", "part", "complete")}
        passed = dict.fromkeys(due, True)

        def rule(request):
            left = due.get(request.what)
            if not left or not passed[request.what]:
                passed[request.what] = True
                return None
            passed[request.what] = False
            return left.pop()

        self.store.rule = rule
        written = []
        while any(due.values()):
            self.assertLess(len(written), 40)
            size = 2 * PART + 3 if any(due[what] for what in ("upload", "part", "complete")) else 1000
            for size in {size, 1000}:
                written.append((f"s3://titan/faults/{len(written)}", size, len(written)))
                self.ok("write", path=written[-1][0], size=size, seed=len(written) - 1)
        self.store.rule = lambda request: None
        for path, size, seed in written:
            self.assertTrue(self.ok("read", path=path, size=size, seed=seed)["same"])
        # The store created an upload but its response was lost; the raise() of the next attempt aborts it.
        self.assertEqual(self.store.uploads(), 1)

    def test_faults_of_reading(self):
        size = MIB + 11
        for fault in (Fault("status"), Fault("status", 503, "SlowDown"), Fault("reset"), Fault("truncated"), Fault("slow"), Fault("lost")):
            for what in ("head", "get"):
                path = f"s3://titan/{fault.kind}-{fault.code}-{what}"  # A new path, so that no block of it is cached.
                self.ok("write", path=path, size=size)
                due = [fault]
                self.store.rule = lambda request: due.pop() if due and request.what == what else None
                self.assertTrue(self.ok("read", path=path, size=size, piece=MIB // 4)["same"], fault)
                self.assertFalse(due)

    # The store reports a checksum of other bytes than were sent: nothing is acknowledged.
    def test_wrong_checksum_is_an_error(self):
        self.store.rule = lambda request: Fault("checksum") if request.what in ("put", "part") else None
        for size in (1000, 2 * PART):
            self.refused("DATA_LOSS", "write", "s3://titan/sum", "different bytes", path="s3://titan/sum", size=size)
        self.assertEqual(0, self.store.uploads())

    # Each message names the object and what to do, and permanent errors are not retried.
    def test_errors_say_what_to_do(self):
        path = "s3://titan/a/b"
        self.refused("FAILED_PRECONDITION", "write", "there is no bucket nowhere", "s3://nowhere/a", path="s3://nowhere/a", size=1, bucket="nowhere")
        self.refused("FAILED_PRECONDITION", "read", "there is no bucket nowhere", path="s3://nowhere/a", size=1, bucket="nowhere")
        self.refused("FAILED_PRECONDITION", "list", "there is no bucket nowhere", path="s3://nowhere/a", bucket="nowhere")
        for fault, code, word in [(Fault("status", 403, "AccessDenied"), "PERMISSION_DENIED", "in the bucket titan"),
                                  (Fault("status", 403, "InvalidAccessKeyId"), "UNAUTHENTICATED", "AWS_ACCESS_KEY_ID"),
                                  (Fault("status", 400, "ExpiredToken"), "UNAUTHENTICATED", "renew AWS_SESSION_TOKEN"),
                                  (Fault("status", 403, "RequestTimeTooSkewed"), "FAILED_PRECONDITION", "clock"),
                                  (Fault("status", 301, "PermanentRedirect", {"x-amz-bucket-region": "us-far-2"}), "FAILED_PRECONDITION",
                                   "set AWS_REGION = us-far-2"),
                                  (Fault("status", 501, "NotImplemented"), "FAILED_PRECONDITION", "conditional writes")]:
            self.store.rule = lambda request: fault if request.what == "put" else None
            self.store.requests.clear()
            self.refused(code, "write", path, word, path=path, size=1)
            self.assertEqual(1, self.store.counted("put"), fault)
        self.store.rule = lambda request: Fault("status", 500)
        self.refused("UNAVAILABLE", "write", path, "tried 4 times", path=path, size=1)

    # A writer never changes an existing object, of whatever size; an abandoned save leaves nothing.
    def test_existing_objects_are_not_changed(self):
        self.store.put("taken", b"theirs")
        for size in (10, 2 * PART):
            self.refused("ALREADY_EXISTS", "write", path="s3://titan/taken", size=size)
        self.refused("CANCELLED", "write", path="s3://titan/given-up", size=3 * PART, give_up=2 * PART)
        self.assertEqual(["taken"], self.store.keys())
        self.assertEqual(b"theirs", self.store.get("taken"))
        self.assertEqual(0, self.store.uploads())

    # Keys are read from the environment and from a file, and no message shows them.
    def test_credential_sources(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        environment = {name: value for name, value in self.store.environment().items() if "_KEY" not in name}
        file = folder / "keys"

        def tried(code, word, **more):
            driver = Driver({**environment, "HOME": str(folder), **more})
            answer = driver("whole", path="s3://titan/x", text="x")
            driver.close()
            self.assertEqual(code, answer["code"], answer)
            self.assertIn(word, answer["message"])
            self.assertNotIn(SECRET, "".join(driver.said))

        tried("UNAUTHENTICATED", ".aws/credentials")
        file.write_text(f"[default]\naws_access_key_id = who\naws_secret_access_key = wrong\n\n[other]\n"
                        f"aws_access_key_id=who\naws_secret_access_key={SECRET}\naws_session_token=a-session\n")
        file.chmod(0o644)
        tried("PERMISSION_DENIED", "chmod 600", AWS_SHARED_CREDENTIALS_FILE=str(file))
        file.chmod(0o600)
        tried("UNAUTHENTICATED", "SignatureDoesNotMatch", AWS_SHARED_CREDENTIALS_FILE=str(file))
        tried("OK", "", AWS_SHARED_CREDENTIALS_FILE=str(file), AWS_PROFILE="other")
        self.assertEqual("a-session", self.store.requests[-1].headers["x-amz-security-token"])
        tried("INVALID_ARGUMENT", "one word", AWS_ACCESS_KEY_ID="who", AWS_SECRET_ACCESS_KEY="a b")
        tried("FAILED_PRECONDITION", "TITAN_RANK_S3_PLAIN_HTTP", AWS_ENDPOINT_URL="http://store.example:9000")
        tried("FAILED_PRECONDITION", "AWS_REGION", AWS_ENDPOINT_URL="", AWS_REGION="")
        # A session token that expired is read again from its source.
        text = file.read_text()

        def renewed(request):
            if request.headers["x-amz-security-token"] == "a-session":
                file.write_text(text.replace("a-session", "another"))
                return Fault("status", 400, "ExpiredToken")
        self.store.rule = renewed
        tried("OK", "", AWS_SHARED_CREDENTIALS_FILE=str(file), AWS_PROFILE="other")
        self.assertEqual("another", self.store.requests[-1].headers["x-amz-security-token"])
        self.store.rule = lambda request: None
        # AWS's own endpoint of the region, through a proxy, which learns only the address.
        tried("UNAVAILABLE", "titan.s3.eu-test-1.amazonaws.com", AWS_ENDPOINT_URL="", https_proxy=self.store.url, AWS_ACCESS_KEY_ID="who",
              AWS_SECRET_ACCESS_KEY=SECRET)
        place, headers = self.store.connect_requests[-1]
        self.assertEqual("titan.s3.eu-test-1.amazonaws.com:443", place)
        self.assertFalse([name for name in headers if name.lower().startswith(("auth", "x-amz"))], headers)
        tried("INVALID_ARGUMENT", "AWS_ENDPOINT_URL", AWS_ENDPOINT_URL="http://user:secret@127.0.0.1:1")


def manifest(text):
    return text * 10


class FenceCase(Case):
    def fence(self, op, name, **members):
        return self.driver.start(op, fence=name, who=name, **members)

    def done(self, op, name, **members):
        answer = self.fence(op, name, **members).result(TIMEOUT)
        self.assertEqual("OK", answer["code"], answer)
        return answer

    def fenced(self, op, name, **members):
        answer = self.fence(op, name, **members).result(TIMEOUT)
        self.assertTrue(answer["fenced"], answer)
        self.assertIn("s3://titan/job", answer["message"])

    def visible(self, key="job/step-1/manifest.json"):
        body = self.store.get(key)
        return None if b"NoSuchKey" in body or body.startswith(b"titan: nothing is here") else body.decode()

    def publish(self, name, text="A", step=1):
        return self.fence("publish", name, key=f"job/step-{step}/manifest.json", text=manifest(text), step=step, remembered="x")


class FenceTest(FenceCase):
    def test_only_the_highest_attempt_publishes(self):
        self.done("raise", "a", uid="one", attempt=1)
        self.assertEqual("OK", self.publish("a").result(TIMEOUT)["code"])
        self.done("raise", "b", uid="one", attempt=2)
        answer = self.publish("a", step=2).result(TIMEOUT)
        self.assertTrue(answer["fenced"] and not answer["unknown"], answer)
        self.assertIsNone(self.visible("job/step-2/manifest.json"))
        self.fenced("check", "a")
        self.fenced("beat", "a")
        self.fenced("retire", "a", keys=["job/step-1/manifest.json"])
        self.fenced("raise", "a", uid="one", attempt=1)
        self.done("check", "b")
        self.assertEqual(manifest("A"), self.visible())

    # A job that lost the folder can never take it back.
    def test_a_new_job_takes_over_for_good(self):
        self.done("raise", "a", uid="one", attempt=5)
        self.store.clock = 3600
        self.assertIn("one", self.done("raise", "b", uid="two", attempt=1)["taken_from"])
        self.fenced("raise", "a", uid="one", attempt=6)
        self.fenced("release", "a")

    def test_a_folder_in_use_is_refused_by_name(self):
        self.done("raise", "a", uid="one", attempt=1)
        answer = self.fence("raise", "b", uid="two", attempt=1).result(TIMEOUT)
        self.assertTrue(answer["in_use"], answer)
        self.assertIn("another checkpoint.folder", answer["message"])
        # A holder that keeps beating while it is watched is alive, whatever the clocks say.
        beats = iter(range(100))
        self.store.rule = lambda request: self.store.put("job/.fence-alive", b"x") and None if request.what == "head" and next(beats) > 2 else None
        self.assertTrue(self.fence("take", "b", uid="two", attempt=1).result(TIMEOUT)["in_use"])
        self.done("check", "a")

    # A holder that was silent while watched, or by the store's clock, is replaced; one that released the folder is
    # replaced at once.
    def test_silence_and_release(self):
        self.done("raise", "a", uid="one", attempt=1)
        self.assertIn("one", self.done("take", "b", uid="two", attempt=1)["taken_from"])
        self.done("release", "b")
        self.assertEqual("", self.done("raise", "c", uid="three", attempt=1)["taken_from"])

    def test_remembers_what_was_committed(self):
        self.done("raise", "a", uid="one", attempt=1)
        for step in (1, 2):
            self.publish("a", step=step).result(TIMEOUT)
        self.assertEqual({"x": 2}, self.done("raise", "b", uid="one", attempt=2)["committed"])
        self.done("release", "b")
        self.assertEqual({"x": 2}, self.done("raise", "c", uid="two", attempt=1)["committed"])

    def test_an_unreadable_fence_says_what_to_do(self):
        self.store.put("job/fence.json", b"{")
        self.refused("DATA_LOSS", "raise", "s3://titan/job/fence.json", "delete", fence="a", who="a", uid="one")

    # A store that treats a conditional write as a plain one is rejected before anything depends on it.
    def test_a_store_without_conditions_is_refused(self):
        def forget(request):
            request.headers.pop("if-none-match", None)
            request.headers.pop("if-match", None)
        signed = self.store.check_signatures
        self.store.check_signatures, self.store.rule = False, forget
        try:
            self.refused("FAILED_PRECONDITION", "raise", "If-None-Match", fence="other", who="other", uid="one")
        finally:
            self.store.check_signatures = signed
        self.assertEqual([], self.store.keys())

    # If any request of any fence operation meets a fault, the operation still takes effect exactly once.
    def test_faults_of_the_fence(self):
        kinds = [Fault("lost"), Fault("reset"), Fault("status"), Fault("status", 503, "SlowDown"), Fault("truncated")]
        number, attempt, due = 0, 0, []
        self.store.rule = lambda request: due.pop() if due and len(self.store.requests) - begin == number else None
        while not due:
            number, attempt, begin = number + 1, attempt + 1, len(self.store.requests)
            for key in self.store.keys(prefix="job/step"):
                self.store.call("DELETE", f"/titan/{key}")
            due = [kinds[number % len(kinds)]]
            self.done("raise", f"f{attempt}", uid="one", attempt=attempt)
            self.assertEqual("OK", self.publish(f"f{attempt}").result(TIMEOUT)["code"])
            self.assertEqual(manifest("A"), self.visible())
            self.done("retire", f"f{attempt}", keys=["job/step-1/manifest.json"])
            self.assertIsNone(self.visible())
            fence = json.loads(self.store.get("job/fence.json"))
            self.assertEqual((attempt, 1, False), (fence["attempt"], fence["committed"]["x"]["step"], "pending" in fence))
        self.assertGreater(number, 15)

    # If an attempt ends anywhere in the middle of taking the folder, the next attempt can take it.
    def test_fence_survives_a_cut_at_every_step(self):
        for number in range(1, 12):
            begin = len(self.store.requests)
            self.store.rule = lambda request: Fault("status") if len(self.store.requests) - begin >= number else None
            cut = self.fence("raise", f"c{number}", uid="one", attempt=2 * number).result(TIMEOUT)
            self.store.rule = lambda request: None
            self.done("raise", f"d{number}", uid="one", attempt=2 * number + 1)
            self.assertEqual("OK", self.publish(f"d{number}", step=number).result(TIMEOUT)["code"])
            if cut["code"] == "OK":
                break
        self.assertGreater(number, 4)
        answer = self.fence("raise", "late", uid="one", attempt=1).result(TIMEOUT)
        self.assertTrue(answer["fenced"] and "delete s3://titan/job/fence.json as well" in answer["message"], answer)

    # If the result of publishing a manifest is unknown, it is reported as unknown, and the next operation finds out.
    def test_unknown_publish_result_is_resolved(self):
        self.done("raise", "a", uid="one", attempt=1)
        done = []

        def rule(request):
            if request.key.endswith("manifest.json") and done:
                return Fault("status")
            if request.what == "put" and request.key.endswith("manifest.json"):
                done.append(request)
                return Fault("lost")
        self.store.rule = rule
        answer = self.publish("a").result(TIMEOUT)
        self.assertEqual(("UNAVAILABLE", True), (answer["code"], answer["unknown"]), answer)
        self.store.rule = lambda request: None
        self.assertEqual(manifest("A"), self.visible())
        self.assertEqual({"x": 1}, self.done("raise", "b", uid="one", attempt=2)["committed"])
        # A manifest that was never stored can no longer appear.
        self.store.rule = lambda request: Fault("status") if request.what == "put" and request.key.endswith("manifest.json") else None
        self.assertTrue(self.publish("b", step=2).result(TIMEOUT)["unknown"])
        self.store.rule = lambda request: None
        self.assertEqual("OK", self.publish("b", step=3).result(TIMEOUT)["code"])
        self.assertIsNone(self.visible("job/step-2/manifest.json"))
        self.assertTrue(self.store.get("job/step-2/manifest.json").startswith(b"titan: nothing is here"))

    # A retired step is invisible, and the step can be published again.
    def test_retired_steps_are_invisible(self):
        self.done("raise", "a", uid="one", attempt=1)
        self.publish("a").result(TIMEOUT)
        self.done("retire", "a", keys=["job/step-1/manifest.json", "job/step-7/manifest.json"])
        self.assertFalse(self.ok("exists", path="s3://titan/job/step-1/manifest.json")["there"])
        self.assertEqual([], self.ok("list", path="s3://titan/job/step-1")["names"])
        self.refused("NOT_FOUND", "read", path="s3://titan/job/step-1/manifest.json", size=1)
        self.publish("a", "B").result(TIMEOUT)
        self.assertEqual(manifest("B"), self.visible())

    # After a kill in the middle of an upload the next attempt deletes the parts.
    def test_uploads_of_dead_attempts_are_aborted(self):
        driver = Driver({**self.store.environment(), "HOME": "/nowhere"})
        stopped, proceed = threading.Event(), threading.Event()
        self.addCleanup(proceed.set)

        def rule(request):
            if request.what == "complete":
                stopped.set()
                proceed.wait(TIMEOUT)
                return Fault("reset")
        self.store.rule = rule
        driver.start("write", path="s3://titan/job/step-1/a1", size=2 * PART)
        self.assertTrue(stopped.wait(TIMEOUT))
        driver.close()
        proceed.set()
        self.store.rule = lambda request: None
        self.assertEqual(1, self.store.uploads())
        self.store.call("POST", "/titan/job/another/step-1/a1?uploads")  # A job folder inside this one.
        self.done("raise", "a", uid="one", attempt=2)
        self.assertEqual(1, self.store.uploads())
        self.assertIn(b"job/another", self.store.call("GET", "/titan?uploads")[2])


class Interleaver:
    """Lets requests of several actors through one at a time, in an order that a seed gives."""

    def __init__(self, store, seed):
        self.random, self.waiting, self.running = random.Random(seed), queue.Queue(), {}
        store.rule = self.rule

    def rule(self, request):
        go = threading.Event()
        self.waiting.put((request.who, go))
        go.wait(TIMEOUT)

    def run(self, futures):
        """Returns the results by actor, once all have answered."""
        for who, future in futures.items():
            future.add_done_callback(lambda _, who=who: self.waiting.put((who, None)))
        held, active = {}, set(futures)
        while active:
            while active - held.keys():
                who, go = self.waiting.get(timeout=TIMEOUT)
                if go is None:
                    active.discard(who)
                else:
                    held[who] = go
            if held:
                chosen = self.random.choice(sorted(held))
                held.pop(chosen).set()


class RaceTest(FenceCase):
    # If two jobs want a free folder at the same time, exactly one gets it, in whatever order their requests arrive.
    def test_two_jobs_race(self):
        for seed in range(100):
            self.store.rule = lambda request: None
            self.store.call("DELETE", "/titan/job/fence.json")
            self.store.call("DELETE", "/titan/job/.fence-alive")
            turns = Interleaver(self.store, seed)
            race = {who: self.fence("raise", who, uid=f"job-{who}", attempt=1) for who in ("a", "b")}
            turns.run(race)
            ends = [future.result(TIMEOUT) for future in race.values()]
            self.assertEqual(1, sum(one["code"] == "OK" for one in ends), (seed, ends))
            self.assertEqual(1, sum(one["in_use"] for one in ends), (seed, ends))

    # A new attempt takes the fence while the old one publishes: the result that the old attempt gets is true and stays
    # true.
    def test_an_attempt_is_replaced_while_it_publishes(self):
        outcomes = set()
        for seed in range(20):
            self.store.rule = lambda request: None
            for key in self.store.keys(prefix="job/"):
                self.store.call("DELETE", f"/titan/{key}")
            self.done("raise", "a", uid="one", attempt=1)
            turns = Interleaver(self.store, seed)
            race = {"a": self.publish("a"), "b": self.fence("raise", "b", uid="one", attempt=2)}
            turns.run(race)
            self.store.rule = lambda request: None
            published, raised = race["a"].result(TIMEOUT), race["b"].result(TIMEOUT)
            self.assertEqual("OK", raised["code"], (seed, raised))
            if self.visible():
                self.assertEqual("OK", published["code"], (seed, published))
                self.assertEqual(1, json.loads(self.store.get("job/fence.json"))["committed"]["x"]["step"])
            else:
                self.assertTrue(published["fenced"] and not published["unknown"], (seed, published))
            outcomes.add(published["code"])
        self.assertEqual({"OK", "FAILED_PRECONDITION"}, outcomes)

    # An attempt is paused before each of its requests until another attempt has taken over: it changes nothing after
    # that.
    def test_a_paused_attempt_changes_nothing_when_it_wakes(self):
        for what in ("publish", "retire"):
            for pause in range(1, 40):
                self.store.rule = lambda request: None
                for key in self.store.keys(prefix="job/"):
                    self.store.call("DELETE", f"/titan/{key}")
                self.done("raise", "a", uid="one", attempt=1)
                if what == "retire":
                    self.assertEqual("OK", self.publish("a").result(TIMEOUT)["code"])
                left, paused, wake = [pause], threading.Event(), threading.Event()

                def rule(request):
                    if request.who == "a":
                        left[0] -= 1
                        if left[0] == 0:
                            paused.set()
                            wake.wait(TIMEOUT)
                self.store.rule = rule
                old = self.publish("a") if what == "publish" else self.fence("retire", "a", keys=["job/step-1/manifest.json"])
                old.add_done_callback(lambda _: paused.set())
                self.assertTrue(paused.wait(TIMEOUT))
                if old.done():
                    break
                self.done("raise", "b", uid="one", attempt=2)
                seen = self.visible()
                wake.set()
                answer = old.result(TIMEOUT)
                self.assertEqual(seen, self.visible(), (what, pause, answer))
                self.assertTrue(answer["fenced"] or answer["code"] == "OK", (what, pause, answer))
                if answer["code"] == "OK":
                    self.assertEqual(what == "publish", seen is not None, (what, pause))
                elif what == "publish":
                    self.assertFalse(answer["unknown"])
                    self.assertIsNone(seen)
            self.assertGreater(pause, 4)


if __name__ == "__main__":
    unittest.main()

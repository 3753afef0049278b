"""Tests `titanctl cluster debug`: one file contains what is needed to find a fault, and none of the secrets that the test planted
in every place a secret may reach. Without a controller it contains what this machine knows, and names what is missing."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from cluster import BIN, SOURCE, Cluster, wait_until

FAKE_RANK = BIN.parent / "tests/fake_rank"
PLANTED = "planted-secret"


class StandIns(Cluster):
    """A cluster with stand-ins as ranks."""

    def _add(self, name, command):
        return super()._add(name, command if name == "controller" else [*command, "--rank-binary", FAKE_RANK])

    def worker_ports(self, name):
        file = self.folder / f"{name}-ports.json"
        return file.exists() and json.loads(file.read_text())


def unpack(file):
    """Returns texts, keyed by their paths below the bundle's folder."""
    with tarfile.open(file) as archive:
        return {member.name.split("/", 1)[1]: archive.extractfile(member).read().decode() for member in archive.getmembers() if member.isfile()}


class Debug(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def debug(self, *flags, **environment):
        file = self.folder / "bundle.tar.gz"
        done = subprocess.run([BIN / "titanctl", "cluster", "debug", "--out", file, *flags], env={**os.environ, **environment},
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertEqual(f"{file}\n", done.stdout)
        self.assertEqual(0o600, stat.S_IMODE(file.stat().st_mode))
        self.assertEqual(["bundle.tar.gz"], [path.name for path in self.folder.iterdir() if path.is_file()])
        return unpack(file), done.stderr

    def test_bundle_contents_and_redaction(self):
        os.environ["TITAN_TEST_FAKE_RANK"] = json.dumps({"steps": 2, "exit_code": 1, "error": f"cannot log in: token={PLANTED}-1"})
        self.addCleanup(os.environ.pop, "TITAN_TEST_FAKE_RANK")
        with StandIns(workers=1) as cluster:
            wait_until("a ready node", lambda: cluster.ask("cluster", "info")["ready_nodes"] == 1)
            recipe = self.folder / "job.toml"
            recipe.write_text((SOURCE / "configs/llama3_tiny.toml").read_text() + f"\n# api_key = {PLANTED}-2\n")
            failed = cluster.submit(recipe, "--job-id", "failed", "--label", f"hf_token={PLANTED}-3", "--job.dump_folder", self.folder / "dump",
                                    "--job.description", f"started with PASSWORD={PLANTED}-4")
            waits = cluster.submit(recipe, "--job-id", "waits", "--nproc", 64, "--job.dump_folder", self.folder / "other")
            recipe.unlink()
            self.assertEqual("FAILED", cluster.wait(failed)["state"])
            port = wait_until("the worker's page", lambda: cluster.worker_ports("n1"))["metrics"]
            files, printed = self.debug("--worker-metrics-port", str(port), TITAN_CONTROLLER=cluster.address, TITAN_REGISTRY_TOKEN=f"{PLANTED}-5",
                                     HTTPS_PROXY=f"http://me:{PLANTED}-6@proxy:3128", SECRET_OF_OTHERS=f"{PLANTED}-7")
            self.assertEqual([], [line for path, text in files.items() for line in text.splitlines() if PLANTED in line])
            self.assertIn("asking the controller", printed)
            self.assertEqual("nothing\n", files["missing.txt"])
            self.assertEqual(cluster.ask("cluster", "info")["id"], json.loads(files["cluster.json"])["id"])
            self.assertEqual(["nodes/n1"], [node["name"] for node in json.loads(files["nodes.json"])])
            self.assertEqual({f"projects/default/jobs/{name}" for name in (failed, waits)}, {job["name"] for job in json.loads(files["jobs.json"])})
            self.assertIn('titan_worker_connected{node="n1"} 1', files["nodes/n1/metrics.txt"])
            job = json.loads(files["jobs/failed/job.json"])
            self.assertEqual("(left out)", job["labels"]["hf_token"])
            self.assertEqual("started with PASSWORD=(left out)", job["spec"]["config_json"]["job"]["description"])
            self.assertEqual(str(self.folder / "dump"), job["spec"]["config_json"]["job"]["dump_folder"])  # Paths stay.
            self.assertEqual(256, job["spec"]["config_json"]["training"]["seq_len"])
            reasons = [json.loads(line)["reason"] for line in files["jobs/failed/events.jsonl"].splitlines()]
            self.assertIn("JobFailed", reasons)
            self.assertEqual("QUEUED", json.loads(files["jobs/waits/job.json"])["state"])
            self.assertIn("event=Listening", files["controller/journal.log"])
            self.assertIn("titan_build_info", files["controller/metrics.txt"])
            self.assertGreater(int(json.loads(files["controller/store.json"])["revision"]), 1)
            self.assertGreater(int(json.loads(files["controller/store.json"])["file_bytes"]), 1)
            configuration = json.loads(files["controller/configuration.json"])
            self.assertEqual(("127.0.0.1:0", "", "no"), tuple(configuration[key] for key in ("listen", "tls_ca", "insecure")))
            for host in ("controller/host.json", "local/host.json"):
                self.assertTrue({"system", "limits", "memory", "cgroup"} <= set(json.loads(files[host])), host)
            for build in (json.loads(files["controller/build.json"]), json.loads(files["local/version.json"])["build"]):
                self.assertTrue({"commit", "compiler", "build type", "gRPC", "SQLite"} <= set(build), build)
            self.assertEqual("(left out)", json.loads(files["local/environment.json"])["TITAN_REGISTRY_TOKEN"])
            self.assertEqual("http://(left out)@proxy:3128", json.loads(files["local/environment.json"])["HTTPS_PROXY"])

    def test_without_a_controller_lists_missing_parts(self):
        files, printed = self.debug("--controller", "127.0.0.1:1", "--timeout", "1")
        self.assertIn("not in the bundle: cluster, nodes, jobs and controller: no controller at 127.0.0.1:1", printed)
        self.assertIn("no controller at 127.0.0.1:1", files["missing.txt"])
        self.assertEqual({"missing.txt", "local/version.json", "local/host.json", "local/environment.json"},
                         {path for path in files if not path.endswith(".env")})

    def stopped(self, *words, folder):
        """Returns the exit code after an interrupt, which is sent as soon as something is in the folder."""
        with subprocess.Popen([BIN / "titanctl", "cluster", *words], env={**os.environ, "TMPDIR": str(folder)}, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as process:
            wait_until("something", lambda: any(folder.iterdir()))
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
            return process.returncode

    def test_interrupt_leaves_nothing(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:  # Accepts connections and never answers.
            nobody = ["--controller", f"127.0.0.1:{silent.getsockname()[1]}", "--timeout", "50"]
            for words in (["debug", "--out", self.folder / "bundle.tar.gz"], ["backup", self.folder / "tmp/copy"]):
                with self.subTest(words=words[0]):
                    temporary = self.folder / "tmp"
                    temporary.mkdir(exist_ok=True)
                    self.assertEqual(130, self.stopped(*words, *nobody, folder=temporary))
                    self.assertEqual([temporary], list(self.folder.iterdir()))
                    self.assertEqual([], list(temporary.iterdir()))

    def test_a_full_folder_for_temporary_files_is_an_error(self):
        disk = self.folder / "small"
        disk.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", disk], capture_output=True).returncode != 0:
            self.skipTest("nothing can be mounted here")
        try:
            done = subprocess.run([BIN / "titanctl", "cluster", "debug", "--out", self.folder / "bundle.tar.gz", "--controller", "127.0.0.1:1",
                                   "--timeout", "1"], env={**os.environ, "TMPDIR": str(disk)}, capture_output=True, text=True, timeout=60)
            self.assertEqual(1, done.returncode, done.stderr)
            self.assertIn("set TMPDIR to use another folder", done.stderr)
            self.assertIn("No space left on device", done.stderr)
            self.assertEqual([], list(disk.iterdir()))
        finally:
            subprocess.run(["umount", disk], check=True)
        self.assertEqual([disk], list(self.folder.iterdir()))

    def test_existing_file_is_not_replaced(self):
        file = self.folder / "bundle.tar.gz"
        file.write_text("mine")
        done = subprocess.run([BIN / "titanctl", "cluster", "debug", "--out", file, "--controller", "127.0.0.1:1", "--timeout", "1"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(1, done.returncode)
        self.assertIn("already exists", done.stderr)
        self.assertEqual("mine", file.read_text())


if __name__ == "__main__":
    unittest.main(verbosity=2)

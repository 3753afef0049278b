"""A cluster and a Prometheus that watches it, on loopback."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "testing"), str(HERE.parents[2] / "deploy/grafana")]
from cluster import BIN, SOURCE, Cluster, wait_until  # noqa: E402
from processes import free_port  # noqa: E402

TESTS = Path(os.environ.get("TITAN_TESTS", BIN.parent / "tests"))
RULES = SOURCE / "deploy/prometheus/alerts.yml"
TIMEOUT = 60.0
TRIES = 5
NODES = ("n1", "n2")


def need(program):
    """Skips the calling test if the program is missing; fails it in CI, where everything must be checked."""
    if shutil.which(program) is not None:
        return
    if os.environ.get("CI"):
        raise AssertionError(f"no {program} in PATH: deploy/bootstrap.sh installs Debian's package prometheus, which has it")
    raise unittest.SkipTest(f"no {program} in PATH: not tested here; deploy/bootstrap.sh installs Debian's package prometheus, which has it")


class Prometheus:
    """Scrapes `pages` ({scrape job: addresses}) and evaluates the alerts."""

    def __init__(self, pages, interval="250ms", rules=RULES):
        self.folder = Path(tempfile.mkdtemp(prefix="titan-prometheus-"))
        self.config = self.folder / "prometheus.yml"
        self.interval, self.rules_file = interval, rules
        self._configure(pages)
        self._start()

    def _configure(self, pages):
        self.config.write_text(json.dumps({  # JSON is valid YAML.
            "global": {"scrape_interval": self.interval, "scrape_timeout": self.interval, "evaluation_interval": self.interval},
            "rule_files": [str(self.rules_file)],
            "scrape_configs": [{"job_name": name, "static_configs": [{"targets": targets}]} for name, targets in pages.items()]}))

    def scrape(self, pages):
        """Replaces the scraped pages."""
        self._configure(pages)
        self.process.send_signal(signal.SIGHUP)

    # Prometheus accepts no port 0, and another program may take the free port first: tries again.
    def _start(self):
        for _ in range(TRIES):
            self.address = f"127.0.0.1:{free_port()}"
            with open(self.folder / "log", "ab") as log:
                self.process = subprocess.Popen(
                    ["prometheus", f"--config.file={self.config}", f"--storage.tsdb.path={self.folder / 'data'}",
                     f"--web.listen-address={self.address}", "--log.level=warn"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            if wait_until("a Prometheus", lambda: self._is_ready() or self.process.poll() is not None, TIMEOUT, 0.05) and self.process.poll() is None:
                return
        raise AssertionError(f"Prometheus does not start:\n{(self.folder / 'log').read_text()[-2000:]}")

    def _is_ready(self):
        try:
            return urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=5).status == 200
        except OSError:
            return False

    def _ask(self, path, **values):
        try:
            with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}", urllib.parse.urlencode(values).encode() if values else None,
                                        timeout=30) as answer:
                reply = json.load(answer)
        except urllib.error.HTTPError as refused:
            raise AssertionError(f"{path} {values}: {refused.read().decode()}") from refused
        if reply["status"] != "success" or reply.get("warnings"):
            raise AssertionError(f"{path} {values}: {reply}")
        return reply["data"]

    def query(self, expression):
        """Returns the newest values."""
        return self._ask("query", query=expression)["result"]

    def query_range(self, expression, start, end, step):
        return self._ask("query_range", query=expression, start=start, end=end, step=step)["result"]

    def rules(self):
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def close(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class WatchedCluster(Cluster):
    """A cluster, with a Prometheus if `watch` is set. With `fake`, ranks are stand-ins with this behaviour (tests/worker/node/shim/fake_rank.cc)."""

    def __init__(self, fake=None, watch=True, rules=RULES, interval="250ms", **options):
        super().__init__(workers=0, **options)
        self.prometheus = None
        try:
            for name in NODES:
                self._add_node(name, fake)
            for name in NODES:
                wait_until(f"the page of {name}", (self.folder / f"{name}-ports.json").exists)
            if watch:
                self.prometheus = Prometheus(self.pages(), interval, rules)
        except BaseException:
            self.close()
            raise

    def _add_node(self, name, fake):
        words = ["--rank-binary", str(TESTS / "fake_rank")] if fake is not None else []
        command = [BIN / "titan-worker", "--controller", self.address, "--node", name, "--state", self.folder / name, "--devices",
                   f"cpu:{self.devices}", "--address", "127.0.0.1", "--metrics-port", "0", "--metrics-address", "127.0.0.1", "--port-file",
                   self.folder / f"{name}-ports.json", *words]
        before = self.environment
        self.environment = {**before, "TITAN_TEST_FAKE_RANK": json.dumps(fake)} if fake is not None else before
        self._add(name, command)
        self.environment = before

    def pages(self):
        workers = [json.loads((self.folder / f"{name}-ports.json").read_text())["metrics"] for name in NODES]
        return {"titan-controller": [f"127.0.0.1:{self.metrics_port}"], "titan-worker": [f"127.0.0.1:{port}" for port in workers]}

    def page(self, address):
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as page:
            return page.read().decode()

    def close(self):
        if self.prometheus is not None:
            self.prometheus.close()
        super().close()

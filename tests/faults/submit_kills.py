"""Kills the controller repeatedly under a load of submissions: no acknowledged job may be lost, and none may exist
twice.

    submit_kills.py [--kills 5] [--in-flight 64]

Between two kills the client logs at least 100 acknowledgements. CI runs a few kills, the long form is --kills 50.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from paths import BIN

LOAD = BIN.parent / "tests" / "submit_load"
BETWEEN = 100


class Controller:
    def __init__(self, folder):
        self.folder = folder
        self.ports = folder / "ports.json"
        self.address = "127.0.0.1:0"
        self.log = open(folder / "controller.log", "ab")
        self.start()
        self.address = f"127.0.0.1:{json.loads(self.ports.read_text())['port']}"

    def start(self):
        self.ports.unlink(missing_ok=True)
        begun = time.monotonic()
        self.process = subprocess.Popen(
            [BIN / "titan-controller", "--listen", self.address, "--state", self.folder / "state", "--metrics-port", "-1",
             "--port-file", self.ports], stderr=self.log)
        while not self.ports.exists():
            if self.process.poll() is not None or time.monotonic() - begun > 60:
                sys.exit(f"the controller did not start:\n{(self.folder / 'controller.log').read_text()[-2000:]}")
            time.sleep(0.005)
        return time.monotonic() - begun

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def count_lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    flags = parser.parse_args()
    random.seed(flags.seed)
    with tempfile.TemporaryDirectory(prefix="titan-kills-") as name:
        folder = Path(name)
        acknowledged = folder / "acknowledged"
        controller = Controller(folder)
        load = subprocess.Popen([LOAD, "--controller", controller.address, "--in-flight", str(flags.in_flight), "--seconds",
                                 "100000", "--acknowledged", acknowledged], stdout=subprocess.DEVNULL)
        gaps, starts, before = [], [], 0
        try:
            for kill in range(flags.kills):
                deadline = time.monotonic() + 60
                while count_lines(acknowledged) < before + BETWEEN:
                    if load.poll() is not None or time.monotonic() > deadline:
                        sys.exit(f"kill {kill}: no {BETWEEN} acknowledgements in 60 s (seed {flags.seed})")
                    time.sleep(0.005)
                time.sleep(random.uniform(0, 0.05))
                controller.kill()
                now = count_lines(acknowledged)
                gaps.append(now - before)
                before = now
                starts.append(controller.start())
            load.terminate()  # Calls in flight get their answers; the exit code shows whether one failed.
            load.wait(120)
        finally:
            load.kill()
            load.wait()
        verified = subprocess.run([LOAD, "--controller", controller.address, "--acknowledged", acknowledged, "--verify"],
                                  capture_output=True, text=True)
        controller.process.terminate()
        controller.process.wait()
        result = {"kills": flags.kills, "least_between": min(gaps), "slowest_start_s": round(max(starts), 3), "seed": flags.seed,
                  **(json.loads(verified.stdout) if verified.stdout else {})}
        print(json.dumps(result))
        if load.returncode != 0:
            sys.exit(f"a submission failed: submit_load ended with {load.returncode} (seed {flags.seed})")
        if verified.returncode != 0 or result["lost"] != 0 or min(gaps) < BETWEEN:
            sys.exit(verified.stderr or "acknowledged jobs were lost")


if __name__ == "__main__":
    main()

"""Starts Titan and the programs it is compared with for the benchmarks: two ranks on this machine, one thread each."""

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from paths import BIN, SOURCE

SIZED_MODELS = BIN.parent / "tests/libsized_models.so"  # Built from sized_models.cc.
DEPS = Path(os.environ.get("TITAN_DEPS", SOURCE / ".deps"))


class Ended(Exception):
    """Raised if a program ends without figures. The text is its last output."""


def titan_command(folder, flags, saving=False):
    checkpoint = [] if saving else ["--checkpoint.no_enable"]
    return [BIN / "titanctl", "run", SOURCE / "configs/llama3_tiny.toml", "--nproc", "2", "--nodes", "1", *flags, "--resources.threads_per_rank", "1",
            *checkpoint, "--training.dataloader.order", "per_rank", "--debug.no_deterministic", "--validation.no_enable", "--metrics.no_enable_tensorboard", "--job.dump_folder", folder / "dump"]


def titan_environment(folder):
    return {"XDG_CACHE_HOME": str(folder / "cache")}


def torchtitan_command(folder, flags, restarts=0, program="torchtitan_main.py"):
    """Returns the command of torchtitan, or of another `program` that accepts torchtitan's words."""
    return [DEPS / "venv/bin/python", "-m", "torch.distributed.run", "--max-restarts", restarts, "--nproc_per_node", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint",
            "localhost:0", SOURCE / "tests/bench" / program, "--model.name", "llama3", "--model.flavor", "debugmodel", *flags,
            "--model.hf_assets_path", DEPS / "assets/tokenizer", "--training.dataset", "c4_test", "--training.dataset_path",
            DEPS / "assets/c4_test", "--activation_checkpoint.mode", "none", "--job.dump_folder", folder / "dump"]


def torchtitan_environment():
    # Restarted ranks would find the addresses of the first ones in a shared store.
    return {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PYTHONPATH": str(SOURCE / "tests/peer"), "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1"}


class PeakMemory(threading.Thread):
    """Peak memory of all processes that carry a mark in their environment, with shared pages divided among their users (PSS)."""

    MARK = "TITAN_BENCH_RUN"

    def __init__(self):
        super().__init__(daemon=True)
        self.value = uuid.uuid4().hex
        self.bytes = 0
        self.over = threading.Event()
        self.known = {}  # pid: whether it carries the mark.
        self.foreign = {pid for pid in os.listdir("/proc") if pid.isdigit()}  # Processes from before the program.

    def run(self):
        pause = 0.2
        while not self.over.wait(pause):
            began = time.perf_counter()
            self.bytes = max(self.bytes, sum(self.pss(pid) for pid in self.pids()))
            pause = max(0.2, 50 * (time.perf_counter() - began))  # Reading takes time from cores that are all busy.

    def pids(self):
        there = {pid for pid in os.listdir("/proc") if pid.isdigit()}
        self.foreign &= there  # A new process may reuse the number of one that has ended.
        return [pid for pid in there - self.foreign if self.ours(pid)]

    def ours(self, pid):
        if not self.known.get(pid):  # A process carries its parent's environment until it runs exec.
            try:
                self.known[pid] = f"{self.MARK}={self.value}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                return False
        return self.known[pid]

    @staticmethod
    def pss(pid):
        try:
            return 1024 * int(re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)[1])
        except (OSError, TypeError):
            return 0


def measured(command, environment, folder, meanwhile=None):
    """Runs a command and returns (exit code, output, peak bytes of all its processes).

    meanwhile(memory, over) runs on a separate thread; the event `over` is set when the program has ended.
    """
    memory = PeakMemory()
    threads = [memory, *([threading.Thread(target=meanwhile, args=(memory, memory.over), daemon=True)] if meanwhile else [])]
    for thread in threads:
        thread.start()
    with tempfile.TemporaryFile("w+") as output:
        code = subprocess.run([str(word) for word in command], env={**os.environ, **environment, memory.MARK: memory.value}, cwd=folder,
                              check=False, stdout=output, stderr=subprocess.STDOUT).returncode
        output.seek(0)
        text = output.read()
    memory.over.set()
    for thread in threads:
        thread.join()
    return code, text, memory.bytes


def pid_of_rank(memory, rank):
    """Returns the process of this rank of either program; None while it does not exist."""
    for pid in memory.pids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        wanted = str(rank).encode()
        ours = words[0].endswith(b"titan-rank") and (b"--rank", wanted) in zip(words, words[1:])
        theirs = any(word.endswith(b"torchtitan_main.py") for word in words) and b"RANK=" + wanted in environment
        if ours or theirs:
            return int(pid)
    return None

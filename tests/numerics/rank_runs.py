"""Runs titan-rank without any daemon, and reads its output. Needs numpy only."""

import itertools
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from paths import BIN

ASSETS = Path(os.environ["TITAN_DEPS"]) / "assets"
LOSS = "loss_metrics/global_avg_loss"
MAX_LOSS = "loss_metrics/global_max_loss"
NORM = "grad_norm"

DATA = {"model.hf_assets_path": ASSETS / "tokenizer", "training.dataset": "c4_test",
        "training.dataset_path": ASSETS / "c4_test"}



def small_model(family, flavor="small"):
    """Returns the flags of a small model of a family (tests/numerics/small_models): "llama3", "qwen3", "qwen3_moe",
    "deepseek_v3", "llama4", "llama4_irope" or "gpt_oss"; flavor "packed": attention inside documents."""
    return {"experimental.custom_import": BIN.parent / "tests" / "libsmall_models.so",
            "model.name": "small_" + family, "model.flavor": flavor}


# name -> (data_parallel_replicate_degree, data_parallel_shard_degree)
MESHES = {"1 rank": (1, 1), "FSDP 2": (1, 2), "DDP 2": (2, 1), "HSDP 2x2": (2, 2)}
TENSOR_MESHES = {"TP 2": (1, 1, 2)}  # And tensor_parallel_degree.


def mesh_flags(mesh, rows):
    """Returns the flags for one of MESHES or TENSOR_MESHES over a global batch of `rows`, and its world size."""
    replicate, shard, tensor = [*{**MESHES, **TENSOR_MESHES}[mesh], 1][:3]
    return {"parallelism.data_parallel_replicate_degree": replicate, "parallelism.data_parallel_shard_degree": shard,
            "parallelism.tensor_parallel_degree": tensor,
            "training.local_batch_size": rows // (replicate * shard)}, replicate * shard * tensor


def to_toml(flags):
    sections = {}
    for key, value in flags.items():
        section, name = key.rsplit(".", 1)
        sections.setdefault(section, {})[name] = value
    lines = []
    for section, values in sections.items():
        lines.append(f"[{section}]")
        for name, value in values.items():
            lines.append(f"{name} = {json.dumps(str(value) if isinstance(value, Path) else value)}")
    return "\n".join(lines) + "\n"


class RankRun:
    """Starts the ranks of one stand-alone job, waits for them and reads their output."""

    def __init__(self, folder, flags, world):
        self.folder = Path(folder)
        self.dump = self.folder / "dump"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config = self.folder / "job.toml"
        self.config.write_text(to_toml({**DATA, "job.dump_folder": self.dump, "resources.ranks": world,
                                        "resources.threads_per_rank": 1, "metrics.log_freq": 1, "debug.seed": 0, **flags}))
        self.start(world)

    def start(self, world):
        listener = socket.create_server(("127.0.0.1", 0))  # Rank 0 inherits it, so no port has to be chosen in advance.
        os.set_inheritable(listener.fileno(), True)
        store = f"127.0.0.1:{listener.getsockname()[1]}"
        self.ranks = []
        for rank in range(world):
            command = [BIN / "titan-rank", "--config", self.config, "--rank", rank, "--world", world, "--store", store,
                       "--run-dir", self.folder / "run"]
            if rank == 0:
                command += ["--listen-fd", listener.fileno()]
            with open(self.folder / f"rank-{rank}.out", "wb") as out:
                self.ranks.append(subprocess.Popen([str(word) for word in command], stdout=out, stderr=subprocess.STDOUT,
                                                   pass_fds=[listener.fileno()] if rank == 0 else []))
        listener.close()

    def wait(self, timeout=120):
        deadline = time.monotonic() + timeout
        try:
            codes = [rank.wait(max(0.1, deadline - time.monotonic())) for rank in self.ranks]
        except subprocess.TimeoutExpired:
            codes = ["timeout"]
        finally:
            self.kill()
        if any(codes):
            for rank in range(len(self.ranks)):
                tail = (self.folder / f"rank-{rank}.out").read_text(errors="replace")[-3000:]
                print(f"--- rank {rank} of {self.folder}\n{tail}", file=sys.stderr)
            raise RuntimeError(f"ranks of {self.folder} ended with {codes}")
        return self

    def kill(self):
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait()

    def metrics(self):
        """Returns the metrics by step; the last line of a step counts."""
        lines = (self.dump / "metrics.jsonl").read_text().split("\n")[:-1]
        return {row["step"]: row for row in map(json.loads, lines)}

    def checkpoint(self, step):
        return read_checkpoint(self.dump / "checkpoint" / f"step-{step}")


class LocalRun(RankRun):
    """All ranks as threads of one titan-rank."""

    def start(self, world):
        command = [BIN / "titan-rank", "--config", self.config, "--run-dir", self.folder / "run",
                   "--comm.mode", "local_tensor"]
        with open(self.folder / "rank-0.out", "wb") as out:
            self.ranks = [subprocess.Popen([str(word) for word in command], stdout=out, stderr=subprocess.STDOUT)]


class DaemonRun(RankRun):
    """The same job submitted to a cluster (tests/testing), with its ranks spread over two nodes if there are several."""

    def __init__(self, cluster, folder, flags, world):
        self.cluster = cluster
        super().__init__(folder, flags, world)

    def start(self, world):
        nodes = 2 if world > 1 else 1
        self.job = self.cluster.submit(self.config, "--nproc", world, "--nodes", nodes)

    def wait(self, timeout=120):
        self.cluster.succeed(self.job, timeout)
        return self


NUMPY_TYPES = {"F64": numpy.float64, "F32": numpy.float32, "I64": numpy.int64, "BF16": numpy.uint16, "U8": numpy.uint8}


def widened(values, name):
    """Widens bfloat16, which numpy lacks: its bits are the upper half of a float32."""
    return (values.astype(numpy.uint32) << 16).view(numpy.float32) if name == "BF16" else values


def points(progressions):
    """Returns all points of [[base, [count, delta], ...], ...]."""
    for base, *steps in progressions:
        for index in itertools.product(*(range(count) for count, _ in steps)):
            yield tuple(start + sum(i * delta[c] for i, (_, delta) in zip(index, steps)) for c, start in enumerate(base))


def read_checkpoint(folder):
    """Reads all tensors of a step folder and joins the ranks' pieces, by the documented format and without the product's code."""
    manifest = json.loads((folder / "manifest.json").read_text())
    files = [read_safetensors(folder / file["name"]) for file in manifest["files"]]
    records, pieces = manifest["tensors"], {}
    for numbers, shape, places in manifest["rows"]:
        for (number,), (file, *offset) in itertools.product(points(numbers), list(points(places))):
            pieces.setdefault((number, file), []).append((offset, shape))
    wholes = [numpy.empty(record["shape"], NUMPY_TYPES[record["dtype"]]) for record in records]
    for (number, file), boxes in pieces.items():
        for copy, (offset, shape) in enumerate(sorted(boxes)):
            name = records[number]["key"] + (f"#{copy}" if copy else "")
            wholes[number][tuple(slice(o, o + n) for o, n in zip(offset, shape))] = files[file][name]
    return {record["key"]: widened(whole, record["dtype"]) for record, whole in zip(records, wholes)}


def read_safetensors(path):
    """Returns arrays by name, read by the published format."""
    data = numpy.memmap(path, dtype=numpy.uint8, mode="r")
    size = int(data[:8].view(numpy.uint64)[0])
    header = json.loads(bytes(data[8:8 + size]))
    header.pop("__metadata__", None)
    return {name: data[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]].view(
        NUMPY_TYPES[entry["dtype"]]).reshape(entry["shape"]) for name, entry in header.items()}


def rms(values):
    values = numpy.asarray(values, numpy.float64)
    return float(numpy.sqrt(numpy.mean(values * values)))


def relative_rms(got, want):
    """Returns the rms of the difference divided by the rms of `want`; all-zero tensors must be equal."""
    size = rms(want)
    error = rms(numpy.asarray(got, numpy.float64) - numpy.asarray(want, numpy.float64))
    return error / size if size else (0.0 if error == 0 else float("inf"))


class Report:
    """Collects checks, prints each with its figure and limit, and reports at the end whether all held."""

    def __init__(self):
        self.checked, self.failed = 0, []

    def below(self, what, value, limit):
        good = value <= limit  # False for nan.
        self.checked += 1
        print(f"{'ok  ' if good else 'FAIL'} {what}: {value:.3g} (limit {limit:g})", flush=True)
        if not good:
            self.failed.append(what)

    def above(self, what, value, limit):
        good = value > limit
        self.checked += 1
        print(f"{'ok  ' if good else 'FAIL'} {what}: {value:.3g} (more than {limit:g})", flush=True)
        if not good:
            self.failed.append(what)

    def same_curves(self, name, got, want, steps, limit):
        """Compares loss and gradient norm of steps 1 to `steps`, from metrics by step."""
        for key in (LOSS, NORM):
            self.below(f"{name}: {key}", max(abs(got[s][key] / want[s][key] - 1) for s in range(1, steps + 1)), limit)

    def same_state(self, name, got, want, limit):
        """Compares every tensor of two checkpoints."""
        if sorted(got) != sorted(want):
            raise SystemExit(f"{name}: other tensors than on 1 rank: {sorted(set(got) ^ set(want))}")
        errors = {key: relative_rms(value, want[key]) for key, value in got.items()}
        worst = max(errors, key=errors.get)
        self.below(f"{name}: weights and optimizer state, worst {worst}", errors[worst], limit)

    def finish(self):
        if not self.checked:
            sys.exit("nothing was checked: no case has that name")
        if self.failed:
            sys.exit(f"{len(self.failed)} checks failed: " + "; ".join(self.failed))
        print("all checks hold")

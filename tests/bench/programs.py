"""How the benchmarks start Titan and torchtitan: two ranks on this machine, one thread each."""

import os
from pathlib import Path

SOURCE = Path(os.environ.get("TITAN_SOURCE", Path(__file__).resolve().parents[2]))
BIN = Path(os.environ.get("TITAN_BIN", SOURCE / "build/release/bin"))
DEPS = Path(os.environ.get("TITAN_DEPS", SOURCE / ".deps"))


def titan_command(folder, flags):
    return [BIN / "titanctl", "run", SOURCE / "configs/llama3_tiny.toml", "--nproc", "2", "--nodes", "1", *flags, "--resources.threads_per_rank", "1",
            "--checkpoint.no_enable", "--validation.no_enable", "--metrics.no_enable_tensorboard", "--job.dump_folder", folder / "dump"]


def titan_environment(folder):
    return {"XDG_CACHE_HOME": str(folder / "cache")}


def torchtitan_command(folder, flags):
    return [DEPS / "venv/bin/python", "-m", "torch.distributed.run", "--nproc_per_node", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint",
            "localhost:0", SOURCE / "tests/bench/torchtitan_main.py", "--model.name", "llama3", "--model.flavor", "debugmodel", *flags,
            "--model.hf_assets_path", DEPS / "assets/tokenizer", "--training.dataset", "c4_test", "--training.dataset_path",
            DEPS / "assets/c4_test", "--activation_checkpoint.mode", "none", "--job.dump_folder", folder / "dump"]


def torchtitan_environment():
    return {"PYTHONPATH": str(SOURCE / "tests/peer"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

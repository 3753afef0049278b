"""Trains the small models of oracle_models.py in their oracles' own classes, many in one process, and records them for
tests/numerics.

  .deps/venv/bin/python tests/peer/ten_steps.py OUT --assets DIR [--seed S] [--steps 10] [--cases a,b]
  .deps/venv/bin/python tests/peer/ten_steps.py OUT --assets DIR --expert-parallel 2 --cases a,b

The first form draws each model's weights (model.safetensors) from the first seed with clear routing decisions on the first batch,
and trains on one rank: torchtitan's models in torchtitan's Trainer, transformers' by train_transformers.py. The second form
trains torchtitan's models again from the same weights, under its own expert parallelism. OUT/CASE holds the weights and case.json
(one_step.py); OUT/CASE.1 and OUT/CASE.2 hold the output of run_peer.py for 1 or 2 ranks (without tensors for transformers).
"""

import argparse
import copy
import os
import sys

import torchtitan_cpu

import torch
from oracle_models import CASES, DEBUG_CASES, SEQ_LEN
from one_step import write_case
from routing import RoutingRecorder
from run_peer import Recorder, start_ranks
from train_transformers import train_transformers
from weights import disturb, draw

GAIN, ROWS = 5, 8
MODELS = {**CASES, **DEBUG_CASES}


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--assets", required=True, help="folder with tokenizer and c4_test")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--expert-parallel", type=int, default=1, dest="nproc")
    return parser.parse_args(arguments)


def job_config(options, name="llama3", flavor="debugmodel", folder="unused"):
    from torchtitan.config import ConfigManager

    flags = {"model.name": name, "model.flavor": flavor, "model.hf_assets_path": os.path.join(options.assets, "tokenizer"),
             "training.dataset_path": os.path.join(options.assets, "c4_test"), "training.seq_len": SEQ_LEN,
             "training.steps": options.steps, "training.local_batch_size": ROWS // options.nproc,
             "training.mixed_precision_param": "float32", "lr_scheduler.warmup_steps": 2, "activation_checkpoint.mode": "none",
             "metrics.log_freq": 1, "parallelism.expert_parallel_degree": options.nproc,
             "checkpoint.initial_load_path": folder, "checkpoint.interval": 1_000_000_000, "checkpoint.folder": "unused",
             "job.dump_folder": folder + ".dump"}
    words = ["--checkpoint.enable", "--checkpoint.initial_load_in_hf"]
    for key, value in flags.items():
        words += ["--" + key, str(value)]
    return ConfigManager().parse_args(words)


def batches(options):
    """torchtitan's batches, for the models that it does not train."""
    from torchtitan.components.tokenizer import HuggingFaceTokenizer
    from torchtitan.hf_datasets.text_datasets import build_text_dataloader

    config = job_config(options)
    tokenizer = HuggingFaceTokenizer(config.model.hf_assets_path)
    for inputs, labels in build_text_dataloader(dp_world_size=1, dp_rank=0, tokenizer=tokenizer, job_config=config):
        yield inputs["input"], labels


def draw_weights(oracle, seed, tokens):
    """Gives the model weights of the first seed with clear decisions. Returns that seed and the recorder's margins."""
    recorder = RoutingRecorder(oracle)
    for drawn in range(seed, seed + 1000):
        torch.manual_seed(drawn)
        if oracle.library == "torchtitan":
            with torch.no_grad():
                oracle.module.init_weights()
            disturb(oracle.module, GAIN, expert_bias=oracle.family == "deepseek_v3")  # The other models' weights have no entry for it.
        else:
            draw(oracle.module, GAIN)
        recorder.clear()
        with torch.no_grad():
            oracle.logits(tokens)
        if recorder.decided():
            return drawn, recorder.said()
    raise RuntimeError(f"{oracle.family}: no seed from {seed} on decides clearly")


def train_torchtitan(options, oracle, weights, out):
    from torchtitan import train
    from torchtitan.protocols.train_spec import get_train_spec

    # torchtitan changes numbers of the arguments by its configuration: a copy keeps them in this run.
    get_train_spec(oracle.family).model_args["golden"] = copy.deepcopy(oracle.arguments)
    trainer = train.Trainer(job_config(options, oracle.family, "golden", weights))
    recorder = Recorder(out)
    recorder.attach(trainer)
    trainer.checkpointer.save = lambda *_args, **_named: None  # Only the initial load is wanted.
    trainer.train()
    recorder.save_final()
    recorder.detach()
    trainer.close()


def train_one(options, name, first):
    oracle = MODELS[name]()
    weights = os.path.join(options.out, name)
    out = f"{weights}.1"
    os.makedirs(weights)
    os.makedirs(out)
    seed, margins = draw_weights(oracle, options.seed, first)
    write_case(weights, name, oracle, seed, margins)
    if oracle.library == "torchtitan":
        train_torchtitan(options, oracle, weights, out)
    else:
        train_transformers(oracle.module, batches(options), options.steps, out)


def train_again(options, name):
    weights = os.path.join(options.out, name)
    out = f"{weights}.{options.nproc}"
    os.makedirs(out, exist_ok=True)
    train_torchtitan(options, MODELS[name](), weights, out)


def run_rank(options):
    torch.set_num_threads(1)
    torchtitan_cpu.install_models()
    from torchtitan import train

    train.time.sleep = lambda _seconds: None  # The trainer waits two seconds before its last message.
    cases = options.cases.split(",")
    if options.nproc > 1:
        for name in cases:
            train_again(options, name)
    else:
        first, _ = next(batches(options))
        for name in cases:
            train_one(options, name, first)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()


def main():
    options = parse(sys.argv[1:])
    sys.exit(start_ranks(options.nproc, lambda: run_rank(options)))


if __name__ == "__main__":
    main()

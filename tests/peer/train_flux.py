"""Trains a tiny Flux in torchtitan's own FluxTrainer on CPU, with the random numbers that Titan draws, and records it like run_peer.py.

  train_flux.py ROOT --draws DRAWS --validation-draws DRAWS [--nproc 1,2] [--steps 5] [--seed S] [-- torchtitan flags...]

ROOT holds what flux_folders.py wrote, or gets it first; then the program prints "written". ROOT/peer-N gets the record of N ranks. A file of draws has what dump_flux_draws
writes: every random number of a row, by its number. torchtitan reads pictures and captions by itself. Its generator is replaced by the
table, since its numbers depend on the rank and on the order of the calls.

Fixed are two defects: 0.2.2 attends causally, and the norms of queries and keys have the type's epsilon instead of the released
model's 1e-6.
"""

import argparse
import json
import os
import pathlib
import sys

import torchtitan_cpu  # noqa: F401

import numpy
import torch
from flux_folders import FLAVOR, flavor, write_folders
from run_peer import Recorder, start_ranks

ROWS, SIZE, TOKENS, LATENT = 4, 32, 12, (16, 4, 4)
SAMPLES = 16  # Two of validation's cycles of eight times.


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--draws", type=pathlib.Path, required=True)
    parser.add_argument("--validation-draws", type=pathlib.Path, required=True)
    parser.add_argument("--nproc", default="1,2")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:end])
    options.flags = arguments[end + 1:]
    return options


class Draws:
    """The table of one stream of rows, as one of the ranks meets them: its sample n is row n * ranks + rank."""

    def __init__(self, path, rank, ranks):
        self.table = torch.from_numpy(numpy.fromfile(path)).view(-1, 4 + 2 * numpy.prod(LATENT))
        self.rank, self.ranks = rank, ranks
        self.restart()

    def restart(self):
        self.read = self.encoded = self.used = -1  # The last sample that was read, and of a batch that was encoded or used.

    def row(self, sample):
        return self.table[sample * self.ranks + self.rank]

    def crop(self, _low, count, _shape):
        self.read += 1
        self.kept = 0
        return torch.tensor(min(count - 1, int(self.row(self.read)[0] * count)))

    def keep(self, _count):
        """The number with which a caption is dropped or kept: first T5's, then CLIP's."""
        self.kept += 1
        return 1 - self.row(self.read)[self.kept]

    def latent(self, name, first, like):
        """Consecutive samples' noise (name 0) or autoencoder's draw (name 1)."""
        elements = self.table.shape[1] // 2 - 2
        rows = torch.stack([self.row(first + i)[4 + name * elements:4 + (name + 1) * elements] for i in range(len(like))])
        return rows.view(like.shape).to(like.dtype)

    def autoencoder(self, mean):
        drawn = self.latent(1, self.encoded + 1, mean)
        self.encoded += len(mean)
        return drawn

    def noise(self, latents):
        """In validation a row may come several times in a row; it keeps its noise."""
        copies = len(latents) // (self.encoded - self.used)
        drawn = self.latent(0, self.used + 1, latents[::copies])
        self.used = self.encoded
        return drawn.repeat_interleave(copies, 0)

    def times(self, shape):
        (count,) = shape
        return torch.stack([self.row(self.used - count + 1 + i)[3] for i in range(count)]).float()


class Torch:
    """torch for one module, with other sources of random numbers."""

    def __init__(self, **replaced):
        self.__dict__.update(replaced)

    def __getattr__(self, name):
        return getattr(torch, name)


class Sources:
    """Replaces the generator in torchtitan's modules. Validation has its own table."""

    def __init__(self, training, validation):
        from torchtitan.models.flux import flux_datasets, train, validate
        from torchtitan.models.flux.model import autoencoder

        self.tables, self.now = (training, validation), training
        flux_datasets.torch = Torch(randint=lambda *args: self.now.crop(*args), rand=lambda count: self.now.keep(count))
        autoencoder.torch = Torch(randn_like=lambda mean: self.now.autoencoder(mean))
        train.torch = Torch(randn_like=lambda x: self.now.noise(x), rand=lambda shape: self.now.times(shape))
        validate.torch = Torch(randn_like=lambda x: self.now.noise(x))

    def during_validation(self, validator):
        validate = validator.validate

        def with_its_table(*args, **named):
            training, self.now = self.tables
            self.now.restart()
            validate(*args, **named)
            self.now = training

        validator.validate = with_its_table


class FluxRecorder(Recorder):
    def attach(self, trainer):
        super().attach(trainer)
        trainer.metrics_processor.log_validation = self.record_validation

    def keep_inputs(self, input_dict, labels):
        self.keep("image", labels)
        for name in ("t5_tokens", "clip_tokens"):
            self.keep(name, input_dict[name])

    def record_validation(self, loss, step, **_named):
        if self.rank == 0:
            with open(os.path.join(self.out, "validation.jsonl"), "a") as file:
                file.write(json.dumps({"step": step, "loss": float(loss)}) + "\n")


def adapt():
    """Fixes the two defects, and lets the autoencoder load on a CPU, whose index safetensors does not take."""
    from safetensors.torch import load_file
    from torchtitan.models.attention import ScaledDotProductAttentionWrapper
    from torchtitan.models.flux.model import autoencoder, layers

    autoencoder.load_sft = lambda path, device: load_file(path)

    attend = ScaledDotProductAttentionWrapper.forward
    ScaledDotProductAttentionWrapper.forward = lambda self, q, k, v, **named: attend(self, q, k, v, **(named | {"is_causal": False}))
    build = layers.QKNorm.__init__

    def build_with_epsilon(self, dim):
        build(self, dim)
        self.query_norm.eps = self.key_norm.eps = 1e-6

    layers.QKNorm.__init__ = build_with_epsilon


def words(options, nproc, out):
    root = options.root
    flags = {"job.custom_config_module": "torchtitan.models.flux.job_config", "job.dump_folder": out / "dump", "model.name": "flux",
             "model.flavor": FLAVOR, "training.dataset": "cc12m-test", "training.dataset_path": root / "pictures",
             "training.local_batch_size": ROWS // nproc, "training.steps": options.steps, "training.img_size": SIZE,
             "training.mixed_precision_param": "float32", "encoder.t5_encoder": root / "t5", "encoder.clip_encoder": root / "clip",
             "encoder.autoencoder_path": root / "ae.safetensors", "encoder.max_t5_encoding_len": TOKENS,
             "activation_checkpoint.mode": "none", "metrics.log_freq": 1, "optimizer.implementation": "for-loop",
             "checkpoint.initial_load_path": root / "transformer", "checkpoint.interval": 10**9, "checkpoint.folder": "unused"}
    return [word for key, value in flags.items() for word in ("--" + key, str(value))] + [
        "--checkpoint.enable", "--checkpoint.initial_load_in_hf", *options.flags]


def run_rank(options, nproc):
    from torchtitan.config import ConfigManager
    from torchtitan.models.flux import flux_args, train

    torch.set_num_threads(1)
    adapt()
    rank = int(os.environ["RANK"])
    sources = Sources(*(Draws(path, rank, nproc) for path in (options.draws, options.validation_draws)))
    flux_args[FLAVOR] = flavor()
    out = options.root / f"peer-{nproc}"
    trainer = train.FluxTrainer(ConfigManager().parse_args(words(options, nproc, out)))
    if trainer.job_config.validation.enable:
        sources.during_validation(trainer.validator)
    recorder = FluxRecorder(str(out))
    recorder.attach(trainer)
    trainer.checkpointer.save = lambda *_args, **_named: None  # Only the initial load is wanted.
    trainer.train()
    recorder.save_final()
    torch.distributed.barrier()


def main():
    options = parse(sys.argv[1:])
    from torchtitan import train
    from torchtitan.models.flux import train as flux_train  # noqa: F401

    train.time.sleep = lambda _seconds: None  # The trainer waits two seconds before its last message.
    if not (options.root / "transformer").exists():
        write_folders(options.root, options.seed, SAMPLES)
    print("written", flush=True)
    for nproc in map(int, options.nproc.split(",")):
        (options.root / f"peer-{nproc}").mkdir()
        if error := start_ranks(nproc, lambda nproc=nproc: run_rank(options, nproc)):
            sys.exit(error)


if __name__ == "__main__":
    main()

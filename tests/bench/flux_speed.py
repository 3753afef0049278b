"""Compares Titan with torchtitan: images per second while Flux trains, and the peak memory of all processes (PSS), with FSDP over two
ranks of one thread each, alternating.

  .deps/venv/bin/python tests/bench/flux_speed.py [--rounds 3] [--steps 6] [--image-size 128] [--batch 2] [--no-peer] [-- flags of both...]

The job is torchtitan's recipe flux_debug in test mode, where encoders have random weights: flux-debug (258 million parameters), CLIP-L, the
released autoencoder, full recomputation, dropped captions. T5 has one of the 24 layers of XXL and 64 tokens, so that the job fits a small machine.
Both read the same tar archive of pictures. Images per second are those of both ranks, by the time between the lines of steps; the median
of a run's steps counts, without the first two.
"""

import argparse
import dataclasses
import io
import json
import statistics
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from alternating import middle, ratio, run_alternating, with_spread
from measures import WARM, steps_of
from programs import BIN, DEPS, SOURCE, Ended, measured, titan_environment, torchtitan_environment

RANKS, PICTURES, WIDTH, HEIGHT = 2, 32, 320, 256
T5 = {"architectures": ["T5EncoderModel"], "model_type": "t5", "d_model": 4096, "d_kv": 64, "d_ff": 10240, "num_layers": 1, "num_heads": 64,
      "vocab_size": 2304, "feed_forward_proj": "gated-gelu", "relative_attention_num_buckets": 32, "layer_norm_epsilon": 1e-6}
CLIP = {"architectures": ["CLIPTextModel"], "model_type": "clip_text_model", "hidden_size": 768, "intermediate_size": 3072,
        "num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 49408, "max_position_embeddings": 77, "hidden_act": "quick_gelu",
        "eos_token_id": 2, "layer_norm_eps": 1e-5}


@dataclasses.dataclass
class Run:
    speed: float  # Images per second, of all ranks.
    loss: float  # Of the last step.
    peak: int  # Bytes of all processes.
    first_step: float  # Seconds from the launch.


def write_assets(folder):
    for name, config in (("t5", T5), ("clip", CLIP)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    (folder / "pictures").mkdir()
    numbers = np.random.default_rng(1)
    with tarfile.open(folder / "pictures/shard-000.tar", "w") as archive:
        for i in range(PICTURES):
            file = io.BytesIO()
            smooth = Image.fromarray(numbers.integers(0, 256, (32, 40, 3), dtype=np.uint8)).resize((WIDTH, HEIGHT))
            smooth.save(file, "JPEG", quality=85)
            for name, data in ((f"{i:06d}.jpg", file.getvalue()), (f"{i:06d}.txt", f"a picture of the number {i}".encode())):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def flags_of(options, assets, dump):
    flags = {"model.name": "flux", "model.flavor": "flux-debug", "model.hf_assets_path": DEPS / "assets/tokenizer", "training.dataset": "cc12m-test",
             "training.dataset_path": assets / "pictures", "training.img_size": options.image_size, "training.local_batch_size": options.batch,
             "training.steps": options.steps, "training.classifier_free_guidance_prob": 0.447, "training.max_norm": 2.0,
             "training.mixed_precision_param": "float32", "encoder.t5_encoder": assets / "t5", "encoder.clip_encoder": assets / "clip",
             "encoder.autoencoder_path": assets / "ae", "encoder.max_t5_encoding_len": 64, "optimizer.lr": 8e-4, "lr_scheduler.warmup_steps": 1,
             "lr_scheduler.decay_ratio": 0.0, "activation_checkpoint.mode": "full", "metrics.log_freq": 1, "job.dump_folder": dump}
    return ["--training.test_mode", *(word for key, value in flags.items() for word in ("--" + key, str(value))), *options.words]


def titan_words(options, assets, folder):
    return [BIN / "titanctl", "run", SOURCE / "configs/llama3_tiny.toml", "--nproc", RANKS, "--nodes", "1", *flags_of(options, assets, folder / "dump"),
            "--resources.threads_per_rank", "1", "--checkpoint.no_enable", "--validation.no_enable", "--debug.no_deterministic",
            "--metrics.no_enable_tensorboard"]


def torchtitan_words(options, assets, folder):
    return [DEPS / "venv/bin/python", "-m", "torch.distributed.run", "--nproc_per_node", RANKS, "--rdzv_backend", "c10d", "--rdzv_endpoint",
            "localhost:0", SOURCE / "tests/bench/torchtitan_flux_main.py", "--job.custom_config_module", "torchtitan.models.flux.job_config",
            *flags_of(options, assets, folder / "dump")]


def run(words, environment, options, assets):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        command = words(options, assets, folder)
        began = time.time()
        code, output, peak = measured(command, environment(folder), folder)
    steps = steps_of(output)
    gaps = [after.at - before.at for before, after in zip(steps, steps[1:]) if after.number > WARM]
    if code != 0 or not gaps:
        raise Ended(f"{command[0]} ended with {code}:\n{output[-3000:]}")
    return Run(RANKS * options.batch / statistics.median(gaps), steps[-1].loss, peak, steps[0].at - began)


def main():
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--image-size", type=int, default=128)
    parser.add_argument("--batch", type=int, default=2, help="images of a rank")
    parser.add_argument("--no-peer", action="store_true")
    options = parser.parse_args(words[:end])
    options.words = words[end + 1:]
    if options.steps <= WARM:
        parser.error(f"--steps {options.steps}: the first {WARM} do not count")
    with tempfile.TemporaryDirectory() as assets:
        assets = Path(assets)
        write_assets(assets)
        programs = {"Titan": lambda: run(titan_words, titan_environment, options, assets)}
        if not options.no_peer:
            programs["torchtitan"] = lambda: run(torchtitan_words, lambda _: torchtitan_environment(), options, assets)
        found, failed = run_alternating(programs, options.rounds)
    if failed:
        sys.exit("\n".join(failed.values()))
    for name, runs in found.items():
        relative = ratio(runs, found.get("torchtitan", []), "speed")
        print(f"{name:<12}{with_spread(runs, 'speed', digits=3):>8} images/s, loss {runs[-1].loss:.4f}, {middle(runs, 'peak') / 2**20:,.0f} MiB, "
              f"{with_spread(runs, 'first_step', digits=1)} s to step 1"
              f"{f'  {relative:.2f} x torchtitan' if relative else ''}")


if __name__ == "__main__":
    main()

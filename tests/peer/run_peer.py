"""Runs torchtitan 0.2.2's own Trainer on CPU and records its results (see README.md).

  run_peer.py --out DIR [--nproc N] [--threads T] [--weights HF_DIR [--seed S --gain G]] [--muon] [--save] [--float8-in-float64] -- torchtitan flags...

With --weights training starts from that Hugging Face folder; if it is missing, it is made first (from seed and gain). With
--float8-in-float64 torchao's emulated products are summed in float64, which shows the effect of single roundings. With --muon,
and one rank, torch.optim.Muon takes the layers' matrices and torchtitan's AdamW the rest, both at the flags' learning rate. With
--save torchtitan writes the checkpoints that its flags request, and resumes from those in OUT/dump/checkpoint.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import sys
import traceback

import torchtitan_cpu

import torch

PORT_DIGITS = 5


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--nproc", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--weights")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gain", type=float, default=5)
    parser.add_argument("--name", default="llama3")
    parser.add_argument("--flavor", default="debugmodel")
    parser.add_argument("--muon", action="store_true")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--float8-in-float64", action="store_true")
    parser.add_argument("flags", nargs="*", help="after --: torchtitan's own flags")
    return parser.parse_args(arguments)


def become_rank(rank, nproc, port, run):
    """Runs a rank in a forked process; never returns."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(nproc), MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                      TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")
    try:
        run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    # torchtitan's threads sometimes abort a process that exits normally.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def start_ranks(nproc, run):
    """Calls `run` as each rank, in forks of this process, which imports for all of them. The rendezvous store is in this process,
    on a port that the system chooses. Returns an error as text, or None."""
    from torchtitan import train  # noqa: F401

    ports, tell = os.pipe()
    ranks = []
    for rank in range(nproc):
        process = os.fork()
        if process == 0:
            become_rank(rank, nproc, os.read(ports, PORT_DIGITS).decode().strip(), run)
        ranks.append(process)
    # Created after the forks, which must not inherit its threads.
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(tell, (str(store.port).rjust(PORT_DIGITS) * nproc).encode())
    codes = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
    return f"peer ranks ended with {codes}" if any(codes) else None


def full(tensor):
    """The whole tensor on every rank (a collective if it is sharded), as plain fp32."""
    tensor = tensor.detach()
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    return tensor.clone().contiguous()


class Recorder:
    """Patches functions of the trainer so that it records its results."""

    def __init__(self, out):
        self.out = out
        self.rank = int(os.environ["RANK"])
        self.first = {}
        self.clips = 0

    def attach(self, trainer):
        from torchtitan import train

        self.trainer = trainer
        processor, clip = trainer.metrics_processor, train.dist_utils.clip_grad_norm_
        self.detach = lambda: setattr(train.dist_utils, "clip_grad_norm_", clip)  # The only patch that outlives the trainer.
        log = processor.log
        steps = os.path.join(self.out, "steps.jsonl")

        def log_and_record(step, average, largest, norm, *args, **named):
            if self.rank == 0:
                with open(steps, "a") as file:
                    file.write(json.dumps({"step": step, "loss": float(average), "max_loss": float(largest),
                                           "grad_norm": float(norm)}) + "\n")
            return log(step, average, largest, norm, *args, **named)

        def clip_and_record(*args, **named):
            self.clips += 1
            if self.clips == 1:
                self.save_first_step()
            return clip(*args, **named)

        processor.log = log_and_record
        train.dist_utils.clip_grad_norm_ = clip_and_record
        trainer.model_parts[0].register_forward_hook(self.keep_logits)
        step = trainer.forward_backward_step

        def step_and_record(*, input_dict, labels, **named):
            if self.clips == 0 and not self.first:
                self.save("initial.safetensors", self.model_state())
            self.keep_inputs(input_dict, labels)
            return step(input_dict=input_dict, labels=labels, **named)

        trainer.forward_backward_step = step_and_record

    def keep_inputs(self, input_dict, labels):
        self.keep("tokens", input_dict["input"])
        self.keep("labels", labels)

    def keep(self, name, tensor):
        if self.clips == 0 and name not in self.first:
            self.first[name] = tensor.detach().clone()

    def keep_logits(self, _module, _inputs, logits):
        if int(os.environ["WORLD_SIZE"]) == 1:
            self.keep("logits", logits)

    def save_first_step(self):
        tensors, self.first = self.first, {}
        for fqn, parameter in self.trainer.model_parts[0].named_parameters():
            tensors["grad." + fqn] = full(parameter.grad)
        self.save("step1.safetensors", tensors)

    def model_state(self):
        model = self.trainer.model_parts[0]
        biases = [(name, value) for name, value in model.named_buffers() if name.endswith("moe.expert_bias")]
        return {name: full(value) for name, value in [*model.named_parameters(), *biases]}

    def save_final(self):
        self.save("final.safetensors", self.model_state())

    def save(self, name, tensors):
        from safetensors.torch import save_file

        if self.rank == 0:
            save_file({key: value.contiguous() for key, value in tensors.items()}, os.path.join(self.out, name))


def take_muon(trainer):
    """Runs another optimizer under torchtitan's own schedule, which supports only AdamW and Adam."""
    container, schedule = trainer.optimizers, trainer.lr_schedulers
    (adamw,) = container.optimizers
    group = adamw.param_groups[0]
    kept = {key: group[key] for key in ("betas", "eps", "weight_decay")}
    lr, (factor,) = group["initial_lr"], schedule.schedulers[0].lr_lambdas
    matrices, others = [], []
    for name, parameter in trainer.model_parts[0].named_parameters():
        (matrices if name.startswith("layers.") and parameter.dim() == 2 else others).append(parameter)
    container.optimizers = [
        torch.optim.Muon(matrices, lr=lr, weight_decay=kept["weight_decay"], momentum=0.95, nesterov=True, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=lr, **kept)]
    schedule.schedulers = [torch.optim.lr_scheduler.LambdaLR(one, factor) for one in container.optimizers]


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run_rank(options):
    torch.set_num_threads(options.threads)
    if options.name != "llama3":
        torchtitan_cpu.install_models()
    if "--quantize.linear.float8.emulate" in options.flags:
        torchtitan_cpu.emulate_named_recipes()
    if options.float8_in_float64:
        torchtitan_cpu.sum_float8_in_float64()
    from torchtitan import train
    from torchtitan.config import ConfigManager
    from torchtitan.tools.logging import init_logger

    init_logger()
    train.time.sleep = lambda _seconds: None  # The trainer waits two seconds before its last message.
    flags = list(options.flags)
    if options.weights:
        weights = os.path.join(options.weights, "model.safetensors")
        if not os.path.exists(weights) and os.environ["RANK"] == "0":
            from make_weights import make_weights

            make_weights(options.weights, options.flavor, options.seed, options.gain, options.name)
        flags += ["--checkpoint.enable", "--checkpoint.initial_load_path", options.weights,
                  "--checkpoint.initial_load_in_hf", "--checkpoint.interval", "1000000000",
                  "--checkpoint.folder", "unused"]
    config = ConfigManager().parse_args(["--model.name", options.name, "--model.flavor", options.flavor, "--metrics.log_freq", "1",
                                         "--job.dump_folder", os.path.join(options.out, "dump"), *flags])
    trainer = train.Trainer(config)
    if options.muon:
        take_muon(trainer)
    recorder = Recorder(options.out)
    recorder.attach(trainer)
    if not options.save:
        trainer.checkpointer.save = lambda *_args, **_named: None  # Only the initial load is wanted.
    trainer.train()
    recorder.save_final()
    if recorder.rank == 0:
        inputs = {"weights": weights} if options.weights else {}
        if config.training.dataset_path:
            inputs["dataset"] = os.path.join(config.training.dataset_path, "data.json")
        versions = {name: importlib.metadata.version(name) for name in ("torch", "torchtitan", "safetensors")}
        with open(os.path.join(options.out, "result.json"), "w") as file:
            json.dump({"versions": versions, "flags": options.flags, "nproc": options.nproc, "seed": options.seed,
                       "gain": options.gain, "sha256": {k: sha256(v) for k, v in inputs.items()}}, file, indent=1)
    torch.distributed.barrier()


def main():
    options = parse(sys.argv[1:])
    os.makedirs(options.out, exist_ok=True)
    sys.exit(start_ranks(options.nproc, lambda: run_rank(options)))


if __name__ == "__main__":
    main()

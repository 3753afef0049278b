"""Prints a Markdown table that compares Titan with torchtitan (GPT-OSS: transformers) over families, meshes of two ranks, types
and lengths, alternating on this machine.

  .deps/venv/bin/python tests/bench/speed_table.py [--rounds 3] [--steps 5] [--only TEXT] [--what speed,first-step] [--compiled] [--list]

--what chooses the columns:
  speed        tokens per second and rank while training, and the peak memory of all processes (PSS)
  first-step   seconds from the launch to the first finished step; the same runs
  checkpoint   an asynchronous save inside the run: how much later the next step came (the stall), and the bytes per second from the
               saved step's line until its checkpoint was published
  loss         three steps from the same weights and batches, in one run each: how far the losses are apart, at most 2e-3 in bf16
  recovery     seconds from the SIGKILL of rank 1, once a checkpoint is published, until the next trained step (torchrun --max-restarts 1)

--compiled runs both with compile.enable; torchtitan's compilation in its first step is not part of its speed.

Times are those that both programs print before each step's line. A program that does not run a case has no figures; the reason is
printed below the table.
"""

import argparse
import dataclasses
import datetime
import subprocess
import tempfile
from importlib.metadata import version

from alternating import run_alternating, ratio_with_spread, with_spread
from measures import WARM, flags_of, run
from processor import processor
from programs import DEPS, SIZED_MODELS, SOURCE, Ended

BF16, FP32 = (["--training.mixed_precision_param", name] for name in ("bfloat16", "float32"))
DEGREE = "--parallelism.{}_parallel_degree"
SHARD_1 = ["--parallelism.data_parallel_shard_degree", "1"]
STAGES = [*SHARD_1, DEGREE.format("pipeline"), "2", "--parallelism.pipeline_parallel_schedule"]


@dataclasses.dataclass
class Case:
    model: str  # For both programs.
    words: list  # For both programs. Without FSDP torchtitan has no mixed precision: fp32 for both.
    batch: int = 1  # Rows per rank.
    seq_len: int = 256
    peer: str = "torchtitan"  # "transformers" where torchtitan lacks the model: plain runs only.
    ours: list = dataclasses.field(default_factory=list)  # Words for Titan alone.


DEBUG = "llama3/debugmodel"
CASES = {
    "Llama 3, FSDP 2, bf16": Case(DEBUG, BF16),
    "Llama 3, FSDP 2, fp32": Case(DEBUG, FP32),
    "Llama 3, rows of 2,048, FSDP 2, bf16": Case(DEBUG, BF16, batch=8, seq_len=2048),
    "Llama 3, rows of 8,192, FSDP 2, bf16": Case(DEBUG, BF16, batch=2, seq_len=8192),
    "Llama 3, a row of 16,384, FSDP 2, bf16": Case(DEBUG, BF16, seq_len=16384),
    "Llama 3, a row of 32,768, FSDP 2, bf16": Case(DEBUG, BF16, seq_len=32768),
    "Llama 3 with 128,256 tokens in its vocabulary, FSDP 2, bf16":
        Case("llama3/vocabulary_128256", BF16, batch=4, ours=["--experimental.custom_import", SIZED_MODELS, "--model.name", "sized_llama3"]),
    "Llama 3, rows of 2,048, FSDP 2, fp32": Case(DEBUG, FP32, batch=2, seq_len=2048),
    "Llama 3, rows of 8,192, FSDP 2, fp32": Case(DEBUG, FP32, batch=2, seq_len=8192),
    "Llama 3 bench, FSDP 2, fp32": Case("llama3/bench", FP32, batch=4, seq_len=1024),
    "Llama 3 bench, FSDP 2, bf16": Case("llama3/bench", BF16, batch=4, seq_len=1024),
    # The same work on each mesh: 1,024 tokens per step over both ranks.
    "1,024 tokens, Llama 3, FSDP 2, fp32": Case(DEBUG, FP32, batch=2),
    "1,024 tokens, Llama 3, TP 2, fp32": Case(DEBUG, [*FP32, *SHARD_1, DEGREE.format("tensor"), "2"], batch=4),
    "1,024 tokens, Llama 3, PP 2 (1F1B), fp32": Case(DEBUG, [*FP32, *STAGES, "1F1B"], batch=4),
    "1,024 tokens, Llama 3, PP 2 (zero bubble), fp32": Case(DEBUG, [*FP32, *STAGES, "ZBVZeroBubble"], batch=4),
    "1,024 tokens, Llama 3, FSDP 2, bf16": Case(DEBUG, BF16, batch=2),
    "1,024 tokens, Llama 3, CP 2, bf16": Case(DEBUG, [*BF16, *SHARD_1, DEGREE.format("context"), "2"], batch=4),
    "1,024 tokens, DeepSeek V3, FSDP 2, bf16": Case("deepseek_v3/debugmodel", BF16, batch=2),
    "1,024 tokens, DeepSeek V3, EP 2, bf16": Case("deepseek_v3/debugmodel", [*BF16, DEGREE.format("expert"), "2"], batch=2),
    "Qwen3, FSDP 2, bf16": Case("qwen3/debugmodel", BF16),
    "Qwen3 with experts, FSDP 2, bf16": Case("qwen3/debugmodel_moe", BF16),
    "DeepSeek V3, FSDP 2, bf16": Case("deepseek_v3/debugmodel", BF16),
    "Llama 4, FSDP 2, bf16": Case("llama4/debugmodel", BF16),
    "Qwen3, rows of 1,024, FSDP 2, bf16": Case("qwen3/debugmodel", BF16, seq_len=1024),
    "Qwen3 with experts, rows of 1,024, FSDP 2, bf16": Case("qwen3/debugmodel_moe", BF16, seq_len=1024),
    "DeepSeek V3, rows of 1,024, FSDP 2, bf16": Case("deepseek_v3/debugmodel", BF16, seq_len=1024),
    "Llama 4, rows of 1,024, FSDP 2, bf16": Case("llama4/debugmodel", BF16, seq_len=1024),
    "GPT-OSS compared with transformers, FSDP 2, bf16": Case("gpt_oss/debugmodel", BF16, peer="transformers"),
}
LOSS_BAND = 2e-3  # The band of tests/numerics/golden_parity.py.
# Keyed by --what: (title, member of Run, scale, digits). Each is a column of both programs and their ratio.
COLUMNS = {
    "speed": [("tokens/s a rank", "speed", 1, 0), ("MiB", "peak", 2**-20, 0)],
    "first-step": [("launch to step 1, s", "first_step", 1, 1)],
    "checkpoint": [("stall, ms", "stall", 1e3, 0), ("published after, ms", "save", 1e3, 0), ("MiB/s", "bandwidth", 2**-20, 0)],
    "recovery": [("recovery, s", "recovery", 1, 1)],
    "loss": [("loss of step 3", "loss", 1, 5)],
}


def starts(case, options, kind):
    """Returns {program: what starts a run} for runs of a kind: "plain", "checkpoint" or "recovery"."""
    # A save needs steps before and after it, and a killed rank needs steps that remain: the interval comes twice.
    save_at = None if kind == "plain" else WARM + 2
    steps = options.steps if kind == "plain" else max(options.steps, 2 * save_at + 4)
    words = [*case.words, *(["--compile.enable"] if options.compiled else [])]
    flags = flags_of(case.model, steps, case.seq_len, case.batch, words)
    own = {"Titan": [*flags, *case.ours], case.peer: flags}
    return {program: lambda program=program: run(program, own[program], save_at, kill=kind == "recovery") for program in own}


def cells(found, columns):
    """Yields the cells of one case: both programs' figures and their ratio, column by column."""
    ours, theirs = found.values()
    for _, member, scale, digits in columns:
        yield from (with_spread(ours, member, scale, digits), with_spread(theirs, member, scale, digits), ratio_with_spread(ours, theirs, member))


def losses(case):
    """Returns both programs' losses after three steps from the same weights, and how far they are apart. Errors: Ended."""
    if case.peer != "torchtitan":
        return ["-", "-", "-"]
    name, _, flavor = case.model.partition("/")
    with tempfile.TemporaryDirectory() as folder:
        make = [DEPS / "venv/bin/python", SOURCE / "tests/bench/torchtitan_weights.py", folder, name, flavor]
        if (made := subprocess.run(make, capture_output=True, text=True, check=False)).returncode != 0:
            raise Ended(made.stderr)
        flags = flags_of(case.model, 3, case.seq_len, case.batch, case.words)
        ours, theirs = (run(program, [*flags, *own], weights=folder).loss for program, own in (("Titan", case.ours), (case.peer, [])))
    apart = abs(ours - theirs) / theirs
    return [f"{ours:.5f}", f"{theirs:.5f}", f"{apart:.1e}" if apart <= LOSS_BAND else f"**{apart:.1e}**"]


def reason(output):
    """Returns the last error that a program named; torchrun prints more after it."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "Error:" in line), lines[-1])[:200]


def row(name, case, options):
    """Returns the case's cells, and why a program has none."""
    texts, notes = [name], []
    kinds = [("plain", [what for what in options.what if what in ("speed", "first-step")]),
             *[(what, [what]) for what in options.what if what in ("checkpoint", "recovery")]]
    for kind, whats in kinds:
        if not whats:
            continue
        found, failed = run_alternating(starts(case, options, kind), options.rounds)
        texts += [cell for what in whats for cell in cells(found, COLUMNS[what])]
        notes += [f"{name}, {program}, {' and '.join(whats)}: {reason(why)}" for program, why in failed.items()]
    if "loss" in options.what:
        try:
            texts += losses(case)
        except Ended as why:
            texts += ["-", "-", "-"]
            notes.append(f"{name}, loss: {reason(str(why))}")
    return texts, notes


def chosen(text):
    names = text.split(",")
    if wrong := [name for name in names if name not in COLUMNS]:
        raise argparse.ArgumentTypeError(f"'{wrong[0]}' is none of {', '.join(COLUMNS)}")
    return [name for name in COLUMNS if name in names]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--what", type=chosen, default=chosen("speed,first-step"), help="columns, of " + ", ".join(COLUMNS))
    parser.add_argument("--compiled", action="store_true", help="run both programs with compile.enable")
    parser.add_argument("--list", action="store_true", help="print the cases' names and exit")
    options = parser.parse_args()
    if options.steps <= WARM:
        parser.error(f"--steps {options.steps}: the first {WARM} do not count")
    cases = {name: case for name, case in CASES.items() if options.only in name}
    if not cases:
        parser.error(f"--only {options.only}: no case's name contains it; --list prints the names")
    if options.list:
        print("\n".join(cases))
        return
    print(f"{datetime.date.today():%d %B %Y}, {processor()}, torch {version('torch')}, torchtitan {version('torchtitan')}, rows of "
          f"256 tokens unless said, one thread a rank, rounds: {options.rounds}, steps: {options.steps}"
          f"{', compiled' if options.compiled else ''}.\n")
    titles = [f"{title}, Titan | torchtitan | {'apart' if what == 'loss' else 'ratio'}" for what in options.what for title, *_ in COLUMNS[what]]
    print("| case | " + " | ".join(titles) + " |\n|" + "---|" * (1 + 3 * len(titles)), flush=True)
    notes = []
    for name, case in cases.items():
        texts, why = row(name, case, options)
        print("| " + " | ".join(texts) + " |", flush=True)
        notes += why
    print("".join(f"\n{note}" for note in notes))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Compares Titan with plain PyTorch on one device: the same Llama in bf16, FSDP over one rank, alternating.

  gpu_beside.py speed|launches [--sizes debug,bench,1B] [--rounds N] [--rehearse] -- TITAN-RANK AND ITS FLAGS

speed: each round trains once with each program, in a separate process: PyTorch (gpu_torch_llama.py), the same with torch.compile,
Titan, and Titan with compile.enable. Prints tokens/s, milliseconds per step and peak memory (medians over rounds), and ratios with
their spread over rounds.
launches: counts per step from each program's profiler: kernels (where CUPTI is permitted), launches of kernels and of graphs, copies,
host waits, and LibTorch operations. For Titan also with compile.enable but without graphs.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Titan's flavor; dim, layers, heads, key heads, hidden, vocabulary, tied head; rows and tokens per step.
SIZES = {
    "debug": ("debugmodel", (256, 6, 16, 16, 768, 2048, 0), 8, 2048),
    "bench": ("bench", (1024, 8, 16, 8, 2816, 2048, 0), 8, 2048),
    "1B": ("1B", (2048, 16, 32, 8, 8192, 128256, 1), 2, 4096),
    "rehearsal": ("debugmodel", (256, 6, 16, 16, 768, 2048, 0), 1, 64),
}
INTERVAL, WARM = 5, 2  # Steps per measured interval; warm-up intervals that do not count.
PROGRAMS = {"PyTorch": [], "PyTorch compiled": ["--compile"], "Titan": [], "Titan compiled": ["--compile.enable"]}
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaLaunchCooperativeKernel", "cuLaunchKernel", "cuLaunchKernelEx")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


def run(command):
    ran = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if ran.returncode != 0:
        sys.exit(f"gpu_beside.py: exit code {ran.returncode} of {' '.join(str(word) for word in command)}\n{ran.stdout[-3000:]}{ran.stderr[-3000:]}")
    return ran.stdout


def torch_run(options, size, flags, intervals, trace=None):
    _, shape, rows, tokens = SIZES[size]
    command = [sys.executable, HERE / "gpu_torch_llama.py", "--shape", ",".join(map(str, shape)), "--batch", rows, "--seq", tokens,
               "--intervals", intervals, "--interval", options.interval, "--device", options.device, *flags]
    if options.rehearse:
        command += ["--backend", "eager"]
    if trace:
        command += ["--trace", trace]
    return json.loads(run(command).splitlines()[-1])


def titan_run(options, size, flags, intervals, folder):
    flavor, _, rows, tokens = SIZES[size]
    steps = intervals * options.interval
    printed = run([*options.titan, "--job.dump_folder", folder, "--model.flavor", flavor, "--training.local_batch_size", rows, "--training.seq_len", tokens,
         "--training.steps", steps, "--metrics.log_freq", options.interval, "--metrics.no_enable_tensorboard", *flags])
    with open(os.path.join(folder, "metrics.jsonl")) as file:
        lines = [line for line in map(json.loads, file) if "throughput(tps)" in line]
    # The first line has only the first step.
    lines = [line for line in lines if line["step"] % options.interval == 0]
    size_line = re.search(r"size: (\d+) total parameters", printed)
    return {"parameters": int(size_line[1]), "step_ms": [rows * tokens / line["throughput(tps)"] * 1e3 for line in lines],
            "active_gib": max(line["memory/max_active(GiB)"] for line in lines),
            "reserved_gib": max(line["memory/max_reserved(GiB)"] for line in lines)}


def median(values):
    return statistics.median(values)


def spread(values, form):
    return f"{format(median(values), form)} ({format(min(values), form)} .. {format(max(values), form)})"


def speed(options):
    for size in options.sizes:
        _, _, rows, tokens = SIZES[size]
        runs = {program: [] for program in PROGRAMS}
        for round_ in range(options.rounds):
            for program, flags in PROGRAMS.items():
                if program.startswith("PyTorch"):
                    ran = torch_run(options, size, flags, options.intervals)
                else:
                    with tempfile.TemporaryDirectory() as folder:
                        ran = titan_run(options, size, flags, options.intervals, folder)
                ran["ms"] = median(ran["step_ms"][WARM:])
                runs[program].append(ran)
                print(f"{size}, round {round_ + 1}: {program}: {ran['ms']:.2f} ms per step", flush=True)
        counted = {one["parameters"] for of_program in runs.values() for one in of_program}
        if len(counted) != 1:
            sys.exit(f"gpu_beside.py: {size} is not the same model in all programs: {sorted(counted)} parameters")
        print(f"{size}: {counted.pop():,} parameters, {rows} x {tokens} tokens per step, {options.rounds} rounds; GiB at the peak: active, reserved")
        for program, of_program in runs.items():
            times = [one["ms"] for one in of_program]
            print(f"  {program:<17} {median([rows * tokens * 1e3 / one for one in times]):>10.0f} tokens/s   {spread(times, '.2f')} ms per step   "
                  f"{median([one['active_gib'] for one in of_program]):.2f}, {median([one['reserved_gib'] for one in of_program]):.2f} GiB")
        for ours, theirs in (("Titan", "PyTorch"), ("Titan compiled", "PyTorch compiled"), ("Titan compiled", "PyTorch")):
            ratios = [their["ms"] / our["ms"] for our, their in zip(runs[ours], runs[theirs])]
            print(f"  {ours} / {theirs}: {spread(ratios, '.2f')} x", flush=True)


def counts(trace):
    """Returns the counts of all steps in a trace together."""
    result = dict.fromkeys(("kernels", "launches", "graphs", "copies", "waits", "operations"), 0)
    for event in trace["traceEvents"]:
        kind, name = event.get("cat"), event.get("name", "")
        if kind == "kernel":
            result["kernels"] += 1
        elif kind in ("gpu_memcpy", "gpu_memset"):
            result["copies"] += 1
        elif kind == "cpu_op" and name.startswith(("aten::", "c10d", "titan::")):
            result["operations"] += 1
        elif kind in ("cuda_runtime", "cuda_driver"):
            result["launches"] += name in LAUNCHES
            result["graphs"] += name == "cudaGraphLaunch"
            result["waits"] += name in WAITS
    return result


def titan_trace(options, size, flags, folder):
    intervals, steps = 3, 3 * options.interval
    titan_run(options, size, [*flags, "--profiling.enable_profiling", "--profiling.profile_freq", steps, "--profiling.profiler_warmup", 1,
                              "--profiling.profiler_active", options.interval], intervals, folder)
    [path] = Path(folder).glob("profile_traces/iteration_*/rank0_trace.json")
    return json.loads(path.read_text())


def launches(options):
    for size in options.sizes:
        print(f"{size}: per step: kernels, launches by the host, graph launches, copies, host waits, operations")
        programs = {**PROGRAMS, "Titan compiled, no graphs": ["--compile.enable", "--compile.graphs", "off"]}
        for program, flags in programs.items():
            with tempfile.TemporaryDirectory() as folder:
                if program.startswith("PyTorch"):
                    path = os.path.join(folder, "trace.json")
                    torch_run(options, size, flags, 3, path)
                    trace = json.loads(Path(path).read_text())
                else:
                    trace = titan_trace(options, size, flags, folder)
            found = counts(trace)
            numbers = [found[name] / options.interval for name in ("kernels", "launches", "graphs", "copies", "waits", "operations")]
            print(f"  {program:<26}" + "".join(f"{number:>10.1f}" for number in numbers)
                  + ("" if found["kernels"] or options.device == "cpu" else "   (kernels: CUPTI was not permitted)"), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "launches"])
    parser.add_argument("--sizes", default="debug,bench,1B")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--intervals", type=int, default=6, help=f"intervals of {INTERVAL} steps; the first {WARM} do not count")
    parser.add_argument("--rehearse", action="store_true", help="run on the CPU with a tiny shape")
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:at])
    options.titan = words[at + 1:]
    options.interval = INTERVAL
    options.device = "cuda"
    if options.rehearse:
        options.sizes, options.rounds, options.intervals, options.interval, options.device = "rehearsal", 1, 3, 1, "cpu"
    options.sizes = options.sizes.split(",")
    unknown = [size for size in options.sizes if size not in SIZES]
    if not options.titan or unknown:
        sys.exit("gpu_beside.py: " + (f"no size {unknown[0]}: one of {', '.join(SIZES)}" if unknown else "no titan-rank command after --"))
    {"speed": speed, "launches": launches}[options.what](options)


if __name__ == "__main__":
    main()

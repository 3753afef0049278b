"""Compares one step of every model family with its oracles' own classes, live, with a random seed (--seed repeats one).

The small models of tests/peer/oracle_models.py run in torchtitan 0.2.2 and transformers, in fp32, from weights with a gain:
logits agree within 1e-5 and every parameter's gradient within 1e-4 relative rms, and every token goes to the same experts. Each
comparison must fail with 1e-3 of noise in any one weight tensor, and for each changed number of the model. In bfloat16, by
LibTorch's operations and by every level of Titan's kernels that the machine has, the errors are at most 1.25 times those of the
oracle's own bfloat16 (1.5 for a single gradient). A step makes no more calls of LibTorch's operations than the oracle makes of
PyTorch's (except for rows of documents), and at most half as many with Titan's kernels, and with [compile]. --runs N tries N
seeds.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from paths import BUILD, SOURCE

TESTS = BUILD / "tests"
LOGITS, GRADIENTS = 1e-5, 1e-4  # The limits of golden_case.cc.
ROUNDED, WORST = 1.25, 1.5  # Limits of logits, loss and the median gradient, and of any one gradient: that ratio varies with the seed.
KERNEL_CALLS = 0.5


def judge_rounded(check):
    """Checks the errors divided by the oracle's own in bfloat16, both against fp32 from the same rounded weights."""
    ratios = {name: check[name + "_ratio"] for name in ("logits", "loss", "grad", "median")}
    check["good"] = all(ratio <= (WORST if name == "grad" else ROUNDED) for name, ratio in ratios.items())
    print(f"{check['case']}, {check['check']}: errors over the oracle's: logits {ratios['logits']:.3f}, loss {ratios['loss']:.3f}, "
          f"gradients {ratios['median']:.3f} (median), {ratios['grad']:.3f} ({check['worst']})", flush=True)


def machine_has_kernels():
    """Returns whether the machine has what the lowest level needs (worker/rank/kernels/level.h), according to the system instead of
    Titan."""
    flags = set(Path("/proc/cpuinfo").read_text().split("flags", 1)[-1].split("\n", 1)[0].split())
    return {"avx2", "fma", "f16c"} <= flags


def judge_calls(folder, check):
    """Checks that the calls are few enough, and that Titan's kernels were counted if the machine can run them."""
    ours, oracle = check["calls"], json.loads((folder / "calls.json").read_text())
    packed = json.loads((folder / "case.json").read_text())["document_end"] is not None
    few = packed or ours["bfloat16"] <= oracle["bfloat16"]  # On a CPU LibTorch's operations take each document separately.
    check["good"] = few and ("kernels" in ours) == machine_has_kernels()
    if "kernels" in ours:
        check["good"] &= ours["kernels"] <= KERNEL_CALLS * oracle["bfloat16"]
    check["oracle"] = oracle
    print(f"{check['case']}: calls of operations {ours['float32']} (oracle {oracle['float32']}), in bfloat16 {ours['bfloat16']} "
          f"(oracle {oracle['bfloat16']}), by Titan's kernels {ours.get('kernels', 'not judged: this machine lacks AVX2, FMA or F16C')}", flush=True)


def judge_compiled(folder, check):
    """Checks a step with [compile]; each launch of a graph is one call (recorded_calls.cc defines what is counted)."""
    oracle = json.loads((folder / "calls.json").read_text())["bfloat16"]
    check["oracle"] = oracle
    check["good"] = check["good"] and check["compiled"] <= KERNEL_CALLS * oracle
    print(f"{check['case']}: with [compile] {check['compiled']} calls, {check['replays']} of them graphs of {check['recorded']} operations "
          f"(oracle {oracle})", flush=True)


def compare(folder, seed):
    """Returns the number of checks, and the failed ones as text."""
    subprocess.run([sys.executable, SOURCE / "tests/peer/one_step.py", folder, "--seed", str(seed)], check=True)
    cases = sorted(folder.iterdir())
    checks = []
    for command in (["compare_with_peer", *cases, "--noise", "--bfloat16", "--calls"], ["engine_with_peer", *cases], ["recorded_calls", *cases]):
        done = subprocess.run([TESTS / command[0], *command[1:]], stdout=subprocess.PIPE, text=True)
        checks += [json.loads(line) for line in done.stdout.splitlines()]
        if done.returncode not in (0, 1):
            sys.exit(f"{command[0]} ended with {done.returncode}")
    for check in checks:
        if "calls" in check:
            judge_calls(folder / check["case"], check)
        if "compiled" in check:
            judge_compiled(folder / check["case"], check)
        if "kernels" in check:
            judge_rounded(check)
        if check["must_pass"] and "logits" in check:
            print(f"{check['case']}, {check['check']}: logits {check['logits']:.2g}, gradients {check['grad']:.2g} "
                  f"({check['worst'] or 'none'}), {check['routed_elsewhere']} tokens routed elsewhere", flush=True)
    for case in cases:
        disturbed = [check for check in checks if check["case"] == case.name and not check["must_pass"]]
        seen, what = min((max(check["logits"] / LOGITS, check["grad"] / GRADIENTS), check["check"]) for check in disturbed)
        print(f"{case.name}: all of {len(disturbed)} disturbances seen, least {what}: {seen:.1f} times the limit", flush=True)
    compiled = {check["case"] for check in checks if "compiled" in check}
    assert compiled == {case.name for case in cases if not case.name.endswith("_documents")}
    return len(checks), [json.dumps(check) for check in checks if not check["good"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--runs", type=int, default=1)
    options = parser.parse_args()
    for run in range(options.runs):
        seed = options.seed + 10_000 * run
        print("seed", seed, flush=True)
        with tempfile.TemporaryDirectory(prefix="titan-models-") as folder:
            count, wrong = compare(Path(folder), seed)
        if wrong:
            sys.exit("\n".join(["checks that failed:", *wrong]))
        print(f"{count} checks hold")


main()

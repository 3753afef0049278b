#!/usr/bin/env bash
# Checks Titan on a machine with a CUDA device: the numeric tests on the device, each operation's time in Titan and in
# LibTorch, a job that is saved and resumed, a job with and without graphs of its layers, two ranks compared with one (on
# two devices), a short bf16 training of Llama 3.2 1B, a comparison with PyTorch, and the device calls of a step.
# Prints tokens/s, MFU and memory; docs/benchmarks-gpu.md explains their use.
#
#   deploy/gpu_check.sh [--only tests|kernels|resume|graphs|ranks|train|beside|launches] [--compile] [--steps N] [--seq-len N] [--batch N]
#                       [--ac MODE] [--flavor NAME] [--sizes debug,bench,1B] [--rounds N] [--build DIR] [--python PROGRAM] [--rehearse]
#
# Needs a built tree (build/release/bin and build/release/tests, with libtitan_cuda.so) and the text assets (.deps/assets,
# or TITAN_ASSETS), or a folder that deploy/gpu_pack.sh has filled with both; and torch 2.11 with CUDA for python3 (or
# --python), whose libraries it uses. It builds and installs nothing.
# --compile: runs the jobs with compile.enable (Titan's row kernels, layers as graphs), for comparison with a run without it.
# --sizes, --rounds: for beside and launches; if a command may take only minutes, use one size per call.
# --rehearse: the same steps on the CPU with a small model, to try this script without a GPU; it proves nothing about one.
# Exit code: 0 all passed; 77 no device (nothing was checked); 1 something failed.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
if [ -d "$here/bin" ]; then  # Filled by gpu_pack.sh.
  build="$here" default_assets="$here/assets" revision="$(cat "$here/revision")"
else
  root="$(dirname "$here")"
  build="$root/build/release" default_assets="$root/.deps/assets"
  revision="$(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)"
fi
fail() { echo "gpu_check.sh: $*" >&2; exit 1; }
only="" python=python3 rehearse=0 train=() own_kernels=() beside=()
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) sed -n '2,16p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    --rehearse) rehearse=1; shift; continue ;;
    --compile) own_kernels=(--compile.enable); shift; continue ;;
    --only | --steps | --seq-len | --batch | --ac | --flavor | --sizes | --rounds | --build | --python) [ $# -ge 2 ] || fail "$1 needs a value" ;;
    *) fail "unknown argument $1 (see --help)" ;;
  esac
  case "$1" in
    --only) only="$2" ;;
    --steps) train+=(--training.steps "$2") ;;
    --seq-len) train+=(--training.seq_len "$2") ;;
    --batch) train+=(--training.local_batch_size "$2") ;;
    --ac) train+=(--activation_checkpoint.mode "$2") ;;
    --flavor) train+=(--model.flavor "$2") ;;
    --sizes | --rounds) beside+=("$1" "$2") ;;
    --build) build="$(cd "$2" && pwd)" ;;
    --python) python="$2" ;;
  esac
  shift 2
done
case "$only" in
  "" | tests | kernels | resume | graphs | ranks | train | beside | launches) ;;
  *) fail "--only takes tests, kernels, resume, graphs, ranks, train, beside or launches, not $only" ;;
esac
wants() { [ -z "$only" ] || [ "$only" = "$1" ]; }

programs=(bin/titan-rank bin/libtitan_cuda.so tests/gpu_test tests/gpu_rows_bench tests/gpu_ops_bench tests/random_math_test)
for file in "${programs[@]}"; do
  [ -e "$build/$file" ] || fail "$build/$file is missing: build with deploy/bootstrap.sh --with-cuda and TITAN_CUDA=ON first"
done
export TITAN_ASSETS="${TITAN_ASSETS:-$default_assets}"
[ -e "$TITAN_ASSETS/tokenizer/tokenizer.json" ] || fail "no text assets in $TITAN_ASSETS: run deploy/make_assets.sh or set TITAN_ASSETS"

# Finds the folders of torch's libraries and of those in CUDA's wheels, and the number and names of the devices.
found="$("$python" - <<'PY'
import os, sys
try:
    import torch
except ImportError as error:
    sys.exit(f"torch cannot be imported: {error}")
if not torch.__version__.startswith("2.11."):
    sys.exit(f"torch {torch.__version__} is installed; the programs are linked against 2.11")
folders = [os.path.join(os.path.dirname(torch.__file__), "lib")]
# The folders of this process's CUDA libraries, then the wheels' folders for those that are loaded later.
for line in open("/proc/self/maps"):
    path = line.split(maxsplit=5)[-1].strip()
    name = os.path.basename(path)
    if name.startswith(("libcu", "libnccl", "libnv")) and not name.startswith("libcuda.so"):
        folders.append(os.path.dirname(path))
for folder, _, files in os.walk(os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "nvidia")):
    if any(".so" in name for name in files):
        folders.append(folder)
print(":".join(dict.fromkeys(folders)))
count = torch.cuda.device_count()
print(count)
if count:
    device = torch.cuda.get_device_properties(0)
    print(f"{device.name}, {device.total_memory / 2**30:.1f} GiB, {count} device(s), torch {torch.__version__}")
else:
    print(f"no CUDA device, torch {torch.__version__}")
PY
)" || fail "the torch of $python cannot be used"
libraries="$(sed -n 1p <<<"$found")" devices="$(sed -n 2p <<<"$found")" machine="$(sed -n 3p <<<"$found")"
if [ "$rehearse" = 0 ] && [ "$devices" = 0 ]; then
  echo "gpu_check.sh: torch sees no CUDA device here: nothing was checked" >&2
  exit 77
fi
with_libraries() {
  LD_LIBRARY_PATH="$libraries:$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$@"
}
missing="$(cd "$build" && for file in "${programs[@]}"; do with_libraries ldd "$file" 2>&1; done | grep 'not found' | sort -u)" || true
[ -z "$missing" ] || fail "libraries are missing on this machine; a folder of deploy/gpu_pack.sh has all except torch's and CUDA's:
$missing"

device=cuda
if [ "$rehearse" = 1 ]; then
  device=cpu
  export TITAN_GPU_TEST_ON=cpu
  small=(--model.flavor debugmodel --training.seq_len 128 --training.local_batch_size 2 --training.steps 8
    --optimizer.lr 2e-3 --metrics.device_peak_tflops 1  # With a peak the MFU is printed as on a GPU.
    --resources.pin_cpus on)
  train=("${small[@]}" "${train[@]}")
  echo "==> REHEARSAL on the CPU with a small model: the figures below are not those of a GPU"
fi
echo "==> $(date -u +%Y-%m-%d) · $machine · Titan $revision"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

limit=()  # Command prefix of a rank.
titan_rank() {  # FOLDER FLAGS...
  local folder="$1"
  shift
  with_libraries "${limit[@]}" "$build/bin/titan-rank" --config "$here/gpu_check.toml" --job.dump_folder "$folder" \
    --resources.device "$device" "${own_kernels[@]}" "$@"
}

if wants tests; then
  echo "==> numeric tests on one device"
  with_libraries "$build/tests/random_math_test"
  with_libraries "$build/tests/gpu_test" --gtest_brief=0 | tee "$work/log"
  if grep -q 'no GPU: ' "$work/log"; then fail "the device was not used: see above"; fi
fi

if wants kernels; then
  echo "==> row operations: LibTorch's time and that of Titan's own kernels"
  with_libraries "$build/tests/gpu_rows_bench" "$device"
  echo "==> everything else in a layer: LibTorch's operations, and the same through Titan's layers"
  with_libraries "$build/tests/gpu_ops_bench" "$device"
fi

if wants resume; then
  echo "==> six steps of a small model, in one run and in two halves with a checkpoint in between"
  six=(--model.flavor debugmodel --training.seq_len 128 --training.local_batch_size 2 --training.steps 6
    --lr_scheduler.total_steps 6 --debug.deterministic --checkpoint.enable --checkpoint.interval 3 --checkpoint.no_last_save_model_only
    --checkpoint.async_mode async_with_pinned_mem)
  titan_rank "$work/whole" "${six[@]}"
  titan_rank "$work/halves" "${six[@]}" --training.steps 3
  titan_rank "$work/halves" "${six[@]}"
  "$python" - "$work" <<'PY'
import json, sys
def losses(folder):
    lines = [json.loads(line) for line in open(f"{sys.argv[1]}/{folder}/metrics.jsonl")]
    return {line["step"]: line["loss_metrics/global_avg_loss"] for line in lines if "throughput(tps)" in line}
whole, halves = losses("whole"), losses("halves")
assert sorted(whole) == sorted(halves) == [1, 2, 3, 4, 5, 6], (whole, halves)
worst = max(abs(halves[step] / whole[step] - 1) for step in whole)
print(f"largest difference of the loss: {worst:.1e}")
if worst > 1e-6:
    sys.exit(f"the resumed job diverged: {whole} and {halves}")
PY
fi

if wants graphs; then
  echo "==> a small model in fp32, with and without device graphs of its layers: loss and step time"
  # In fp32 compile.enable changes nothing else. The device has little to do in such a step, so the host is timed.
  twelve=(--model.flavor debugmodel --training.seq_len 128 --training.local_batch_size 2 --training.steps 12 --metrics.log_freq 1
    --debug.seed 1 --training.mixed_precision_param float32 --activation_checkpoint.mode none)
  titan_rank "$work/plain" "${twelve[@]}" --compile.enable --compile.graphs off
  titan_rank "$work/graphs" "${twelve[@]}" --compile.enable 2>&1 | tee "$work/graphs.log"
  if grep -E 'operation by operation|no block runs as a device graph' "$work/graphs.log"; then fail "no graphs: see above"; fi
  "$python" - "$work" <<'PY'
import json, statistics, sys
def steps(folder):
    lines = [json.loads(line) for line in open(f"{sys.argv[1]}/{folder}/metrics.jsonl")]
    return {line["step"]: line for line in lines if "throughput(tps)" in line}
plain, graphs = steps("plain"), steps("graphs")
assert sorted(plain) == sorted(graphs) == list(range(1, 13)), (sorted(plain), sorted(graphs))
key = "loss_metrics/global_avg_loss"
worst = max(abs(graphs[step][key] / plain[step][key] - 1) for step in plain)
print(f"with graphs: largest difference of the loss from the run without: {worst:.1e}")
def speed(of): return statistics.median(of[step]["throughput(tps)"] for step in range(7, 13))  # All replayed.
print(f"tokens/s with graphs {speed(graphs):.0f}, without {speed(plain):.0f}: {speed(graphs) / speed(plain):.2f} x")
if worst > 1e-4:
    sys.exit(f"the run with graphs diverged: {plain} and {graphs}")
PY
fi

if wants ranks; then
  if [ "$rehearse" = 0 ] && [ "$devices" -lt 2 ]; then
    echo "==> two ranks: skipped, there is only one device"
  else
    echo "==> two ranks, with FSDP and as a pipeline: setup time of NCCL's groups, and the loss compared with one rank"
    port="$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
    four=(--model.flavor debugmodel --training.seq_len 128 --training.local_batch_size 4 --training.global_batch_size 8
      --training.steps 4 --debug.seed 1 --debug.deterministic --training.mixed_precision_param float32)
    # Ranks that wait for each other on a device wait forever: a collective's timeout cannot end a host that NCCL blocks.
    seconds="${TITAN_GPU_CHECK_RANKS_SECONDS:-180}"
    two_ranks() {  # FOLDER FLAGS...
      local first=0 second=0
      titan_rank "$@" "${four[@]}" --world 2 --rank 1 --store "127.0.0.1:$port" >"$work/rank-1.log" 2>&1 &
      titan_rank "$@" "${four[@]}" --world 2 --rank 0 --store "127.0.0.1:$port" || first=$?
      wait $! || second=$?
      [ "$second" = 0 ] || cat "$work/rank-1.log"
      for code in "$first" "$second"; do
        # 124: ended by the limit, 137: killed by it.
        if [ "$code" = 124 ] || [ "$code" = 137 ]; then
          fail "the two ranks of ${1##*/} did not finish within $seconds s (TITAN_GPU_CHECK_RANKS_SECONDS)"
        fi
      done
      [ "$first" = 0 ] || fail "rank 0 failed"
      [ "$second" = 0 ] || fail "rank 1 failed"
    }
    titan_rank "$work/one" "${four[@]}"
    limit=(timeout --kill-after=10 "$seconds")
    two_ranks "$work/fsdp"
    two_ranks "$work/pipeline" --parallelism.pipeline_parallel_degree 2
    limit=()
    "$python" - "$work" <<'PY'
import json, sys
def losses(folder):
    lines = [json.loads(line) for line in open(f"{sys.argv[1]}/{folder}/metrics.jsonl")]
    return {line["step"]: line["loss_metrics/global_avg_loss"] for line in lines if "throughput(tps)" in line}
one = losses("one")
for folder in ("fsdp", "pipeline"):
    two = losses(folder)
    assert sorted(two) == sorted(one), (one, two)
    worst = max(abs(two[step] / one[step] - 1) for step in one)
    print(f"{folder}: largest difference of the loss from one rank's: {worst:.1e}")
    if worst > 1e-4:
        sys.exit(f"the two ranks diverged: {one} and {two}")
PY
  fi
fi

if wants train; then
  echo "==> training"
  titan_rank "$work/train" "${train[@]}" | tee "$work/train.log" ||
    fail "the training failed (see above); to use less memory: --batch 1, --ac full"
  grep -qE 'rank 0 (runs on|is not bound to) CPUs' "$work/train.log" || fail "the rank does not report its CPUs"
  "$python" - "$work/train/metrics.jsonl" <<'PY'
import json, statistics, sys
steps = [line for line in map(json.loads, open(sys.argv[1])) if "throughput(tps)" in line]
steady = steps[len(steps) // 2:]  # The first steps fill caches.
def median(key): return statistics.median(line[key] for line in steady)
mfu = f"{median('mfu(%)'):.2f} %" if "mfu(%)" in steady[0] else "unknown (metrics.device_peak_tflops)"
first, last = steps[0], steps[-1]
key = "loss_metrics/global_avg_loss"
print(f"loss {first[key]:.4f} -> {last[key]:.4f} in {len(steps)} steps")
print(f"tokens/s {median('throughput(tps)'):.0f}   MFU {mfu}   TFLOP/s {median('tflops'):.2f}")
print(f"memory, peak: active {max(line['memory/max_active(GiB)'] for line in steady):.2f} GiB, "
      f"reserved {max(line['memory/max_reserved(GiB)'] for line in steady):.2f} GiB")
if not last[key] < first[key]:
    sys.exit("the loss did not fall")
PY
fi
beside_pytorch() {  # speed|launches
  local flags=("${beside[@]}")
  [ "$rehearse" = 0 ] || flags+=(--rehearse)
  "$python" "$here/gpu_beside.py" "$1" "${flags[@]}" -- \
    env "LD_LIBRARY_PATH=$libraries:$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$build/bin/titan-rank" \
    --config "$here/gpu_check.toml" --resources.device "$device"
}
if wants beside; then
  echo "==> training compared with PyTorch, eager and compiled, alternating"
  beside_pytorch speed
fi
if wants launches; then
  echo "==> device calls per step, from each program's profiler"
  beside_pytorch launches
fi
if [ "$rehearse" = 1 ]; then echo "==> rehearsed: nothing was checked on a GPU"; else echo "==> passed"; fi

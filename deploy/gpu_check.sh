#!/usr/bin/env bash
# Checks Titan on a machine with a CUDA device: the numeric tests on the device, then a short bf16 training of Llama 3 1B.
# Prints tokens/s, MFU and memory; docs/benchmarks-gpu.md says what to do with them.
#
#   deploy/gpu_check.sh [--build DIR] [--steps N] [--seq-len N] [--batch N] [--flavor NAME]
#
# Needs a built tree (build/release/bin and build/release/tests, with libtitan_cuda.so), the text assets (.deps/assets, or
# TITAN_ASSETS) and torch 2.11 with CUDA for this machine's python3, whose libraries are used. Builds and installs nothing.
# Exit code: 0 all passed; 77 there is no device (nothing was checked); 1 something failed.
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
build="$root/build/release" steps=20 seq_len=4096 batch=1 flavor=1B
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) sed -n '2,10p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    --build) build="$2"; shift 2 ;;
    --steps) steps="$2"; shift 2 ;;
    --seq-len) seq_len="$2"; shift 2 ;;
    --batch) batch="$2"; shift 2 ;;
    --flavor) flavor="$2"; shift 2 ;;
    *) echo "gpu_check.sh: unknown argument $1 (--help tells)" >&2; exit 1 ;;
  esac
done
fail() { echo "gpu_check.sh: $*" >&2; exit 1; }

for file in bin/titan-rank bin/libtitan_cuda.so tests/gpu_test tests/random_math_test; do
  [ -e "$build/$file" ] || fail "$build/$file is missing: build with deploy/bootstrap.sh --with-cuda and TITAN_CUDA=ON first"
done
found="$(python3 - <<'PY'
import os, sys
try:
    import torch
except ImportError as error:
    sys.exit(f"torch cannot be imported: {error}")
if not torch.__version__.startswith("2.11."):
    sys.exit(f"torch {torch.__version__} is installed; the binaries are linked against 2.11")
folders = [os.path.join(os.path.dirname(torch.__file__), "lib")]
site = os.path.dirname(os.path.dirname(torch.__file__))
for folder, _, files in os.walk(os.path.join(site, "nvidia")):
    if any(".so" in name for name in files):
        folders.append(folder)
print(":".join(folders))
print(torch.cuda.device_count())
print(torch.cuda.get_device_name(0) if torch.cuda.device_count() else "none")
PY
)" || fail "this machine's torch cannot be used"
libraries="$(sed -n 1p <<<"$found")" devices="$(sed -n 2p <<<"$found")" name="$(sed -n 3p <<<"$found")"
if [ "$devices" = 0 ]; then
  echo "gpu_check.sh: torch sees no CUDA device here: nothing was checked" >&2
  exit 77
fi
export LD_LIBRARY_PATH="$build/bin:$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export TITAN_ASSETS="${TITAN_ASSETS:-$root/.deps/assets}"
[ -e "$TITAN_ASSETS/tokenizer/tokenizer.json" ] || fail "no text assets in $TITAN_ASSETS: run deploy/make_assets.sh or set TITAN_ASSETS"

echo "==> $(date -u +%Y-%m-%d) · $name · $devices device(s) · $(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo 'no git')"
echo "==> numeric tests on one device"
log="$(mktemp)" dump="$(mktemp -d)"
trap 'rm -rf "$log" "$dump"' EXIT
"$build/tests/random_math_test"
"$build/tests/gpu_test" | tee "$log"
if grep -q 'no GPU: ' "$log"; then fail "the device was not used: see above"; fi

echo "==> Llama 3 $flavor, bf16, $steps steps of $batch x $seq_len tokens"
"$build/bin/titan-rank" --config "$root/configs/llama3_8b.toml" --model.flavor "$flavor" --job.dump_folder "$dump" \
  --resources.device cuda --training.steps "$steps" --training.seq_len "$seq_len" --training.local_batch_size "$batch" \
  --training.global_batch_size -1 --training.dataset c4_test --lr_scheduler.warmup_steps 2 --metrics.log_freq 1 \
  --metrics.no_enable_tensorboard --validation.no_enable --checkpoint.no_enable
python3 - "$dump/metrics.jsonl" <<'PY'
import json, statistics, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
steps = [line for line in lines if "throughput(tps)" in line]
steady = steps[len(steps) // 2:]  # The first steps fill caches.
def median(key): return statistics.median(line[key] for line in steady)
first, last = steps[0], steps[-1]
key = "loss_metrics/global_avg_loss"
print(f"loss {first[key]:.4f} -> {last[key]:.4f}")
print(f"tokens/s {median('throughput(tps)'):.0f}   MFU {median('mfu(%)'):.2f} %   TFLOP/s {median('tflops'):.1f}")
print(f"memory, peak: active {max(line['memory/max_active(GiB)'] for line in steady):.2f} GiB, "
      f"reserved {max(line['memory/max_reserved(GiB)'] for line in steady):.2f} GiB")
if not last[key] < first[key]:
    sys.exit("the loss did not fall")
PY
echo "==> passed"

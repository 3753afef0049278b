#!/usr/bin/env bash
# Trains a tiny Llama on this machine from scratch: installs, builds, starts a controller and two workers on loopback, and trains
# over two ranks, one on each worker. A second run reuses everything and takes seconds.
#
#   deploy/quickstart.sh [--section.key value ...]      for example: deploy/quickstart.sh --training.steps 200
#
# The results stay in outputs/quickstart-DATE-TIME.
# All processes end with the script, also after Ctrl-C.
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in
  -h | --help) sed -n '2,8p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
esac
# shellcheck source=deploy/build.sh
. deploy/build.sh

bin=build/release/bin
dump=$PWD/outputs/quickstart-$(date +%Y%m%d-%H%M%S)
state=$(mktemp -d "${TMPDIR:-/tmp}/titan-quickstart-XXXXXX")
children=()

# Stops the workers first; their ranks end with them.
stop_all() {
  local code=$?
  trap - EXIT INT TERM
  for pid in "${children[@]:1}" "${children[@]:0:1}"; do
    kill -TERM "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  if [ "$code" = 0 ]; then rm -rf "$state"; else echo "quickstart: stopped; the logs of the daemons are in $state" >&2; fi
  exit "$code"
}

# wait_for_file PATH PID LOG: waits until the daemon has written the file.
wait_for_file() {
  local tries=0
  until [ -s "$1" ]; do
    kill -0 "$2" 2>/dev/null || { echo "quickstart: a daemon exited at startup:" >&2; tail -n 20 "$3" >&2; return 1; }
    tries=$((tries + 1))
    [ $tries -lt 1000 ] || { echo "quickstart: $1 was not created within 20 s" >&2; return 1; }
    sleep 0.02
  done
}

# Waits until both workers have registered: an earlier job would get the error that it cannot run on the present nodes.
wait_for_nodes() {
  local tries=0
  until [ "$("$bin/titanctl" node list 2>/dev/null | grep -cw READY)" = 2 ]; do
    tries=$((tries + 1))
    [ $tries -lt 200 ] || { echo "quickstart: the workers did not register:" >&2; tail -n 20 "$state"/n?.log >&2; return 1; }
    sleep 0.1
  done
}

# setsid: Ctrl-C reaches only this script and `titanctl`, which decide what stops and in which order.
start_cluster() {
  setsid "$bin/titan-controller" --listen 127.0.0.1:0 --metrics-port 0 --state "$state/controller" \
    --port-file "$state/controller.json" >"$state/controller.log" 2>&1 &
  children+=($!)
  wait_for_file "$state/controller.json" $! "$state/controller.log"
  TITAN_CONTROLLER=127.0.0.1:$(sed -n 's/.*"port": *\([0-9]*\).*/\1/p' "$state/controller.json" | head -n 1)
  export TITAN_CONTROLLER
  for node in n1 n2; do
    setsid "$bin/titan-worker" --controller "$TITAN_CONTROLLER" --node $node --address 127.0.0.1 --devices cpu:1 --metrics-port 0 \
      --state "$state/$node" --stop-ranks-on-exit >"$state/$node.log" 2>&1 &
    children+=($!)
  done
  wait_for_nodes
  echo "    controller at $TITAN_CONTROLLER, workers n1 and n2"
}

train() {
  local job threads
  # Both workers share this machine, so each rank gets half of its cores.
  threads=$((($(nproc) + 1) / 2))
  job=$("$bin/titanctl" submit configs/llama3_tiny.toml -q --nproc 2 --nodes 2 --resources.threads_per_rank $threads --job.dump_folder "$dump" --metrics.enable_tensorboard \
    --checkpoint.enable --checkpoint.no_last_save_model_only --validation.enable --validation.dataset c4_validation --validation.local_batch_size 1 \
    --validation.seq_len 256 --validation.steps 8 "$@")
  echo "    job $job, one rank on each worker; its log:"
  "$bin/titanctl" logs -f "$job" --rank 0
  "$bin/titanctl" wait "$job" 2>/dev/null || { "$bin/titanctl" describe "$job" >&2; return 1; }
}

trap stop_all EXIT
trap 'exit 130' INT TERM

timed "install what is missing" deploy/bootstrap.sh --quiet
timed "build" build_targets titanctl titan-controller titan-worker titan-shim titan-stacks titan-rank
timed "start a controller and two workers" start_cluster
timed "train" train "$@"
echo
python3 deploy/quickstart_summary.py "$dump"

#!/usr/bin/env bash
# Installs, upgrades, removes and purges the packages on a machine without any part of Titan, as root and without systemd:
#   bare_machine.sh FIRST SECOND PORT     folders of packages of two versions, with the stand-in for ranks, fake_rank; a free port
set -euo pipefail
first=$1 second=$2
export TITAN_CONTROLLER=127.0.0.1:$3 DEBIAN_FRONTEND=noninteractive

fail() {
  echo "bare_machine: $*" >&2
  tail -n 20 ./*.log >&2
  exit 1
}
# until_true WHAT COMMAND...: repeats the command for up to a minute until it succeeds.
until_true() {
  local what=$1 end=$((SECONDS + 60))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || fail "no $what"
    sleep 0.1
  done
}
# start_unit NAME: starts a unit from its own lines, as systemd would.
start_unit() {
  local unit=/lib/systemd/system/$1.service command line
  (
    set +u
    unset TITAN_CONTROLLER
    while read -r line; do
      line=${line//%l/bare}
      export "${line%%=*}=${line#*=}"
    done < <(
      sed -n 's/^Environment=//p' "$unit" | tr ' ' '\n' | grep '='
      grep -hv '^ *#' "$(sed -n 's/^EnvironmentFile=-\?//p' "$unit")" | grep '='
    )
    export STATE_DIRECTORY=/var/lib/$1
    mkdir -p "$STATE_DIRECTORY"
    # In systemd a variable in braces is one word, even if it is empty.
    command=$(sed -n 's/^ExecStart=//p' "$unit" | sed 's/${\([A-Z_]*\)}/"${\1}"/g')
    eval "exec $command" >>"$1.log" 2>&1
  ) &
  eval "${1//-/_}=$!"
}
# pids_of NAME: prints processes of this machine only, which may be a folder of another machine with processes of the same name.
pids_of() {
  local process
  for process in /proc/[0-9]*; do
    if [ "$process/root" -ef / ] && [ "$(cat "$process/comm" 2>/dev/null)" = "${1:0:15}" ]; then echo "${process#/proc/}"; fi
  done
}
none_of() { [ -z "$(pids_of "$1")" ]; }
end_all() {
  local name
  for name in titan-worker titan-controller titan-shim fake_rank; do pids_of $name; done | xargs -r kill -KILL 2>/dev/null || true
}
trap end_all EXIT
stop() { kill "$1"; wait "$1" || true; }
is_state() { [ "$(titanctl describe "$1" -o json | tr -d ' \n' | grep -o '"state":"[A-Z]*"' | head -n 1)" = "\"state\":\"$2\"" ]; }
steps() { titanctl describe "$1" -o json | tr -d ' \n' | grep -o '"progress":{"step":[0-9]*' | grep -o '[0-9]*$'; }
has_steps() { [ "$(steps "$1")" -gt "$2" ]; }

apt-get update -qq
apt-get install -y -qq --no-install-recommends ./"$first"/titan{ctl,-controller,-worker,-common,-doc}_*.deb >install.log
grep -q 'set TITAN_CONTROLLER and TITAN_ADDRESS in /etc/titan/worker.env' install.log || fail "the installation does not report what is left to do"
for name in titan-controller titan-worker; do
  none_of $name || fail "the installation started $name"
done
echo installed

# Without its settings the worker reports what is missing, and is not restarted.
start_unit titan-worker
code=0
# shellcheck disable=SC2154  # Set by start_unit.
wait "$titan_worker" || code=$?
[ $code = 2 ] || fail "a worker without settings ended with $code"

printf 'TITAN_LISTEN=%s\nTITAN_METRICS_PORT=-1\n' "$TITAN_CONTROLLER" >>/etc/titan/controller.env
cat >>/etc/titan/worker.env <<SETTINGS
TITAN_CONTROLLER=$TITAN_CONTROLLER
TITAN_ADDRESS=127.0.0.1
TITAN_METRICS_PORT=-1
TITAN_WORKER_FLAGS=--devices cpu:2 --rank-binary $PWD/fake_rank
SETTINGS
export TITAN_TEST_FAKE_RANK='{"steps": -1, "step_ms": 20}'
start_unit titan-controller
start_unit titan-worker
until_true "ready node" sh -c 'titanctl node list | grep -q READY'
job=$(titanctl submit /usr/share/titan/configs/llama3_tiny.toml --nproc 2 --job.dump_folder "$PWD/dump" -q)
until_true "running job" is_state "$job" RUNNING
echo running

apt-get install -y -qq --no-install-recommends ./"$second"/titan{ctl,-controller,-worker,-common,-doc}_*.deb >upgrade.log
[ "$(dpkg-query -W -f '${Version}' titan-worker)" = "$second" ] || fail "the upgrade is not installed"
grep -q "cpu:2" /etc/titan/worker.env || fail "the upgrade lost the settings"
ranks=$(pids_of fake_rank)
# shellcheck disable=SC2154
stop "$titan_worker"
# shellcheck disable=SC2154
stop "$titan_controller"
start_unit titan-controller
start_unit titan-worker
until_true "ready node after the upgrade" sh -c 'titanctl node list | grep -q READY'
until_true "continuing job" has_steps "$job" "$(steps "$job")"
[ "$(pids_of fake_rank)" = "$ranks" ] || fail "the upgrade touched the ranks"
echo upgraded

stop "$titan_worker"
stop "$titan_controller"
apt-get remove -y -qq titan-worker titan-controller >remove.log
[ -d /var/lib/titan-worker/jobs ] || fail "removal took the worker's state"
[ -f /var/lib/titan-controller/titan.db ] || fail "removal took the store"
[ "$(pids_of fake_rank)" = "$ranks" ] || fail "removal touched the ranks"
echo removed

! dpkg --purge titan-worker >purge.log 2>&1 || fail "purged under ranks"
grep -q 'ranks still run in' purge.log || fail "the purge does not report why it was refused"
[ -d /var/lib/titan-worker/jobs ] || fail "a refused purge took the state"
# shellcheck disable=SC2046  # Each is a number.
kill $(pids_of titan-shim)
until_true "end of the ranks" none_of titan-shim
dpkg --purge titan-worker titan-controller titanctl titan-common titan-doc
for left in /var/lib/titan-worker /var/lib/titan-controller /etc/titan /usr/share/titan /usr/bin/titanctl; do
  [ ! -e "$left" ] || fail "$left is left"
done
echo purged

#!/usr/bin/env bash
# Installs everything Titan builds with on a bare Debian 12 machine, as root. Safe to run again: finished parts are skipped.
#
#   deploy/bootstrap.sh [--with-oracles] [--with-cuda] [--quiet]
#
#   (default)        Debian packages, the LibTorch wheel with the two CUDA libraries its CPU half asks for, and the text assets
#   --with-oracles   also what the numeric tests compare against: torchtitan, transformers, peft, bitsandbytes, tensorboard and its profiler plugin, tiktoken, sentencepiece (2.7 GB of CUDA wheels), and transformers 5 in a folder of its own
#   --with-cuda      also the CUDA toolkit's wheels, for building the CUDA device library
#   --quiet          print only what is installed and errors
#
# Packages go into the system, wheels and assets into .deps/ (TITAN_DEPS moves it).
set -euo pipefail
cd "$(dirname "$0")/.."

oracles=0 cuda=0 quiet=0
for argument in "$@"; do
  case "$argument" in
    --with-oracles) oracles=1 ;;
    --with-cuda) cuda=1 ;;
    --quiet) quiet=1 ;;
    -h | --help) sed -n '2,11p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "bootstrap: unknown option '$argument' (see --help)" >&2; exit 2 ;;
  esac
done

deps=${TITAN_DEPS:-$PWD/.deps}
mkdir -p "$deps"
say() { printf 'bootstrap: %s\n' "$*"; }
detail() { [ "$quiet" = 1 ] || say "$@"; }

# Runs a command with its output in a log, shows the log's end only when it fails.
log=$deps/bootstrap.log
logged() {
  if ! "$@" >"$log" 2>&1; then
    echo "bootstrap: failed: $*" >&2
    tail -n 30 "$log" >&2
    exit 1
  fi
}

python_packages=(ca-certificates python3 python3-venv)  # What fetches wheels.
debian_packages=(
  build-essential cmake ninja-build ccache pkg-config git binutils gdb
  python3-dev
  libgrpc++-dev libssl-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev
  libcli11-dev libyaml-cpp-dev libtomlplusplus-dev nlohmann-json3-dev
  libsqlite3-dev etcd-server prometheus-cpp-dev libcpp-httplib-dev
  libpcre2-dev zlib1g-dev libzstd-dev libgloo-dev libdw-dev libcurl4-openssl-dev libexpat1-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  prometheus libfaketime
  clang-format clang-tidy
)

missing_of() {
  local package
  for package in "$@"; do
    dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || echo "$package"
  done
}
# Runs a command during which no package starts a service (Debian's policy-rc.d), as containers have it anyway.
without_services() (
  policy=/usr/sbin/policy-rc.d
  if [ ! -e $policy ]; then
    trap 'rm -f $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod 755 $policy
  fi
  "$@"
)
install_packages() {
  [ $# = 0 ] || logged without_services env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}
# Tests and operators start these as they need them; their packages would start one with the machine.
keep_off() {
  logged update-rc.d "$1" disable
  if command -v systemctl >/dev/null; then logged systemctl disable "$1.service"; fi
}

# step NAME VERSION-TEXT COMMAND...: runs the command unless it already ran with the same text.
step() {
  local name=$1 version=$2 stamp=$deps/.stamp-$1
  shift 2
  if [ "$(cat "$stamp" 2>/dev/null)" = "$version" ]; then
    detail "$name: there"
    return
  fi
  local start=$SECONDS
  say "$name: installing"
  "$@"
  printf '%s' "$version" >"$stamp"
  say "$name: done in $((SECONDS - start)) s"
}

torch="torch==2.11.0"
# libtorch_cpu itself needs only these two of the CUDA wheels.
torch_libraries="nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85"
base_tools="tokenizers==0.22.2 googleapis-common-protos==1.70.0"
client_packages="grpcio==1.85.3 moto==5.2.5 flask==3.1.3 flask-cors==6.0.5 py-partiql-parser==0.6.3"  # Calls of whoever keeps to nothing (tests/integration/hostile), and an object store.
parquet_packages="pyarrow==26.0.1"  # Arrow reads Parquet files; optional.
oracle_packages="torchtitan==0.2.2 torchao==0.17.0 transformers==4.57.3 peft==0.18.0 bitsandbytes==0.50.2 safetensors tensorboard torch-tb-profiler==0.4.3 tiktoken==0.14.0 sentencepiece==0.2.3 pandas numpy"
# Tests that read and write folders of Hugging Face run with both generations of transformers: PYTHONPATH=.deps/transformers5 takes this one.
transformers5_packages="transformers==5.24.0 huggingface_hub==1.33.0 tokenizers==0.23.3"
cuda_packages="nvidia-nccl-cu13==2.28.9 nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt nvidia-nvvm nvidia-cuda-cccl"

pip_install() { logged "$deps/venv/bin/python" -m pip install --no-input --progress-bar off "$@"; }
make_venv() {
  # Of Debian's own python3, which this script installs: another one that comes first in PATH pickles and imports differently.
  if [ "$(readlink -f "$deps/venv/bin/python" 2>/dev/null)" != "$(readlink -f /usr/bin/python3)" ]; then
    rm -rf "$deps/venv"
    logged /usr/bin/python3 -m venv "$deps/venv"
  fi
  # shellcheck disable=SC2086
  pip_install $base_tools
  # shellcheck disable=SC2086
  pip_install --no-deps $torch $torch_libraries
}
# shellcheck disable=SC2086
install_clients() { pip_install $client_packages; }
# shellcheck disable=SC2086
install_parquet() { pip_install $parquet_packages; }
# shellcheck disable=SC2086
install_oracles() { pip_install $torch $oracle_packages; }
# Its other requirements are those of the oracles, which the environment has.
install_transformers5() {
  rm -rf "$deps/transformers5"
  # shellcheck disable=SC2086
  pip_install --no-deps --target "$deps/transformers5" $transformers5_packages
}
# shellcheck disable=SC2086
install_cuda() { pip_install $cuda_packages; }

# Everything that needs no package but Python's.
install_wheels() {
  log=$deps/wheels.log
  local python  # A virtual environment of another one is made again, with all that was in it.
  python="$(/usr/bin/python3 --version) of Debian"
  step "LibTorch" "$torch $torch_libraries $base_tools, $python" make_venv
  step "Parquet" "$parquet_packages, $python" install_parquet
  step "test clients" "$client_packages, $python" install_clients
  if [ "$oracles" = 1 ]; then
    step "test oracles" "$torch $oracle_packages, $python" install_oracles
    step "transformers 5" "$transformers5_packages, $python" install_transformers5
  fi
  if [ "$cuda" = 1 ]; then step "CUDA wheels" "$cuda_packages, $python" install_cuda; fi
  step "text and tokenizer" "assets $(cat deploy/make_assets.sh deploy/make_assets.py | cksum)" bash deploy/make_assets.sh "$deps/assets"
}

mapfile -t missing_python < <(missing_of "${python_packages[@]}")
mapfile -t missing < <(missing_of "${debian_packages[@]}")
count=$((${#missing_python[@]} + ${#missing[@]}))
if [ $count = 0 ]; then
  detail "Debian packages: all $((${#python_packages[@]} + ${#debian_packages[@]})) are there"
  install_wheels
  exit
fi
if [ "$(id -u)" != 0 ]; then
  echo "bootstrap: run as root to install: ${missing_python[*]} ${missing[*]}" >&2
  exit 1
fi
say "Debian packages: installing $count (about a minute)"
start=$SECONDS
logged apt-get update
install_packages "${missing_python[@]}"
# Unpacking packages and wheels takes a core each.
set -m  # A process group of their own, to end all of it with this script.
install_wheels &
wheels=$!
set +m
trap 'kill -- -$wheels 2>/dev/null || true' EXIT
install_packages "${missing[@]}"
case " ${missing[*]} " in *" etcd-server "*) keep_off etcd ;; esac
case " ${missing[*]} " in *" prometheus "*) keep_off prometheus ;; esac
say "Debian packages: done in $((SECONDS - start)) s"
wait $wheels

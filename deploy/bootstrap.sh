#!/usr/bin/env bash
# Installs everything that Titan is built with on a bare Debian 12 machine, as root. It can be run again: finished parts are skipped.
#
#   deploy/bootstrap.sh [--with-oracles] [--with-cuda] [--quiet]
#
#   (default)        Debian packages, the LibTorch wheel with the two CUDA libraries that its CPU half needs, and the assets of examples: text, pictures, small encoders
#   --with-oracles   also the references of the numeric tests: torchtitan, transformers, peft, bitsandbytes, tensorboard and its profiler plugin, tiktoken, sentencepiece (2.7 GB of CUDA wheels), and transformers 5 in a separate folder
#   --with-cuda      also the CUDA toolkit's wheels, for building the CUDA device library
#   --quiet          print only what is installed and errors
#
# Debian packages are installed into the system, wheels and assets into .deps/ (or TITAN_DEPS). Debian packages have the versions of the
# release; wheels have the versions and hashes in deploy/requirements, which deploy/lock_wheels.py writes.
set -euo pipefail
cd "$(dirname "$0")/.."

oracles=0 cuda=0 quiet=0
for argument in "$@"; do
  case "$argument" in
    --with-oracles) oracles=1 ;;
    --with-cuda) cuda=1 ;;
    --quiet) quiet=1 ;;
    -h | --help) sed -n '2,12p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "bootstrap: unknown option '$argument' (see --help)" >&2; exit 2 ;;
  esac
done

deps=${TITAN_DEPS:-$PWD/.deps}
mkdir -p "$deps"
say() { printf 'bootstrap: %s\n' "$*"; }
detail() { [ "$quiet" = 1 ] || say "$@"; }

# Runs a command with its output in a log, and shows the log's end only if it fails.
log=$deps/bootstrap.log
logged() {
  if ! "$@" >"$log" 2>&1; then
    echo "bootstrap: failed: $*" >&2
    tail -n 30 "$log" >&2
    exit 1
  fi
}

# The release pins Debian's packages: its versions change only for fixes. The wheels' hashes are those for its Python.
release=bookworm
found_release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release 2>/dev/null || true)
if [ "$found_release" != $release ] || [ "$(uname -m)" != x86_64 ]; then
  echo "bootstrap: warning: made for Debian 12 ($release) on x86_64; this machine is ${found_release:-unknown} on $(uname -m): packages may be missing and wheels may not work" >&2
fi

python_packages=(ca-certificates python3 python3-venv)  # Needed to download wheels.
debian_packages=(
  build-essential cmake ninja-build ccache pkg-config git binutils gdb
  python3-dev
  libgrpc++-dev libssl-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev
  libcli11-dev libyaml-cpp-dev libtomlplusplus-dev nlohmann-json3-dev
  libsqlite3-dev etcd-server prometheus-cpp-dev libcpp-httplib-dev
  libpcre2-dev zlib1g-dev libzstd-dev libgloo-dev libdw-dev libcurl4-openssl-dev libexpat1-dev
  libjpeg62-turbo-dev libpng-dev libwebp-dev libprotozero-dev
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
# Runs a command during which no package starts a service (Debian's policy-rc.d), as in containers.
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
# Tests and operators start these services as needed; the packages would start them at boot.
keep_off() {
  logged update-rc.d "$1" disable
  if command -v systemctl >/dev/null; then logged systemctl disable "$1.service"; fi
}

# step NAME VERSION-TEXT COMMAND...: runs the command unless it already ran with the same text.
step() {
  local name=$1 version=$2 stamp=$deps/.stamp-$1
  shift 2
  if [ "$(cat "$stamp" 2>/dev/null)" = "$version" ]; then
    detail "$name: already installed"
    return
  fi
  local start=$SECONDS
  say "$name: installing"
  "$@"
  printf '%s' "$version" >"$stamp"
  say "$name: done in $((SECONDS - start)) s"
}

# deploy/requirements lists all wheels with versions and hashes (deploy/lock_wheels.py), so that pip chooses nothing.
requirements=$PWD/deploy/requirements
install_group() {
  logged "$deps/venv/bin/python" -m pip install --no-input --progress-bar off --require-hashes --no-deps -r "$requirements/$1.txt" "${@:2}"
}
make_venv() {
  # Uses Debian's python3, which this script installs: another Python in PATH would pickle and import differently.
  if [ "$(readlink -f "$deps/venv/bin/python" 2>/dev/null)" != "$(readlink -f /usr/bin/python3)" ]; then
    rm -rf "$deps/venv"
    logged /usr/bin/python3 -m venv "$deps/venv"
  fi
  install_group base
}
install_transformers5() {
  rm -rf "$deps/transformers5"
  install_group transformers5 --target "$deps/transformers5"
}
# step_wheels NAME GROUP COMMAND...: runs the command once per content of the group's file and per Python version.
step_wheels() {
  step "$1" "$2 $(sha256sum <"$requirements/$2.txt" | cut -d' ' -f1), $(/usr/bin/python3 --version) of Debian" "${@:3}"
}

# Installs everything that needs only Python's packages.
install_wheels() {
  log=$deps/wheels.log
  step_wheels "LibTorch" base make_venv
  step_wheels "Parquet" parquet install_group parquet
  step_wheels "test clients" clients install_group clients
  if [ "$oracles" = 1 ]; then
    step_wheels "test oracles" oracles install_group oracles
    step_wheels "transformers 5" transformers5 install_transformers5
  fi
  if [ "$cuda" = 1 ]; then step_wheels "CUDA wheels" cuda install_group cuda; fi
  step "text and tokenizer" "assets $(cat deploy/make_assets.sh deploy/make_assets.py | cksum)" bash deploy/make_assets.sh "$deps/assets"
  local images=(deploy/make_image_assets.sh deploy/image_assets/*.py deploy/image_assets/autoencoder.safetensors)
  step "pictures and small encoders" "assets $(cat "${images[@]}" | cksum)" bash deploy/make_image_assets.sh "$deps/assets"
}

mapfile -t missing_python < <(missing_of "${python_packages[@]}")
mapfile -t missing < <(missing_of "${debian_packages[@]}")
count=$((${#missing_python[@]} + ${#missing[@]}))
if [ $count = 0 ]; then
  detail "Debian packages: all $((${#python_packages[@]} + ${#debian_packages[@]})) are installed"
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
# In parallel, because unpacking packages and unpacking wheels use one core each.
set -m  # A separate process group, so that all of it ends with this script.
install_wheels &
wheels=$!
set +m
trap 'kill -- -$wheels 2>/dev/null || true' EXIT
install_packages "${missing[@]}"
case " ${missing[*]} " in *" etcd-server "*) keep_off etcd ;; esac
case " ${missing[*]} " in *" prometheus "*) keep_off prometheus ;; esac
say "Debian packages: done in $((SECONDS - start)) s"
wait $wheels

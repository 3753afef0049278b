#!/usr/bin/env bash
# Prints a package's copyright file in Debian's machine-readable form: for Titan, and for the package's parts from others, with their
# own texts unless Debian has them.
#
#   deploy/debian/make_copyright.sh PACKAGE WHEELS
#
#   WHEELS   the folder that the wheels are installed in (site-packages)
set -euo pipefail
[ $# = 2 ] || { echo "usage: make_copyright.sh PACKAGE WHEELS" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
package=$1 wheels=$2

# licence_text NAME FILE...: prints the licence NAME with the text in the files.
licence_text() {
  printf '\nLicense: %s\n' "$1"
  cat "${@:2}" | tr -d '\r' | sed -e 's/[[:space:]]*$//' -e 's/^$/./' -e 's/^/ /'
}
# licence NAME WHEEL: prints the licence NAME as the wheel states it.
licence() {
  local name=$1 texts
  mapfile -t texts < <(find "$wheels/$2"-*.dist-info -type f \( -iname 'licen[cs]e*' -o -iname 'notice*' \) | sort)
  [ ${#texts[@]} -gt 0 ] || { echo "make_copyright: the wheel $2 states no licence in $wheels" >&2; exit 1; }
  licence_text "$name" "${texts[@]}"
}

cat "$here/copyright"
licence_text BSD-3-clause "$here/../../LICENSE"
[ ! -f "$here/$package.copyright" ] || { echo; cat "$here/$package.copyright"; }
case $package in
  titan-libtorch) licence PyTorch torch; licence NVIDIA-EULA nvidia_cuda_runtime ;;
  titan-parquet) licence Apache-Arrow pyarrow ;;
esac

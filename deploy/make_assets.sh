#!/usr/bin/env bash
# Makes the text and the tokenizer that examples and tests train on.
#
#   deploy/make_assets.sh DIR
#
# DIR/c4_test/data.json, DIR/c4_validation/data.json   English prose as C4-shaped JSON lines (the Perl manuals, from Debian)
# DIR/tokenizer/{tokenizer.json,tokenizer_config.json}  a 2,048-entry byte-level BPE trained on it
#
# The same package version always gives the same bytes. Each folder appears whole or not at all; an existing one is kept.
set -euo pipefail

package=perl-doc
[ $# = 1 ] || { echo "usage: make_assets.sh DIR" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
target=$(cd "$1" && pwd)
python=$(dirname "$target")/venv/bin/python

complete() {
  [ -s "$target/c4_test/data.json" ] && [ -s "$target/c4_validation/data.json" ] &&
    [ -s "$target/tokenizer/tokenizer.json" ] && [ -s "$target/tokenizer/tokenizer_config.json" ] &&
    [ "$(cat "$target/.recipe" 2>/dev/null)" = "$recipe" ]
}

recipe=$(cat "$here/make_assets.sh" "$here/make_assets.py" | cksum)
if complete; then
  echo "make_assets: $target is complete"
  exit 0
fi
if [ ! -x "$python" ]; then
  echo "make_assets: $python is missing; deploy/bootstrap.sh makes it" >&2
  exit 1
fi

work=$(mktemp -d "$target/.making.XXXXXX")
trap 'rm -rf "$work"' EXIT

# Fetches the package file without installing it. apt's sandbox user needs to write into the folder.
download() {
  mkdir -p "$work/deb"
  chmod 711 "$work"
  chmod 777 "$work/deb"
  (cd "$work/deb" && apt-get -q download "$package") >"$work/apt.log" 2>&1
}
chmod 755 "$target"
if ! download; then
  if [ "$(id -u)" = 0 ]; then apt-get -q update >"$work/update.log" 2>&1 || true; fi
  if ! download; then
    tail -n 5 "$work/apt.log" >&2
    echo "make_assets: cannot download the Debian package $package: is this machine offline, or are there no package lists?" >&2
    echo "make_assets: run 'apt-get update' as root with a network, or copy $target from another machine" >&2
    exit 1
  fi
fi
mkdir "$work/text"
dpkg-deb -x "$work"/deb/"$package"_*.deb "$work/text"
"$python" "$here/make_assets.py" --pods "$work/text" --out "$work/assets"

rm -f "$target/.recipe"
for folder in c4_test c4_validation tokenizer; do
  rm -rf "${target:?}/$folder"
  mv "$work/assets/$folder" "$target/$folder"
done
printf '%s' "$recipe" >"$target/.recipe"
echo "make_assets: $(wc -l <"$target/c4_test/data.json") training and $(wc -l <"$target/c4_validation/data.json") validation documents in $target"

#!/usr/bin/env bash
# no_weak_symbols.sh OBJECT...: objects compiled for one processor level must not contain symbols of which the linker
# keeps one of several copies: a program could run AVX-512's copy on a machine without it.
set -euo pipefail

checked=0
for object in "$@"; do
  [[ $object =~ _(avx2|avx512|avx512bf16|amx)\.cc\.o$ ]] || continue
  checked=$((checked + 1))
  symbols=$(nm -C "$object")
  if weak=$(grep -E '^[0-9a-f ]* [WwVvu] ' <<<"$symbols"); then
    echo "weak symbols in $object:" >&2
    echo "$weak" >&2
    exit 1
  fi
done
[[ $checked -gt 0 ]] || { echo "no object of any level among: $*" >&2; exit 1; }
echo "$checked objects without weak symbols"

#!/usr/bin/env bash
# Makes the pictures, the small encoders and the tokenizer with which examples and tests train Flux and Qwen3-VL.
#
#   deploy/make_image_assets.sh DIR
#
# DIR/shapes, DIR/shapes_validation   pictures of a coloured shape with captions, as WebDataset archives
# DIR/t5-tiny, DIR/clip-tiny          text encoders with random weights, and tokenizers for the captions
# DIR/autoencoder-tiny                an autoencoder of such pictures, trained by deploy/image_assets/train_autoencoder.py
# DIR/qwen3-vl-tiny                   a tokenizer for the debug model of Qwen3-VL
#
# It always makes the same bytes, without a network. Each folder appears whole or not at all; an existing one is kept.
set -euo pipefail

[ $# = 1 ] || { echo "usage: make_image_assets.sh DIR" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
target=$(cd "$1" && pwd)
python=$(dirname "$target")/venv/bin/python
folders=(shapes shapes_validation t5-tiny clip-tiny autoencoder-tiny qwen3-vl-tiny)

complete() {
  local folder
  for folder in "${folders[@]}"; do [ -d "$target/$folder" ] || return 1; done
  [ "$(cat "$target/.image_recipe" 2>/dev/null)" = "$recipe" ]
}

recipe=$(cat "$here/make_image_assets.sh" "$here"/image_assets/*.py "$here"/image_assets/autoencoder.safetensors | cksum)
if complete; then
  echo "make_image_assets: $target is complete"
  exit 0
fi
if [ ! -x "$python" ]; then
  echo "make_image_assets: $python is missing; deploy/bootstrap.sh makes it" >&2
  exit 1
fi

work=$(mktemp -d "$target/.making.XXXXXX")
trap 'rm -rf "$work"' EXIT
PYTHONDONTWRITEBYTECODE=1 "$python" "$here/image_assets/make.py" --out "$work/assets"
rm -f "$target/.image_recipe"
for folder in "${folders[@]}"; do
  rm -rf "${target:?}/$folder"
  mv "$work/assets/$folder" "$target/$folder"
done
printf '%s' "$recipe" >"$target/.image_recipe"
echo "make_image_assets: pictures of shapes, small encoders and a tokenizer are in $target"

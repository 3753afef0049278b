"""Writes a folder of pictures with their captions next to them, as a user may have one: 000.png, 000.txt, ...

    python3 deploy/image_assets/write_folder.py FOLDER [COUNT]
"""

import pathlib
import sys

import shapes


def main():
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True)
    for i, (pixels, caption) in enumerate(shapes.training_samples(int(sys.argv[2]) if len(sys.argv) == 3 else 96, seed=3)):
        (folder / f"{i:03d}.png").write_bytes(shapes.png(pixels))
        (folder / f"{i:03d}.txt").write_text(caption + "\n")


main()

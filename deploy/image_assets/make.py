"""Makes pictures with captions, the small encoders of Flux and a tokenizer for Qwen3-VL. Called by make_image_assets.sh."""

import argparse
import io
import json
import pathlib
import tarfile

import autoencoder
import qwen_tokenizer
import shapes
import tensors
import text_encoders

TRAINING, VALIDATION = 1536, 192  # Samples.


def add(archive, name, data):
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def write_archive(path, samples):
    """Writes a WebDataset: KEY.png and KEY.txt of each sample."""
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for i, (pixels, caption) in enumerate(samples):
            add(archive, f"{i:06d}.png", shapes.png(pixels))
            add(archive, f"{i:06d}.txt", caption.encode())


def write_autoencoder(folder):
    weights, config = autoencoder.expand(pathlib.Path(__file__).with_name("autoencoder.safetensors"))
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors.write(folder / "diffusion_pytorch_model.safetensors", weights)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args().out
    write_archive(out / "shapes/shapes-train-000.tar", shapes.training_samples(TRAINING, seed=1))
    write_archive(out / "shapes_validation/shapes-validation-000.tar", shapes.validation_samples(VALIDATION, seed=2))
    text_encoders.write_t5(out / "t5-tiny")
    text_encoders.write_clip(out / "clip-tiny")
    write_autoencoder(out / "autoencoder-tiny")
    qwen_tokenizer.write(out / "qwen3-vl-tiny")


main()

"""Tests the pictures and small encoders of deploy/make_image_assets.sh: the same bytes each time, pictures that show what their captions say, no
held-out combination or phrasing among the training captions, tokens as SentencePiece makes them, and an autoencoder that keeps pictures."""

import io
import json
import os
import pathlib
import struct
import subprocess
import sys
import tarfile
import tempfile
import unittest

import sentencepiece
from PIL import Image

SOURCE, DEPS = pathlib.Path(os.environ["TITAN_SOURCE"]), pathlib.Path(os.environ["TITAN_DEPS"])
TESTS = pathlib.Path(os.environ["TITAN_BIN"]).parent / "tests"
SCRIPT, ASSETS = SOURCE / "deploy/make_image_assets.sh", DEPS / "assets"
sys.path.insert(0, str(SOURCE / "deploy/image_assets"))
import shapes  # noqa: E402
import tensors  # noqa: E402

FOLDERS = ("shapes", "shapes_validation", "t5-tiny", "clip-tiny", "autoencoder-tiny", "qwen3-vl-tiny")


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for name in FOLDERS for path in (folder / name).rglob("*") if path.is_file()}


def samples(dataset):
    """Returns [(picture, caption)] of a dataset's archive."""
    (path,) = (ASSETS / dataset).glob("*.tar")
    with tarfile.open(path) as archive:
        files = {member.name: archive.extractfile(member).read() for member in archive}
    keys = sorted({name.split(".")[0] for name in files})
    return [(Image.open(io.BytesIO(files[f"{key}.png"])), files[f"{key}.txt"].decode()) for key in keys]


def pixels_of(picture):
    data = picture.tobytes()
    return list(zip(data[::3], data[1::3], data[2::3]))


class ImageAssetsTest(unittest.TestCase):
    def test_the_same_bytes_each_time(self):
        with tempfile.TemporaryDirectory() as work:
            work = pathlib.Path(work)
            (work / "venv").symlink_to(DEPS / "venv")
            subprocess.run(["bash", SCRIPT, work / "assets"], check=True, capture_output=True)
            made = contents(work / "assets")
            self.assertEqual({}, {name: len(data) for name, data in contents(ASSETS).items() if made.get(name) != data})
            self.assertEqual(set(made), set(contents(ASSETS)))
            again = subprocess.run(["bash", SCRIPT, work / "assets"], check=True, capture_output=True, text=True)
            self.assertIn("is complete", again.stdout)

    def test_pictures_show_their_captions(self):
        for dataset in ("shapes", "shapes_validation"):
            for picture, caption in samples(dataset)[:200]:
                words = set(caption.replace(",", "").split())
                (colour,), (background,) = words & set(shapes.COLOURS), words & set(shapes.BACKGROUNDS)
                self.assertEqual((picture.mode, picture.size), ("RGB", (shapes.SIDE, shapes.SIDE)))
                near = lambda pixel, wanted: all(abs(a - b) <= 8 for a, b in zip(pixel, wanted))  # noqa: E731
                pixels = pixels_of(picture)
                self.assertGreater(sum(near(pixel, shapes.COLOURS[colour]) for pixel in pixels), 100, caption)
                self.assertGreater(sum(near(pixel, shapes.BACKGROUNDS[background]) for pixel in pixels), 1500, caption)

    def test_validation_is_held_out(self):
        captions = {caption for _, caption in samples("shapes")}
        self.assertGreater(len(captions), 300)
        prompts = [prompt for _, prompt in shapes.measured_prompts()]
        self.assertEqual(len(prompts), 18)
        self.assertEqual(set(), captions & {*prompts, *(caption for _, caption in samples("shapes_validation"))})

    def test_tokens_are_sentencepieces(self):
        texts = ["a large red circle on a white background", "", "Zebra  crossings, 7!", " purple\u00e9 "]
        processor = sentencepiece.SentencePieceProcessor(model_file=str(ASSETS / "t5-tiny/spiece.model"))
        with tempfile.TemporaryDirectory() as work:
            work = pathlib.Path(work)
            (work / "texts").write_bytes(b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts))
            for folder, length in (("t5-tiny", 24), ("clip-tiny", 77)):
                subprocess.run([TESTS / "tokenize_prompts", ASSETS / folder, str(length), work / "texts", work / folder], check=True, capture_output=True)
            ids = struct.unpack(f"<{24 * len(texts)}q", (work / "t5-tiny").read_bytes())
            clip = struct.unpack(f"<{77 * len(texts)}q", (work / "clip-tiny").read_bytes())
        for i, text in enumerate(texts):
            wanted = [*processor.encode(text), processor.eos_id()]
            self.assertEqual(list(ids[24 * i : 24 * (i + 1)]), wanted + [processor.pad_id()] * (24 - len(wanted)))
        vocabulary = json.loads((ASSETS / "clip-tiny/vocab.json").read_text())
        wanted = ["<|startoftext|>", *(word + "</w>" for word in texts[0].split()), "<|endoftext|>"]
        self.assertEqual(list(clip[: len(wanted)]), [vocabulary[token] for token in wanted])

    # Through the encoder and the decoder of the engine.
    def test_autoencoder_keeps_pictures(self):
        pictures = [picture for picture, _ in samples("shapes_validation")[:8]]
        planes = [[pixel[channel] / 127.5 - 1 for pixel in pixels_of(picture)] for picture in pictures for channel in range(3)]
        size = [len(pictures), 3, shapes.SIDE, shapes.SIDE]
        folder = str(ASSETS / "autoencoder-tiny")
        with tempfile.TemporaryDirectory() as work:
            work = pathlib.Path(work)
            zeros = [len(pictures), 16, shapes.SIDE // 8, shapes.SIDE // 8]
            tensors.write(work / "images", {"images": (size, tensors.floats(sum(planes, []))),
                                            "noise": (zeros, tensors.floats([0.0] * tensors.count(zeros)))})  # fmt: skip
            one = {"path": folder, "dtype": "float32", "int8": False}
            cases = [{**one, "kind": "encoder", "inputs": str(work / "images"), "output": str(work / "encoded")},
                     {**one, "kind": "decoder", "inputs": str(work / "encoded"), "output": str(work / "decoded")}]  # fmt: skip
            subprocess.run([TESTS / "run_encoders"], input=json.dumps(cases), text=True, check=True, capture_output=True)
            latents, decoded = tensors.read(work / "encoded")[0]["latents"], tensors.read(work / "decoded")[0]["images"]
        values = tensors.floats(decoded[2])
        error = sum(abs(min(1, max(-1, a)) - b) for a, b in zip(values, sum(planes, []))) / len(values) * 127.5
        print(f"mean error {error:.2f} of 255")
        self.assertLess(error, 7)
        latent = tensors.floats(latents[2])
        mean = sum(latent) / len(latent)
        deviation = (sum((value - mean) ** 2 for value in latent) / len(latent)) ** 0.5
        self.assertTrue(abs(mean) < 0.2 and 0.7 < deviation < 1.3, (mean, deviation))


if __name__ == "__main__":
    unittest.main()

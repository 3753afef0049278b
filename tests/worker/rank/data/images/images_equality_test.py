"""Compares images with Pillow and torchtitan: decoding, resizing, cutting and conversion give the same bytes in every mode, a
training picture and the patches of a vision-language model the same floats, and a written PNG file is read back by Pillow.

JPEG and WebP are decoded by other versions of libjpeg-turbo and libwebp than those in Pillow's wheel. Their pixels are equal
all the same, also where a damaged file is accepted. The one exception, which is left out here, is a progressive JPEG file that
lacks whole scans: libjpeg-turbo 2.1.5 and 3.2 smooth it differently, in a test of one scan by at most 2 of 255."""

import io
import os
import random
import struct
import sys
import unittest
import warnings
import zlib
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import torch
from PIL import ExifTags, Image
from request_program import RequestProgram

COUNT = 5 if os.environ.get("TITAN_LONG") != "1" else 60
COLORS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # Samples of a pixel by PNG's colour type.
DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def packed_rows(samples, depth):
    """Returns the unfiltered rows of samples [height, width, channels], each with its filter byte."""
    height = samples.shape[0]
    flat = samples.reshape(height, -1)
    if depth == 16:
        rows = flat.astype(">u2").view(np.uint8).reshape(height, -1)
    else:
        bits = np.unpackbits(flat.astype(np.uint8)[..., None], axis=-1)[..., 8 - depth:]
        rows = np.packbits(bits.reshape(height, -1), axis=-1)
    return b"".join(b"\0" + row.tobytes() for row in rows)


def write_png(samples, color, depth, interlaced=False, extra=b""):
    """Pillow writes no interlaced files, and few modes of 16 bits."""
    height, width = samples.shape[:2]
    parts = [samples[y::dy, x::dx] for x, y, dx, dy in ADAM7] if interlaced else [samples]
    data = b"".join(packed_rows(part, depth) for part in parts if part.size)
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, int(interlaced))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(data, 1)) + chunk(b"IEND", b"")


def scanned_bytes(jpeg):
    """Returns the places of a JPEG file's compressed data, between the headers of its scans and the markers after them."""
    places, at = [], 2
    while jpeg[at + 1] != 0xd9:
        begin = at + 2 + int.from_bytes(jpeg[at + 2:at + 4], "big")
        end = begin
        if jpeg[at + 1] == 0xda:
            while jpeg[end] != 0xff or jpeg[end + 1] == 0:
                end += 1
        places += range(begin, end)
        at = end
    return places


class Images(RequestProgram):
    PROGRAM = "process_image"

    def setUp(self):
        self.random = random.Random(self.id())
        self.numbers = np.random.default_rng(self.random.randrange(1 << 30))
        warnings.simplefilter("ignore")  # About transparency in palettes.

    def process(self, data, **request):
        """Returns the program's answer, and the bytes of the result."""
        (self.root / "in").write_bytes(data)
        answer = self.reply_to({"file": str(self.root / "in"), "out": str(self.root / "out"), **request})
        return answer, (self.root / "out").read_bytes()

    def size(self, most=70):
        return self.random.randint(1, most), self.random.randint(1, most)

    def noise(self, width, height, channels, depth=8):
        """Noise, also of the extreme values only, in which sums are clipped."""
        samples = self.numbers.integers(0, 1 << depth, (height, width, channels))
        return samples if self.random.random() < 0.6 else np.where(samples >> (depth - 1), (1 << depth) - 1, 0)

    def waves(self, width, height, channels):
        y, x = np.mgrid[0:height, 0:width]
        waves = np.stack([127 + 110 * np.sin(x / (5 + 3 * c) + y / (7 + c)) for c in range(channels)], -1)
        return np.clip(waves + self.numbers.normal(0, 9, waves.shape), 0, 255).astype(np.uint8)

    def png(self, color, depth, width, height, interlaced=False):
        extra = b""
        if color == 3:  # Some numbers have no colour.
            extra = chunk(b"PLTE", self.numbers.integers(0, 256, 3 * self.random.randint(1, 1 << depth), dtype=np.uint8).tobytes())
            extra += chunk(b"tRNS", b"\x07") if self.random.random() < 0.5 else b""
        return write_png(self.noise(width, height, COLORS[color], depth), color, depth, interlaced, extra)

    def one_of_each_mode(self, width, height):
        """Yields files that decode to all modes."""
        for color, depths in DEPTHS.items():
            for depth in {depths[0], 8, depths[-1]}:
                yield self.png(color, depth, width, height)
        yield self.saved(Image.frombytes("CMYK", (width, height), self.waves(width, height, 4).tobytes()), "JPEG")

    def saved(self, image, kind, **options):
        file = io.BytesIO()
        image.save(file, kind, **options)
        return file.getvalue()

    def opened(self, data):
        image = Image.open(io.BytesIO(data))
        image.load()
        return image

    def pixels(self, image):
        data = image.convert("L").tobytes() if image.mode == "1" else image.tobytes()
        if image.mode == "P":
            data += bytes(image.getpalette()).ljust(768, b"\0")
        return data

    def assert_same(self, image, result, label=""):
        answer, pixels = result
        self.assertNotIn("error", answer, label)
        self.assertEqual((image.mode, *image.size), (answer["mode"], answer["width"], answer["height"]), label)
        if pixels != self.pixels(image):
            self.fail(f"other pixels: {image.mode} {image.size} {label}")

    def test_png(self):
        modes = set()
        for color, depths in DEPTHS.items():
            for depth in depths:
                for i in range(COUNT):
                    data = self.png(color, depth, *self.size(20), interlaced=i % 2 == 1)
                    image = self.opened(data)
                    modes.add(image.mode)
                    self.assert_same(image, self.process(data), f"colour {color} depth {depth}")
        self.assertEqual({"1", "L", "LA", "P", "RGB", "RGBA", "I;16"}, modes)

    def jpegs(self):
        for i in range(COUNT):
            width, height = self.size(90)
            options = {"quality": self.random.randint(5, 100), "progressive": i % 2 == 1, "restart_marker_blocks": i % 3}
            picture = Image.fromarray(self.waves(width, height, 3))
            for subsampling in (0, 1, 2):
                yield self.saved(picture, "JPEG", subsampling=subsampling, **options)
            yield self.saved(picture, "JPEG", keep_rgb=True, **options)
            yield self.saved(picture.convert("L"), "JPEG", **options)
            ink = self.saved(Image.frombytes("CMYK", (width, height), self.waves(width, height, 4).tobytes()), "JPEG", **options)
            yield ink
            transform = ink.index(b"Adobe") + 11
            yield ink[:transform] + b"\2" + ink[transform + 1:]  # The same numbers as YCCK.

    def test_jpeg(self):
        modes = set()
        for data in self.jpegs():
            image = self.opened(data)
            modes.add(image.mode)
            self.assert_same(image, self.process(data))
        self.assertEqual({"L", "RGB", "CMYK"}, modes)

    def test_sampling_factors_of_jpeg(self):
        """Pillow writes only three kinds of subsampling. The other kinds decode the same data to nonsense, which is equal too."""
        for factors in (0x11, 0x12, 0x14, 0x21, 0x24, 0x41, 0x42, 0x31):
            data = bytearray(self.saved(Image.fromarray(self.waves(61, 50, 3)), "JPEG", subsampling=2))
            data[data.index(b"\xff\xc0") + 11] = factors
            self.assert_same(self.opened(bytes(data)), self.process(bytes(data)), hex(factors))

    def test_damaged_jpeg_is_judged_as_by_pillow(self):
        accepted = 0
        for progressive in (False, True):
            whole = self.saved(Image.fromarray(self.waves(30, 24, 3)), "JPEG", progressive=progressive)
            places = scanned_bytes(whole) if progressive else range(len(whole))
            for i in range(20 * COUNT):
                data = bytearray(whole)
                data[self.random.choice(places)] ^= 1 << self.random.randrange(8)
                data = bytes(data[:self.random.randrange(len(data))] if i % 8 == 0 else data)
                result = self.process(data)
                try:
                    image = self.opened(data)
                except Exception:
                    continue  # Pillow's own reader of headers refuses a little more than libjpeg.
                accepted += 1
                self.assert_same(image, result, f"damage {i}")
        self.assertGreater(accepted, 10 * COUNT)

    def test_webp(self):
        modes = set()
        for _ in range(COUNT):
            width, height = self.size(60)
            for channels in (3, 4):
                image = Image.fromarray(self.waves(width, height, channels))
                for options in ({"lossless": True, "exact": True}, {"quality": self.random.randint(1, 100)}):
                    data = self.saved(image, "WEBP", **options)
                    decoded = self.opened(data)
                    modes.add(decoded.mode)
                    self.assert_same(decoded, self.process(data))
        self.assertEqual({"RGB", "RGBA"}, modes)

    def test_the_first_frame_of_an_animation(self):
        for channels in (3, 4):
            frames = [Image.fromarray(self.waves(50, 40, channels)) for _ in range(3)]
            data = self.saved(frames[0], "WEBP", save_all=True, append_images=frames[1:])
            self.assertEqual(3, Image.open(io.BytesIO(data)).n_frames)
            self.assert_same(self.opened(data), self.process(data))

    def test_other_formats_are_named(self):
        picture = Image.fromarray(self.waves(9, 9, 3))
        for kind, name in (("GIF", "a GIF image"), ("TIFF", "a TIFF image"), ("BMP", "a BMP image"), ("AVIF", "an AVIF image"),
                           ("JPEG2000", "a JPEG 2000 image"), ("ICO", "an icon"), ("PDF", "a PDF document")):
            answer, _ = self.process(self.saved(picture, kind))
            self.assertEqual(("INVALID_ARGUMENT", f"{name}; supported: JPEG, PNG, WebP"), (answer["code"], answer["error"]))

    def sizes_to_resize(self):
        """Yields old and new sizes: any, one axis kept, both kept, and those around the limit between the two orders of the axes."""
        for _ in range(COUNT):
            (width, height), (to_width, to_height) = self.size(), self.size()
            yield width, height, to_width, to_height
            yield width, height, to_width, height
            yield width, height, width, to_height
            yield width, height, width, height
            less = self.random.randint(0, width - 1)
            yield width, 2 * height + 2 * less, width - less, max(1, 2 * height + self.random.randint(-1, 1))

    def test_resize_in_every_mode(self):
        modes, checked = set(), 0
        for width, height, to_width, to_height in self.sizes_to_resize():
            for data in self.one_of_each_mode(width, height):
                expected = self.opened(data).resize((to_width, to_height), Image.Resampling.BICUBIC)
                self.assert_same(expected, self.process(data, steps=[["resize", to_width, to_height]]), f"from {width, height}")
                modes.add(expected.mode)
                checked += 1
        self.assertEqual({"1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"}, modes)
        print(f"{checked} images resized", flush=True)

    def test_a_part_of_a_resized_image(self):
        for width, height, to_width, to_height in self.sizes_to_resize():
            left, top = self.random.randrange(to_width), self.random.randrange(to_height)
            box = [left, top, self.random.randint(1, to_width - left), self.random.randint(1, to_height - top)]
            for data in self.one_of_each_mode(width, height):
                expected = self.opened(data).resize((to_width, to_height)).crop((left, top, left + box[2], top + box[3]))
                for steps in ([["resize", to_width, to_height, *box]], [["resize", to_width, to_height], ["crop", *box]]):
                    self.assert_same(expected, self.process(data, steps=steps), f"{box} from {width, height}")

    def test_large_reductions_and_enlargements(self):
        for size, to in (((1500, 700), (40, 30)), ((30, 900), (31, 7)), ((7, 5), (400, 300)), ((1, 1), (60, 50))):
            data = self.png(2, 8, *size)
            self.assert_same(self.opened(data).resize(to), self.process(data, steps=[["resize", *to]]), f"{size} to {to}")

    def test_conversion_to_rgb(self):
        for _ in range(COUNT):
            for data in self.one_of_each_mode(*self.size(40)):
                self.assert_same(self.opened(data).convert("RGB"), self.process(data, steps=[["rgb"]]))

    def test_square_crop_is_torchtitans(self):
        from torchtitan.models.flux.flux_datasets import _process_cc12m_image
        for i in range(3 * COUNT):
            size = self.random.choice((16, 25, 32))
            width, height = (self.random.randint(size - 1, 4 * size) for _ in range(2))
            if i % 3 == 0:
                height = width
            for data in self.one_of_each_mode(width, height):
                bounds = []

                def randint(low, high, shape):
                    bounds.append(high)
                    return torch.tensor([min(i, high - 1)])

                with mock.patch.object(torch, "randint", randint):
                    expected = _process_cc12m_image(self.opened(data), size)
                answer, numbers = self.process(data, result="square", size=size, draw=i)
                if expected is None:
                    self.assertEqual("OUT_OF_RANGE", answer["code"])
                    self.assertIn(f"{width} x {height}", answer["error"])
                    continue
                self.assertEqual(bounds, [answer["bound"]])
                self.assertEqual(expected.numpy().tobytes(), numbers, f"{width, height} to {size}")

    def test_patches_are_torchtitans(self):
        from torchtitan.experiments.vlm.datasets.utils import image as vlm
        cut, dropped = 0, 0
        for i in range(12 * COUNT):
            patch, merge, most = self.random.choice((4, 7, 16)), self.random.choice((1, 1, 2)), self.random.choice((1, 5, 16, 60))
            width, height = self.size(120) if i % 3 else (self.random.randint(1, 9), self.random.randint(300, 900))
            data = self.png(self.random.choice((2, 6, 3)), 8, width, height)
            with mock.patch.object(vlm.logger, "warning"):
                pixels = vlm.process_image(data, patch, merge, most)
            answer, numbers = self.process(data, result="patches", patch=patch, merge=merge, max=most)
            if pixels is None:
                dropped += 1
                self.assertEqual("INVALID_ARGUMENT", answer.get("code"), f"{width, height}")
                self.assertIn(f"{width} x {height}", answer["error"])
                continue
            cut += 1
            patches, places = vlm.convert_to_patches(pixels, patch)
            self.assertEqual((pixels.shape[1] // patch, pixels.shape[2] // patch), (answer["rows"], answer["columns"]))
            self.assertEqual(patches.contiguous().numpy().tobytes() + places[:, 1:].contiguous().numpy().tobytes(), numbers)
        print(f"{cut} images cut, {dropped} dropped", flush=True)
        self.assertGreater(min(cut, dropped), COUNT)

    def test_patches_are_those_of_qwens_processor(self):
        """The slow processor: the same bits. It ignores "size", but not min_pixels and max_pixels."""
        from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
        cut, dropped = 0, 0
        for i in range(12 * COUNT):
            patch, merge, frames = self.random.choice((4, 7, 16)), self.random.choice((1, 2, 3)), self.random.choice((1, 2))
            least = self.random.choice((1, 50, 4000))
            given = {"patch_size": patch, "merge_size": merge, "temporal_patch_size": frames, "min_pixels": least,
                     "max_pixels": self.random.choice((least, 4000, 9000)), "image_processor_type": "Qwen2VLImageProcessor"}
            if i % 2 == 0:
                given |= {"image_mean": [0.5] * 3, "image_std": [0.5, 0.25, 1.5], "rescale_factor": 1 / 250}
            width, height = self.size(120) if i % 6 else (self.random.randint(1, 4), self.random.randint(300, 900))
            data = self.png(self.random.choice((0, 2, 6, 3)), 8, width, height)
            try:
                # Without the form of the array it takes a height of 1 or 3 for the colours.
                expected = Qwen2VLImageProcessor(**given)(self.opened(data).convert("RGB"), input_data_format="channels_last")
            except ValueError:
                expected = None
            answer, numbers = self.process(data, result="qwen", processor=given)
            if expected is None or not expected["image_grid_thw"].all():
                dropped += 1
                self.assertEqual("INVALID_ARGUMENT", answer.get("code"), f"{width, height} {given}")
                self.assertIn(f"{width} x {height}", answer["error"])
                continue
            cut += 1
            self.assertEqual([1, answer["rows"], answer["columns"]], expected["image_grid_thw"][0].tolist(), f"{width, height} {given}")
            self.assertEqual(np.float32(expected["pixel_values"]).tobytes(), numbers, f"{width, height} {given}")
        print(f"{cut} images cut as by Qwen's processor, {dropped} dropped", flush=True)
        self.assertGreater(cut, 8 * COUNT)
        self.assertGreater(dropped, 0)

    def test_qwens_processor_honours_size(self):
        data = self.png(2, 8, 100, 60)
        sizes = [self.process(data, result="qwen", processor=given | {"patch_size": 4})[0] for given in (
            {"size": {"shortest_edge": 64, "longest_edge": 1024}}, {"min_pixels": 64, "max_pixels": 1024},
            {"size": {"shortest_edge": 64, "longest_edge": 9000}, "max_pixels": 1024})]
        for answer in sizes:
            self.assertEqual((6, 10), (answer["rows"], answer["columns"]))
        self.assertEqual((16, 24), tuple(self.process(data, result="qwen", processor={"patch_size": 4})[0][side] for side in (
            "rows", "columns")))

    def test_settings_of_qwens_processor_are_refused_by_name(self):
        data = self.png(2, 8, 9, 9)
        for key, value, words in (("image_processor_type", "SiglipImageProcessor", "Qwen2VLImageProcessor or"),
                                  ("patch_size", 0, "an integer from 1 to 4096"), ("merge_size", "two", "an integer from 1 to 4096"),
                                  ("size", {"height": 3}, "shortest_edge and longest_edge"), ("size", 5, "shortest_edge and"),
                                  ("max_pixels", 2, "at most 2 pixels as the smallest area"), ("min_pixels", 1 << 50, "an integer"),
                                  ("image_mean", [1, 2], "each of three colours"), ("image_std", [1, 0, 1], "only numbers above 0"),
                                  ("rescale_factor", "1/255", "a number"), ("do_resize", False, "only true"),
                                  ("do_normalize", False, "only true"), ("resample", 2, "only 3 (bicubic)")):
            answer, _ = self.process(data, result="qwen", processor={key: value})
            self.assertEqual("INVALID_ARGUMENT", answer.get("code"), key)
            where = "size" if key == "max_pixels" else key
            self.assertRegex(answer["error"], f"^preprocessor_config.json: {where} is ")
            self.assertIn(words, answer["error"])
        self.assertIn("not a JSON object", self.process(data, result="qwen", processor=[])[0]["error"])

    def test_a_written_file_is_read_by_pillow(self):
        fields = {"software": "AI generated;txt2img;flux", "make": "M", "model": "a.png", "description": "ein Vögelchen, 漢", "texts":
                  [["Comment", "one\ntwo 漢"], ["seed", "7"]]}
        for _ in range(COUNT):
            source = self.png(2, 8, *self.size(40))
            answer, written = self.process(source, result="png", fields=fields)
            self.assertNotIn("error", answer)
            image = self.opened(written)
            self.assertEqual((self.opened(source).tobytes(), "RGB"), (image.tobytes(), image.mode))
            self.assertEqual(dict(fields["texts"]), {key: image.info[key] for key in ("Comment", "seed")})
            exif = image.getexif()
            self.assertEqual([fields["software"], fields["make"], fields["model"]],
                             [exif[tag] for tag in (ExifTags.Base.Software, ExifTags.Base.Make, ExifTags.Base.Model)])
            self.assertEqual(fields["description"].encode(), exif[ExifTags.Base.ImageDescription].encode("latin-1"))
            self.assertEqual(written, self.process(source, result="png", fields=fields)[1])
        self.assertEqual({}, dict(self.opened(self.process(source, result="png", fields={
            "software": "", "make": "", "model": "", "description": "", "texts": []})[1]).getexif()))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)

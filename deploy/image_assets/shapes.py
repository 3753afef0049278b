"""Pictures of one coloured shape on a plain background, with captions, and the prompts by which a model that learned from them is measured.

Uses the standard library only, and the same seed always gives the same bytes.
"""

import random
import struct
import zlib
from typing import NamedTuple

SIDE = 64  # Pixels.
COLOURS = {"red": (220, 40, 40), "green": (40, 160, 60), "blue": (40, 80, 220),
           "yellow": (240, 210, 40), "purple": (140, 50, 170), "orange": (245, 130, 30)}  # fmt: skip
BACKGROUNDS = {"white": (245, 245, 245), "gray": (128, 128, 128), "black": (15, 15, 15)}
SHAPES = ("circle", "square", "triangle", "diamond")
SIZES = {"small": (9, 12), "large": (18, 22)}  # Half of the width, in pixels.
PLACES = {"left": (-12, 0), "right": (12, 0), "top": (0, -12), "bottom": (0, 12)}  # Of the centre, from the picture's.

PHRASINGS = ("a {size} {colour} {shape} on a {background} background", "a {colour} {shape} on a {background} background",
             "{colour} {shape}, {background} background", "a picture of a {colour} {shape}, {size}, in front of {background}",
             "a {background} picture with a {size} {colour} {shape} at the {place}")  # fmt: skip
HELD_OUT_PHRASINGS = ("one {shape}, it is {colour}, the background is {background}",
                      "{background} background and a {shape} of {colour} colour")  # fmt: skip


class Scene(NamedTuple):
    colour: str
    shape: str
    background: str
    size: str
    place: str  # One of PLACES, or "" for the middle.


def is_held_out(scene):
    """Returns whether the combination of colour, shape and background is kept from training: 12 of 72, two of each colour."""
    pair = SHAPES.index(scene.shape) + len(SHAPES) * list(BACKGROUNDS).index(scene.background)
    return pair % len(COLOURS) == list(COLOURS).index(scene.colour)


def draw_scene(random_numbers, held_out):
    """Returns a random scene, held out or not."""
    while True:
        scene = Scene(*(random_numbers.choice(list(names)) for names in (COLOURS, SHAPES, BACKGROUNDS, SIZES)), "")
        if is_held_out(scene) == held_out:
            return scene


def describe(scene, phrasing):
    return phrasing.format(**scene._asdict()).replace("a orange", "an orange")


def span(shape, half, y):
    """Returns half of the width of a shape in the row `y` pixels below its centre; 0 where it does not reach."""
    if abs(y) > half:
        return 0.0
    if shape == "circle":
        return (half * half - y * y) ** 0.5
    if shape == "square":
        return 0.85 * half if abs(y) <= 0.85 * half else 0.0
    if shape == "triangle":
        return (y + half) / 2
    return half - abs(y)


def render(scene, random_numbers):
    """Returns the picture's RGB bytes in rows. Position, size and colours vary a little."""
    half = random_numbers.uniform(*SIZES[scene.size])
    offset = PLACES.get(scene.place, (0, 0))
    centre = [SIDE / 2 + part + random_numbers.uniform(-4, 4) for part in offset]
    vary = lambda colour: tuple(min(255, max(0, part + random_numbers.randint(-8, 8))) for part in colour)  # noqa: E731
    front, back = vary(COLOURS[scene.colour]), vary(BACKGROUNDS[scene.background])
    return b"".join(render_row(front, back, centre[0], span(scene.shape, half, row + 0.5 - centre[1])) for row in range(SIDE))


def render_row(front, back, centre, half):
    """Returns a row of the background with `front` from centre - half to centre + half. Pixels at the ends are mixed by what is covered."""
    first, last = max(0.0, centre - half), min(float(SIDE), centre + half)
    if last <= first:
        return bytes(back) * SIDE

    def mixed(x):
        covered = max(0.0, min(last, x + 1) - max(first, x))
        return bytes(round(covered * f + (1 - covered) * b) for f, b in zip(front, back))

    left, right = int(first), min(int(last), SIDE - 1)
    if left == right:
        return bytes(back) * left + mixed(left) + bytes(back) * (SIDE - 1 - left)
    return bytes(back) * left + mixed(left) + bytes(front) * (right - left - 1) + mixed(right) + bytes(back) * (SIDE - 1 - right)


def png(pixels):
    """Returns a PNG file of a square picture's RGB bytes."""
    chunk = lambda name, data: struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))  # noqa: E731
    rows = b"".join(b"\0" + pixels[3 * SIDE * row : 3 * SIDE * (row + 1)] for row in range(SIDE))
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 6)) + chunk(b"IEND", b"")


def training_samples(count, seed):
    """Yields (RGB bytes, caption): scenes that are not held out, in the phrasings of training."""
    random_numbers = random.Random(seed)
    for _ in range(count):
        phrasing = random_numbers.choice(PHRASINGS)
        scene = draw_scene(random_numbers, held_out=False)
        if "{place}" in phrasing:
            scene = scene._replace(place=random_numbers.choice(list(PLACES)))
        yield render(scene, random_numbers), describe(scene, phrasing)


def validation_samples(count, seed):
    """Yields (RGB bytes, caption): alternately a held-out scene in a phrasing of training, and any other in a held-out phrasing."""
    random_numbers = random.Random(seed)
    for i in range(count):
        scene = draw_scene(random_numbers, held_out=i % 2 == 0)
        phrasing = PHRASINGS[i // 2 % 3] if i % 2 == 0 else HELD_OUT_PHRASINGS[i // 2 % 2]
        yield render(scene, random_numbers), describe(scene, phrasing)


def measured_prompts():
    """Returns 18 held-out (scene, prompt), 3 of each colour: two held-out combinations in phrasings of training, and a combination that
    training has in a held-out phrasing."""
    prompts = []
    for number, colour in enumerate(COLOURS):
        scenes = [Scene(colour, shape, background, "large", "") for background in BACKGROUNDS for shape in SHAPES]
        for i, scene in enumerate([scene for scene in scenes if is_held_out(scene)][:2]):
            prompts.append((scene, describe(scene, PHRASINGS[i])))
        scene = [scene for scene in scenes if not is_held_out(scene)][number]
        prompts.append((scene, describe(scene, HELD_OUT_PHRASINGS[number % 2])))
    return prompts

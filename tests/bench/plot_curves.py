"""Draws a picture of loss curves: plot_curves.py CURVES.json OUT.svg [--title TEXT] [--smooth N].

CURVES.json holds {"name": [loss of step 1, ...], ...}, as tests/numerics/optimizer_curves.py and optimizer_state_types_test.py write it. If
a name begins with another's, its curve is drawn dashed in the other's colour: it is the reference for the same training. Lines
are means of --smooth steps.
"""

import argparse
import json
import math
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 400, 52, 16, 34, 40
COLOURS = ["#1f5fa8", "#c2571a", "#2f7d4f", "#8a3fa0", "#8c6d1f", "#555555"]


def smoothed(values, steps):
    """Returns for each step the mean of at most `steps` values up to it."""
    return [sum(values[max(0, i + 1 - steps):i + 1]) / min(steps, i + 1) for i in range(len(values))]


def ticks(low, high, wanted=6):
    """Returns round numbers between the two."""
    rough = (high - low) / wanted
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    first = math.ceil(low / step)
    return [round(i * step, 10) for i in range(first, math.floor(high / step) + 1)]


def styles(names):
    """Returns colour and dashes of each curve."""
    found, colour = {}, 0
    for name in names:
        owner = next((other for other in found if name.startswith(other + " ")), None)
        found[name] = (found[owner][0], True) if owner else (COLOURS[colour % len(COLOURS)], False)
        colour += owner is None
    return found


def draw(curves, title, smooth):
    curves = {name: smoothed(values, smooth) for name, values in curves.items()}
    low, high = min(map(min, curves.values())), max(map(max, curves.values()))
    last = max(map(len, curves.values()))
    x = lambda step: LEFT + (WIDTH - LEFT - RIGHT) * (step - 1) / max(1, last - 1)  # noqa: E731
    y = lambda loss: TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low)  # noqa: E731
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
             'font-family="sans-serif" font-size="12">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
             f'<text x="{LEFT}" y="20" font-size="14">{title}</text>']  # fmt: skip
    for loss in ticks(low, high):
        lines.append(f'<path d="M{LEFT} {y(loss):.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>'
                     f'<text x="{LEFT - 6}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:g}</text>')
    for step in [1] + [tick for tick in ticks(1, last) if tick > 1]:
        lines.append(f'<text x="{x(step):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{step:g}</text>')
    lines.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">step</text>')
    for row, (name, (colour, dashed)) in enumerate(styles(curves).items()):
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        points = " ".join(f"{x(i + 1):.1f},{y(loss):.1f}" for i, loss in enumerate(curves[name]))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"{dashes}/>')
        top = TOP + 10 + 17 * row
        lines.append(f'<path d="M{WIDTH - 290} {top}h26" stroke="{colour}" stroke-width="2"{dashes}/>'
                     f'<text x="{WIDTH - 258}" y="{top + 4}">{name}: {curves[name][-1]:.3f}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--title", default="Loss")
    parser.add_argument("--smooth", type=int, default=5)
    options = parser.parse_args()
    options.out.write_text(draw(json.loads(options.curves.read_text()), options.title, options.smooth))


if __name__ == "__main__":
    main()

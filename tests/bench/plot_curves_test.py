"""Checks pictures of loss curves: well-formed, one line per curve, references dashed in the colour of the curve that they belong
to."""

import json
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

SCRIPT = Path(__file__).with_name("plot_curves.py")
SVG = "{http://www.w3.org/2000/svg}"


class PlotCurves(unittest.TestCase):
    def draw(self, curves, *words):
        with tempfile.TemporaryDirectory() as folder:
            source, picture = Path(folder) / "curves.json", Path(folder) / "curves.svg"
            source.write_text(json.dumps(curves))
            subprocess.run([sys.executable, SCRIPT, source, picture, *words], check=True)
            return xml.fromstring(picture.read_text())

    def test_curves_and_their_references(self):
        picture = self.draw({"Muon": [8, 7, 6], "Muon of torch.optim": [8, 7.5, 6], "AdamW": [8, 6, 5]}, "--smooth", "1")
        lines = picture.findall(SVG + "polyline")
        self.assertEqual([line.get("stroke-dasharray") is not None for line in lines], [False, True, False])
        self.assertEqual(lines[0].get("stroke"), lines[1].get("stroke"))
        self.assertNotEqual(lines[0].get("stroke"), lines[2].get("stroke"))
        heights = [[float(point.split(",")[1]) for point in line.get("points").split()] for line in lines]
        self.assertTrue(all(len(line) == 3 for line in heights))
        self.assertEqual(heights[0][0], heights[2][0])
        self.assertTrue(heights[2][0] < heights[2][1] < heights[2][2])  # Down the page as the loss falls.
        words = [text.text for text in picture.findall(SVG + "text")]
        self.assertIn("Muon of torch.optim: 6.000", words)

    def test_means_of_steps(self):
        picture = self.draw({"a": [4, 2, 3]}, "--smooth", "2", "--title", "Two")
        words = [text.text for text in picture.findall(SVG + "text")]
        self.assertIn("a: 2.500", words)
        self.assertIn("Two", words)


if __name__ == "__main__":
    unittest.main()

"""Writes weights with torchtitan's initial values as a Hugging Face folder, from which both programs of a benchmark begin.

  torchtitan_weights.py OUT NAME FLAVOR
"""

import sys

import torchtitan_flavors

from make_weights import make_weights

torchtitan_flavors.add()
out, name, flavor = sys.argv[1:]
make_weights(out, flavor, gain=1.0, name=name)

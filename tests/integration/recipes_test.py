"""Every recipe in configs/ is valid once it finds its assets (those of the tests stand in for the real ones)."""

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(os.environ["TITAN_SOURCE"])
ASSETS = Path(os.environ["TITAN_DEPS"]) / "assets"
TITANCTL = Path(os.environ["TITAN_BIN"]) / "titanctl"


def main():
    recipes = sorted((SOURCE / "configs").glob("*.toml"))
    wrong = []
    for recipe in recipes:
        done = subprocess.run([TITANCTL, "validate", recipe, "--model.hf_assets_path", ASSETS / "tokenizer", "--training.dataset_path",
                               ASSETS / "c4_test"], capture_output=True, text=True)
        said = (done.stdout + done.stderr).strip()
        print(said)
        if done.returncode or "is valid" not in said or "\n" in said:  # More lines are warnings.
            wrong.append(recipe.name)
    if wrong:
        sys.exit(f"not valid without a warning: {', '.join(wrong)}")


main()

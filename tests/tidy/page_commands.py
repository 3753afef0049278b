"""Checks that the built programs accept the commands of Titan's programs in README.md, CONTRIBUTING.md and docs: their verbs,
long flags and configuration keys exist. Reads code blocks, and code in a line of text that begins with a program's name."""

import functools
import json
import os
import re
import shlex
import subprocess
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from paths import BIN, SOURCE

PAGES = [SOURCE / "README.md", SOURCE / "CONTRIBUTING.md", *sorted((SOURCE / "docs").rglob("*.md"))]
PROGRAMS = ("titanctl", "titan-controller", "titan-worker", "titan-shim", "titan-stacks", "titan-rank", "titan-checkpoint", "titan-data", "titan-generate")
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(rf"(?<!`)`((?:{'|'.join(PROGRAMS)}) [^`]+)`(?!`)")
BEFORE = {"$", "!", "do", "then", "else", "exec", "srun", "sudo", "time"}  # Words that may precede a program's name.
ENDS = re.compile(r"[;|&()]+")
PLACEHOLDER = re.compile(r"[^\x00-\x7f]|\.\.\.|[$<>*{}\[\]]|^[A-Z][A-Z_0-9]*$")  # Matches a placeholder for a word, such as VERB or <verb>.
FLAG_LINE = re.compile(r"^ {2,6}((?:-\w,)?--[a-z][\w-]*(?:\{\w+\})?(?:,--[a-z][\w-]*(?:\{\w+\})?)*)( [A-Z]\S*)?", re.MULTILINE)


@functools.cache
def help_of(*words):
    done = subprocess.run([BIN / words[0], *words[1:], "--help"], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


@functools.cache
def flags_of(*words):
    """Returns {long flag of the command: whether a value follows}."""
    flags = {"--help": False, "--verbose": False}  # The second goes with --version.
    for depth in range(1, len(words) + 1):
        for names, value in FLAG_LINE.findall(help_of(*words[:depth])):
            flags.update({name: bool(value) for name in re.findall(r"--[\w-]+", names)})
    return flags


@functools.cache
def verbs_of(*words):
    """Returns the words that may come next; empty for a command without verbs."""
    text = help_of(*words)
    return frozenset(re.findall(r"^  ([a-z][\w-]*) {2,}\S", text, re.MULTILINE)) if re.search(r"^Usage: .*SUBCOMMAND", text, re.MULTILINE) else frozenset()


@functools.cache
def keys():
    found = set()

    def walk(node, prefix):
        for name, inner in node["properties"].items():
            if "properties" in inner:
                walk(inner, f"{prefix}{name}.")
            else:
                found.update((f"--{prefix}{name}", f"--{prefix}no_{name}"))

    walk(json.loads(subprocess.check_output([BIN / "titanctl", "schema"], text=True)), "")
    return found


def takes_keys(*words):
    return "--section.key" in help_of(*words)


def wrong_words(words):
    """Returns the words of one command, its program first, that the program does not know."""
    command, rest, wrong = [words[0]], list(words[1:]), []
    while rest:
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, given, _ = word.strip("[]").partition("=")
            if PLACEHOLDER.search(name) or name == "--section.key":
                continue
            flags = flags_of(*command)
            known = keys() if "." in name and takes_keys(*command) else flags
            if name not in known:
                wrong.append(name)
            elif flags.get(name) and not given and rest:
                rest.pop(0)
        elif not word.startswith("-") and verbs_of(*command):
            if PLACEHOLDER.search(word):
                break  # Its flags depend on the verb.
            if word not in verbs_of(*command):
                return [*wrong, word]
            if word == "help":
                break
            command.append(word)
        elif word in ("-o", "-l") and rest:
            rest.pop(0)
    return wrong


def words_of(line):
    """Returns the words as a shell splits them, without a comment; split only at whitespace if a quote is not closed."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:
        return line.split(" #")[0].split()


def commands(line):
    """Returns each command on a line of a shell, as its words."""
    found, words = [], []
    for word in [*words_of(line), ";"]:
        if not ENDS.fullmatch(word):
            words.append(word)
            continue
        while words and (words[0] in BEFORE or re.match(r"[A-Za-z_]\w*=", words[0])):
            words.pop(0)
        if words:
            found.append(words)
        words = []
    return found


def lines_of(text):
    """Yields (number, line) of all code of a page, from 1; continued lines are joined."""
    for block in BLOCK.finditer(text):
        first, begun = text.count("\n", 0, block.start(3)) + 1, []
        for number, line in enumerate(block[3].splitlines(), first):
            begun.append(line.removesuffix("\\"))
            if not line.endswith("\\"):
                yield number + 1 - len(begun), " ".join(begun)
                begun = []
    for code in INLINE.finditer(text):
        yield text.count("\n", 0, code.start()) + 1, code[1].replace("\n", " ")


def wrong_in(command):
    """Returns the faults of one command: words that a program of Titan does not know, or flags that are not in the text of a script of this
    tree."""
    program = os.path.basename(command[0])
    if program in PROGRAMS:
        return [f"{program} does not know {word}" for word in wrong_words([program, *command[1:]])]
    script = next((word for word in command[:2] if re.fullmatch(r"(deploy|tests)/[\w/.-]+\.(sh|py)", word)), None)
    if script is None:
        return []
    if not (SOURCE / script).is_file():
        return [f"{script} does not exist"]
    flags = [word.split("=")[0] for word in command if word.startswith("--") and not PLACEHOLDER.search(word)]
    # Some scripts pass their flags to a program of the same name.
    text = "".join(path.read_text() for path in (SOURCE / script).parent.glob(f"{Path(script).stem}.*"))
    return [f"{script} does not know {flag}" for flag in flags if not re.search(rf"{flag}(?![\w-])", text)]


def faults(name, text):
    return [f"{name}:{number}: {fault}" for number, line in lines_of(text) for command in commands(line) for fault in wrong_in(command)]


class PageCommands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """Starts the slow programs first, in parallel: loading LibTorch takes a quarter of a second."""
        with ThreadPoolExecutor() as pool:
            slow = [("titan-rank",), ("titan-generate",), *(("titan-checkpoint", verb) for verb in verbs_of("titan-checkpoint"))]
            list(pool.map(lambda words: help_of(*words), slow))

    def test_programs_know_every_word(self):
        self.assertEqual("", "\n".join(fault for page in PAGES for fault in faults(page.relative_to(SOURCE), page.read_text())))

    def test_wrong_words_are_reported_with_page_and_line(self):
        page = ("Text.\n```sh\nTITAN_X=1 titanctl --controller m1:7700 run a.toml --nproc 2 \\\n  --ranks 4 --training.stepz 3 | cat  # --no-flag\n"
                "job=$(titanctl node drian n1) && titanctl VERB --any; titan-data encode --text 'a' < FILE\n```\n`titan-rank --config F --jsn`\n")
        self.assertEqual(["p.md:3: titanctl does not know --ranks", "p.md:3: titanctl does not know --training.stepz", "p.md:5: titanctl does not know drian",
                          "p.md:5: titan-data does not know --text", "p.md:7: titan-rank does not know --jsn"], faults("p.md", page))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)

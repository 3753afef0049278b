"""Turns POD manuals into C4-shaped JSON lines and trains a byte-level BPE on them. Called by make_assets.sh."""

import argparse
import hashlib
import json
import pathlib
import re

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

# Tables, generated lists and symbol references: hardly any prose.
NOT_PROSE = {"perltoc", "perluniprops", "perlapi", "perlintern", "perlmodlib", "perlcheat", "perlebcdic"}
TIMESTAMP = "2022-05-28T00:00:00Z"  # The release that Debian 12 carries.
SHORTEST, USUAL, LONGEST = 500, 3000, 5000  # Characters of a document.
VALIDATION_SHARE = 20  # Every 20th document is held out.
ENTITIES = {"lt": "<", "gt": ">", "verbar": "|", "sol": "/", "amp": "&", "quot": '"', "eacute": "é", "uuml": "ü"}
# Llama 3's way to cut text into words.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
VOCABULARY = 2048


def render(code, text):
    """Returns the text of one formatting code."""
    if code == "E":
        if re.fullmatch(r"0x[0-9a-fA-F]+|\d+", text):
            return chr(int(text, 0))
        return ENTITIES.get(text, "")
    if code in "XZ":  # An index entry, and an empty string.
        return ""
    if code == "L" and "|" in text:
        return text.split("|", 1)[0]
    if code == "L" and "://" not in text:
        return text.lstrip("/").replace("/", " ").replace('"', "")
    return text


def plain(paragraph):
    """Returns the text of a POD paragraph without its formatting codes: B<bold>, C<< $a < $b >>, nested to any depth."""
    text = re.sub(r"\s+", " ", paragraph).strip()
    stack, position = [("", "", [])], 0  # (code, what closes it, pieces)
    while position < len(text):
        closer = stack[-1][1]
        if closer and text.startswith(closer, position):
            code, _, pieces = stack.pop()
            stack[-1][2].append(render(code, "".join(pieces).strip() if len(closer) > 1 else "".join(pieces)))
            position += len(closer)
        elif match := re.compile(r"([A-Z])(?:(<{2,}) |<)").match(text, position):
            stack.append((match.group(1), " " + ">" * len(match.group(2)) if match.group(2) else ">", []))
            position = match.end()
        else:
            stack[-1][2].append(text[position])
            position += 1
    while len(stack) > 1:  # A code that is never closed: its text stays.
        _, _, pieces = stack.pop()
        stack[-1][2].extend(pieces)
    return re.sub(r" {2,}", " ", "".join(stack[0][2])).strip()


def paragraphs(path):
    """Yields (starts a section, text) of every prose paragraph and heading."""
    source = path.read_bytes()
    encoding = re.search(rb"^=encoding\s+(\S+)", source, re.M)
    text = source.decode(encoding.group(1).decode() if encoding else "latin-1", errors="replace").replace("\r\n", "\n")
    in_pod = text.lstrip().startswith("=")
    skipping = False
    for block in re.split(r"\n[ \t]*\n", text):
        block = block.strip("\n")
        if match := re.match(r"=(\w+)\s*(.*)", block, re.S):
            command, rest = match.groups()
            in_pod = command != "cut"
            skipping = command in ("begin", "for") or (skipping and command != "end")
            if command.startswith("head") and (title := plain(rest)):
                yield True, title
            if command == "item" and len(term := plain(rest.lstrip("*"))) > 3:  # Not just a bullet or a number.
                yield False, term
            continue
        if in_pod and not skipping and block and not block[0].isspace():  # Indented blocks are program text.
            if prose := plain(block):
                yield False, prose


def documents(path):
    """Yields sections, gathered up to the usual length and cut at the longest."""
    gathered, length = [], 0
    for heading, text in paragraphs(path):
        for piece in [text[i : i + LONGEST - 1] for i in range(0, len(text), LONGEST - 1)]:
            full = length + len(piece) + 1 > LONGEST or (heading and length >= USUAL)
            if gathered and full:
                yield "\n".join(gathered)
                gathered, length = [], 0
            gathered.append(piece)
            length += len(piece) + 1
    if gathered:
        yield "\n".join(gathered)


def collect(folder):
    found = {}
    for path in sorted(folder.rglob("*.pod")):
        if path.stem in NOT_PROSE:
            continue
        for text in documents(path):
            if len(text) >= SHORTEST:
                found[hashlib.sha256(text.encode()).hexdigest()] = {
                    "text": text, "timestamp": TIMESTAMP, "url": f"https://perldoc.perl.org/{path.stem}"}
    return [found[key] for key in sorted(found)]  # By hash: a fixed shuffle.


def write_lines(path, records):
    path.parent.mkdir(parents=True)
    with open(path, "w", encoding="utf-8", newline="\n") as out:
        for record in records:
            out.write(json.dumps(record, ensure_ascii=False) + "\n")


def train_tokenizer(folder, texts):
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    specials = [AddedToken(token, normalized=False, special=True) for token in (BOS, EOS)]
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=specials, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise SystemExit(f"make_assets: the tokenizer has {tokenizer.get_vocab_size()} entries, not {VOCABULARY}")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B:1", special_tokens=[(BOS, tokenizer.token_to_id(BOS))])
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS,
              "clean_up_tokenization_spaces": False, "model_max_length": 131072}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    records = collect(arguments.pods)
    train = [record for i, record in enumerate(records) if i % VALIDATION_SHARE != 0]
    held_out = [record for i, record in enumerate(records) if i % VALIDATION_SHARE == 0]
    size = sum(len(record["text"]) for record in train)
    if size < 2_000_000:
        raise SystemExit(f"make_assets: only {size} characters of prose in {arguments.pods}: the package has changed")
    write_lines(arguments.out / "c4_test" / "data.json", train)
    write_lines(arguments.out / "c4_validation" / "data.json", held_out)
    train_tokenizer(arguments.out / "tokenizer", (record["text"] for record in train))


main()

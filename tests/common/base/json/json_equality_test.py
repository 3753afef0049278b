"""Titan reads a JSON row as Python's json module does, and rejects what that module rejects: seeded random values as
Python and others write them, the same with single bytes changed, and a list of corner cases."""

import json
import os
import random
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "testing"))
from paths import BIN

COUNT = 200_000 if os.environ.get("TITAN_LONG") else 6000

CORNERS = [
    "NaN", "[NaN]", '{"a": NaN}', "Infinity", "-Infinity", "-NaN", "nan", "inf", "Inf", "+Infinity", "NaN1", "- Infinity", '{"NaN": 1}', "{NaN: 1}",
    "0", "-0", "00", "01", "-01", "-", "1.", ".1", "1.0", "-0.0", "1e5", "1E+5", "1e-5", "1e", "1e+", "0e0", "1e999", "-1e999", "1e-999", "0.1e1e1", "0x10",
    "9223372036854775807", "9223372036854775808", "-9223372036854775809", "18446744073709551616", "1" * 4000, "1" * 400 + ".5e-7",
    '""', '"', '"a', '"\\"', '"\\', '"\\u"', '"\\u12"', '"\\u12g4"', '"\\uD83D\\uDE00"', '"\\ud83d"', '"\\ude00"', '"\\ud83d\\u0041"', '"\\ud83d\\ud83d\\ude00"',
    '"\\x41"', '"\\0"', '"\\/\\b\\f\\n\\r\\t\\\\"', '"\x00"', '"\x1f"', '"\x7f"', '"\t"', '"\u0085\u2028\ufeff"', "'a'", '"\\U0041"', '"\\u+123"',
    "{}", "[]", "{", "}", "[", "]", "[}", "{]", "[1,]", "[,1]", "[1,,2]", "[1 2]", '{"a"}', '{"a":}', '{"a":1,}', '{,}', '{"a":1 "b":2}', "{1:2}", '{"a" : 1 }',
    '{"a":1,"a":2}', '{"a":{"a":1},"b":2,"a":[]}', '{"":""}', "[[[[[[[[[[]]]]]]]]]]", "[" * 200 + "]" * 200, "[" * 200 + "]" * 199,
    "null", "true", "false", "nul", "nulll", "True", "None", "undefined", "", " ", "\n", " \t\r\n 1 \t\r\n ", "\x0c1", "\u00a01", "1 1", "1,", "{} {}", "// 1", "/**/1",
    b'"\xff"', b'"\xc0\x80"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'"\xf0\x9f\x98\x80"', b'"\xe2\x82"', b"\x80", b'{"\xff": 1}', b'[1]\xff',
]  # fmt: skip


def text_bytes(text):
    return text.encode("utf-8", "surrogatepass").hex()


def events(row):
    """Returns the events as read_json_rows prints them, with each number as it is spelled in the row."""

    class Number(str):
        pass

    def event_values(value):
        if isinstance(value, Number):
            return [str(value)]
        if isinstance(value, str):
            return ["s" + text_bytes(value)]
        if isinstance(value, Pairs):
            return ["{", *(word for key, item in value for word in ("k" + text_bytes(key), *event_values(item))), "}"]
        if isinstance(value, list):
            return ["[", *(word for item in value for word in event_values(item)), "]"]
        return [json.dumps(value)]

    class Pairs(list):
        pass

    try:
        value = json.loads(row.decode(), parse_int=Number, parse_float=Number, parse_constant=Number, object_pairs_hook=Pairs)
    except ValueError:
        return "-"
    return " ".join(event_values(value))


def values(row):
    def event_values(value):
        if value is None or isinstance(value, bool):
            return json.dumps(value)
        if isinstance(value, float):
            return value
        if isinstance(value, int):
            return str(value if -(2**63) <= value < 2**64 else 2**64 - 1)
        if isinstance(value, str):
            return "s" + text_bytes(value)
        if isinstance(value, dict):
            return ["{", *((("k" + text_bytes(key)), event_values(item)) for key, item in value.items()), "}"]
        return ["[", *(event_values(item) for item in value), "]"]

    return event_values(json.loads(row.decode()))


def parsed(text):
    """Parses a value that read_json_rows printed, and converts its floats."""
    words = text.split(" ")

    def take(at):
        word = words[at]
        if word in "{[":
            items, at = [word], at + 1
            while words[at] not in ("}", "]"):
                if word == "{":
                    item, after = take(at + 1)
                    items.append((words[at], item))
                    at = after
                else:
                    item, at = take(at)
                    items.append(item)
            return [*items, words[at]], at + 1
        if word[0] in "sk" or word in ("true", "false", "null"):
            return word, at + 1
        is_float = "x" in word or "n" in word
        return (float.fromhex(word) if is_float else word), at + 1

    value, end = take(0)
    assert end == len(words), text
    return value


class JsonEquality(unittest.TestCase):
    def check(self, rows):
        request = "".join(row.hex() + "\n" for row in rows)
        answers = subprocess.run([BIN.parent / "tests/read_json_rows"], input=request, capture_output=True, text=True, check=True, timeout=90).stdout.split("\n")
        self.assertEqual(2 * len(rows) + 1, len(answers))
        taken = 0
        for row, found, value in zip(rows, answers[0::2], answers[1::2]):
            want = events(row)
            self.assertEqual(want, found, row)
            if want == "-":
                continue
            taken += 1
            # repr() makes NaN equal NaN, and -0.0 differ from 0.0.
            self.assertEqual(repr(values(row)), repr(parsed(value)), row)
        return taken

    def test_corners(self):
        rows = [row if isinstance(row, bytes) else row.encode("utf-8", "surrogatepass") for row in CORNERS]
        self.check(rows + [b'{"text": "x", "score": [' + row + b"]}" for row in rows])

    def test_random_rows(self):
        r = random.Random(20261128)

        def number():
            return r.choice([0, -1, 7, 2**31, -(2**63), 2**64, 10**30, 0.1, -0.0, 1e-320, 1.5e308, 3.0, float("nan"), float("inf"), -float("inf"), r.random(), r.getrandbits(r.randrange(1, 80))])  # fmt: skip

        def text():
            return "".join(r.choice('ab "\\/\n\t\x00\x7fé漢🙂\ud83d\ude00,:{}[]') for _ in range(r.randrange(12)))

        def value(depth):
            kind = r.randrange(8 if depth < 4 else 5)
            if kind == 0:
                return r.choice([None, True, False])
            if kind < 3:
                return number()
            if kind < 5:
                return text()
            if kind == 5:
                return [value(depth + 1) for _ in range(r.randrange(4))]
            return {text(): value(depth + 1) for _ in range(r.randrange(4))}

        rows = []
        for _ in range(COUNT):
            layout = r.choice([{}, {"separators": (",", ":")}, {"indent": 1}, {"indent": "\t"}])
            row = json.dumps(value(0), ensure_ascii=r.random() < 0.5, **layout).encode("utf-8", "surrogatepass")
            rows.append(row)
            changed = bytearray(row)
            for _ in range(r.randrange(1, 3)):
                at = r.randrange(len(changed) + 1)
                what = r.choice(b'"\\{}[],:0123456789.eE+-NaInfity \n\x00\x80\xff\xc3')
                changed[at : at + r.randrange(2)] = bytes([what]) if r.random() < 0.7 else b""
            rows.append(bytes(changed))
        taken = self.check(rows)
        self.assertLess(COUNT, taken)  # Some of the changed rows are still JSON, and most are not.
        self.assertLess(taken, 1.8 * COUNT)


if __name__ == "__main__":
    unittest.main()

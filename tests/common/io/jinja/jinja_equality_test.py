"""Templates give the same text as jinja2 in the environment that transformers makes for chat templates: seeded random
expressions over many types of values, and statements with every kind of white space around their tags. What is an error
in jinja2 is an error here too. What Titan does not support is rejected with a message that names it; the output never
differs silently."""

import json
import os
import pathlib
import random
import subprocess
import sys
import unittest
import warnings

from transformers.utils import chat_template_utils

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "testing"))
from paths import BIN

COUNT = 20000 if os.environ.get("TITAN_LONG") else 150

VARIABLES = {
    "n": 7, "zero": 0, "f": 2.5, "big": 1e20, "t": True, "no": False, "nil": None, "s": " Hello, World ", "u": "h\u00e9llo \u4e16\u754c \U0001f600",
    "empty": "", "quote": "it's \"so\"\\\n\t{{ n }} {% if %}", "l": [3, 1, 2], "words": ["b", "A", "c", ""], "none": [],
    "d": {"b": 1, "a": [1, {"x": "\u00e9"}], "items_": 2, "role": "user", "content": "text"}, "e": {},
    "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi {{ x }}", "n": 1},
                 {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"q": 1.5, "r": [True, None]}}}]}],
}


class Expressions:
    """Generates random expressions; most have a value."""

    def __init__(self, seed):
        self.r = random.Random(seed)

    def atom(self):
        return self.r.choice(["n", "zero", "f", "t", "no", "nil", "s", "u", "empty", "quote", "l", "words", "d", "e", "messages", "missing",
                              "1", "2", "-3", "0", "1.5", "'a'", '"b\\n\\u00e9"', "'x' 'y'", "true", "none", "[]", "[1, 'a', n]", "{'k': n, 'j': s}", "(1, 2)",
                              "messages[0]", "messages[1].content", "messages[-1]['role']", "d.a[1].x", "d['b']", "d.missing", "l[0]",
                              "words[5]", "s[1:4]", "s[::-1]", "l[1:]", "l[:-1]", "messages[1:]", "u[2]", "words[::2]", "range(4)", "range(1, 9, 3)",
                              "messages[2].tool_calls[0].function.arguments"])

    def filtered(self, value):
        return value + self.r.choice([
            "|trim", "|lower", "|upper", "|title", "|capitalize", "|length", "|count", "|default('D')", "|default('E', true)", "|d(n)", "|join(', ')", "|join",
            "|first", "|last", "|list", "|string", "|int", "|float", "|int(9)", "|tojson", "|tojson(indent=2)", "|tojson(sort_keys=true)",
            "|tojson(separators=(',', ':'))", "|tojson(ensure_ascii=true)", "|replace('l', 'LL')", "|replace('', '-')", "|items|list", "|dictsort",
            "|sort", "|sort(reverse=true)", "|unique|list", "|reverse|list", "|abs", "|round", "|round(1)", "|sum", "|min", "|max", "|indent(2)",
            "|indent(2, true)", "|map('upper')|list", "|map('length')|list", "|map(attribute='role')|join('+')", "|selectattr('role', 'equalto', 'user')|list|length",
            "|rejectattr('role', 'equalto', 'user')|list", "|selectattr('n')|list", "|select('string')|list", "|reject('none')|list", "|select|list",
            "|select('in', [1, 2])|list", "|trim('H ')", "|map(attribute='content', default='-')|list", "|sort(attribute='role')|first", "|title|trim"])

    def method(self, value):
        return value + self.r.choice([
            ".strip()", ".lstrip()", ".rstrip('d ')", ".startswith('h')", ".endswith(('x', ' '))", ".split(',')", ".split()", ".split(None, 1)", ".split('l', 1)[-1]",
            ".rsplit('l', 1)", ".rsplit()", ".splitlines()", ".replace('l', '1', 1)", ".upper()", ".lower()", ".title()", ".capitalize()", ".find('l')",
            ".rfind('l', 0, 4)", ".count('l')", ".removeprefix(' ')", ".removesuffix('o')", ".partition(',')", ".rpartition('l')", ".isdigit()", ".isspace()",
            ".join(['a', 'b'])", ".items()|list", ".keys()|list", ".values()|list|length", ".get('b')", ".get('zz', 3)", ".get('role').upper()", ".isalpha()",
            ".content", ".role", "['content']", "[0]", "[-1]", "[1:]", ".split('\\n')[0].strip('\\n')"])

    def test(self, value):
        other = self.r.choice(["1", "'a'", "n", "[1, 7]"])
        return value + self.r.choice([" is ", " is not "]) + self.r.choice([
            "defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false", "mapping", "iterable", "sequence", "odd", "even",
            "callable", "lower", "upper", f"divisibleby 3", f"eq {other}", f"ne({other})", f"in [1, 7, 'a']", f"lt {other}", f"ge({other})", "sameas none", f"equalto {other}"])

    def make(self, depth):
        if depth == 0:
            return self.atom()
        a = lambda: self.make(depth - 1)  # noqa: E731
        kind = self.r.randrange(11)
        if kind == 0:
            return f"{a()} {self.r.choice(['+', '-', '*', '/', '//', '%', '~', '~', '+'])} {a()}"
        if kind == 1:
            return f"{a()} {self.r.choice(['==', '!=', '<', '<=', '>', '>=', 'in', 'not in'])} {a()}"
        if kind == 2:
            return f"{self.r.choice(['', 'not '])}{a()} {self.r.choice(['and', 'or'])} {a()}"
        if kind == 3:
            return f"{a()} if {a()} else {a()}"
        if kind == 4:
            return f"({a()} if {a()})"
        if kind in (5, 6):
            return self.filtered(self.r.choice([self.atom(), f"({a()})"]))
        if kind in (7, 8):
            return self.method(self.r.choice([self.atom(), f"({a()})"]))
        if kind == 9:
            return self.test(self.r.choice([self.atom(), f"({a()})"]))
        return self.r.choice([f"[{a()}, {a()}]", f"({a()}) ** 2", f"-({a()})", f"{{'a': {a()}}}.a", f"({a()})[{a()}]", f"dict(z={a()})|tojson"])

    def tag(self, kind, body):
        return "{" + kind + self.r.choice(["", "", "-", "+" if kind == "%" else "-"]) + f" {body} " + self.r.choice(["", "", "-"]) + ("%}" if kind == "%" else "}}")

    def space(self):
        return self.r.choice(["", " ", "\n", "  \n  ", "\n\n", "\t", "x", " y ", "\r\n  ", "\u00a0\n", "{# c #}", "  {#- c\n -#}\n", "\n  {# c #}\n"])

    def body(self, depth, names):
        parts = []
        for _ in range(self.r.randrange(1, 4)):
            parts.append(self.space())
            parts.append(self.statement(depth, names))
        parts.append(self.space())
        return "".join(parts)

    def value(self, names):
        return self.r.choice([*names, *names, self.atom(), f"({self.make(1)})"])

    def statement(self, depth, names):
        kind = self.r.randrange(9) if depth else 0
        block = lambda text: self.tag("%", text)  # noqa: E731
        if kind in (0, 1):
            return self.tag("{", f"{self.value(names)}|string|length" if self.r.random() < 0.5 else f"{self.r.choice(['n', 's', 'u', 'empty'])}")
        if kind == 2:
            middle = block(f"elif {self.value(names)}") + self.body(depth - 1, names) if self.r.random() < 0.4 else ""
            last = block("else") + self.body(depth - 1, names) if self.r.random() < 0.5 else ""
            return block(f"if {self.value(names)}") + self.body(depth - 1, names) + middle + last + block("endif")
        if kind in (3, 4):
            over = self.r.choice(["messages", "l", "words", "range(3)", "none", "missing", "s", "d"])
            chosen = self.r.choice(["", "", " if x", " if x is string"])
            inside = self.tag("{", self.r.choice(["loop.index", "loop.last", "loop.first ~ loop.revindex", "loop.length", "x|string|length", "loop.previtem is defined",
                                                  "loop.nextitem|string|length", "loop.cycle('a', 'b')", "loop.index0 % 2", "loop.changed(loop.first)", "loop.depth"]))
            jump = block("if loop.index == 2") + block(self.r.choice(["break", "continue"])) + block("endif") if self.r.random() < 0.3 else ""
            last = block("else") + "none" if self.r.random() < 0.3 else ""
            return block(f"for x in {over}{chosen}") + jump + inside + self.body(depth - 1, [*names, "x"]) + last + block("endfor")
        if kind == 5:
            name = self.r.choice(["a", "b"])
            return block(f"set {name} = {self.value(names)}") + self.tag("{", f"{name}|string|length")
        if kind == 6:
            return block("set ns = namespace(v=1, w='')") + block("for i in range(3)") + block("set ns.v = ns.v * 2 + i") + block("endfor") + self.tag("{", "ns.v ~ ns.w")
        if kind == 7:
            return block("set c") + self.body(depth - 1, names) + block("endset") + self.tag("{", "c|trim")
        return self.r.choice(["{% raw %}\n {{ n }} {%- endraw -%} \n", "{%- raw -%}  {% x {%+ endraw %}\n", "{{ '}}' ~ '%}' }}", "{{ {'a': {'b': 1}}.a.b }}", "{% set p, q = 1, 'z' %}{{ q }}",
                              "{%- for k, v in d.items() %}{{ k }};{% endfor %}", "{% for k, v in d|items %}{{ loop.index ~ k }}{% endfor %}"])

    def snippet(self):
        macro = "{% macro m(a, b='B') %}\n  <{{ a }}{{- b -}}>\n{% endmacro %}\n" if self.r.random() < 0.3 else ""
        call = self.tag("{", self.r.choice(["m(1)", "m('x', b=n)", "m()", "m(u, s)|trim", "m(1) ~ m(2)"])) if macro else ""
        return macro + self.body(2, ["n"]) + call + self.space()


# Messages of known rejections. Everything else has to be equal.
REFUSED = ("not supported", "beyond 64 bits", "read a second time", "cannot be printed", "is printed: use", "has no slices")


class Equality(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.program = subprocess.Popen([BIN.parent / "tests" / "render_templates"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

        cls.environment = chat_template_utils._compile_jinja_template("").environment

    @classmethod
    def tearDownClass(cls):
        cls.program.stdin.close()
        cls.program.wait()
        cls.program.stdout.close()

    def ours(self, template, variables=VARIABLES):
        self.program.stdin.write(json.dumps({"template": template, "variables": variables}) + "\n")
        self.program.stdin.flush()
        line = self.program.stdout.readline()
        self.assertTrue(line, f"the program died on {template!r}")
        return json.loads(line)

    def theirs(self, template, variables=VARIABLES):
        try:
            return self.environment.from_string(template).render(**variables), None
        except Exception as error:  # noqa: BLE001: any Python error counts.
            return None, error

    def compare(self, templates):
        warnings.simplefilter("ignore", SyntaxWarning)  # Python warns about numbers that are called or indexed.
        rendered = refused = failed = 0
        wrong = []
        for template in templates:
            text, error = self.theirs(template)
            mine = self.ours(template)
            if "text" in mine:
                rendered += 1
                if error is not None or mine["text"] != text:
                    wrong.append(f"{template!r} gave {mine['text']!r}, and in Python {text!r} {error!r}")
            elif text is not None:
                refused += 1
                if not any(word in mine["error"] for word in REFUSED):
                    wrong.append(f"{template!r}: {mine['error']}, and in Python {text!r}")
            else:
                failed += 1
        self.assertFalse(wrong, "\n".join(wrong[:40]))
        return rendered, refused, failed

    def test_expressions(self):
        make = Expressions(int(os.environ.get("TITAN_SEED", 1)))
        rendered, refused, failed = self.compare("{{ " + make.make(make.r.randrange(4)) + " }}" for _ in range(COUNT))
        print(f"expressions: {rendered} equal, {refused} refused by name, {failed} errors in both")
        self.assertGreater(rendered, COUNT // 4)
        self.assertLess(refused, COUNT // 20)

    def test_statements(self):
        make = Expressions(int(os.environ.get("TITAN_SEED", 2)))
        rendered, refused, failed = self.compare(make.snippet() for _ in range(COUNT))
        print(f"statements: {rendered} equal, {refused} refused by name, {failed} errors in both")
        self.assertGreater(rendered, COUNT // 4)
        self.assertLess(refused, COUNT // 20)


if __name__ == "__main__":
    unittest.main()

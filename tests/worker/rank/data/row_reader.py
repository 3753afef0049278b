"""Base of the tests of the loader's rows: runs the program that reads them (read_rows) once per rank, and tokenizes texts with
the tokenizers package."""

import json
import os
import pathlib

from request_program import BIN, RequestProgram
from tokenizers import Tokenizer

TOKENIZER = pathlib.Path(os.environ["TITAN_DEPS"]) / "assets" / "tokenizer"


class RowReader(RequestProgram):
    PROGRAM = "read_rows"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.package = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
        config = json.loads((TOKENIZER / "tokenizer_config.json").read_text())
        name = lambda key: config[key]["content"] if isinstance(config.get(key), dict) else config.get(key)  # noqa: E731
        cls.begin, cls.end = ([cls.package.token_to_id(name(key))] if name(key) else [] for key in ("bos_token", "eos_token"))

    @classmethod
    def encode(cls, text):
        """Returns a document's tokens."""
        return cls.begin + cls.package.encode(text, add_special_tokens=False).ids + cls.end

    def answer(self, **request):
        return self.reply_to({"tokenizer": str(TOKENIZER), **request})

    def answers(self, size, **request):
        """Returns the answers of `size` ranks, whose cursors must be equal."""
        ranks = [self.answer(dp_rank=rank, dp_size=size, **request) for rank in range(size)]
        for rank in ranks:
            self.assertNotIn("error", rank)
            self.assertEqual(rank["cursor"], ranks[0]["cursor"])
        return ranks


def in_order(ranks, batch, batches, what="rows"):
    """Returns the rows of all ranks in the order of the stream."""
    return [one for i in range(batches) for rank in ranks for one in rank[what][i * batch:(i + 1) * batch]]

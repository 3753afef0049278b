"""Opens exported folders with the installed transformers, and reports its warnings about them.

As a program it reads commands from standard input, a JSON object per line, and answers each with one. One process serves a whole
test, since importing transformers takes seconds."""

import json
import logging
import os
import sys
import warnings

warnings.simplefilter("always")
import torch  # noqa: E402
import transformers  # noqa: E402


class CapturedMessages(logging.Handler):
    """Collects what transformers logs, from warnings on, and its Python warnings."""

    def __enter__(self):
        self.lines = []
        self.logger = logging.getLogger("transformers")
        self.logger.addHandler(self)
        self.caught = warnings.catch_warnings(record=True)
        self.recorded = self.caught.__enter__()
        warnings.simplefilter("always")
        return self

    def emit(self, record):
        if record.levelno >= logging.WARNING:
            self.lines.append(record.getMessage())

    def __exit__(self, *error):
        self.caught.__exit__(*error)
        self.logger.removeHandler(self)
        # Deprecations inside of Python's own libraries do not concern the folder.
        self.lines += [str(one.message) for one in self.recorded if "transformers" in one.filename and
                       not issubclass(one.category, (DeprecationWarning, PendingDeprecationWarning))]


def open_folder(folder, tokens=None, dtype="auto", out=None):
    """Opens the whole folder: configuration, weights, tokenizer. `out`: file for the logits of `tokens`."""
    with CapturedMessages() as reported:
        config = transformers.AutoConfig.from_pretrained(folder)
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype if dtype == "auto" else getattr(torch, dtype), output_loading_info=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder) if os.path.exists(os.path.join(folder, "tokenizer.json")) else None
    answer = {key: sorted(map(str, info[key])) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    answer |= {"reported": reported.lines, "dtype": str(config.dtype), "architectures": config.architectures,
               "ids": [config.bos_token_id, config.eos_token_id],
               "generation_ids": [model.generation_config.bos_token_id, model.generation_config.eos_token_id]}
    if tokenizer is not None:
        answer["tokens"] = tokenizer("Once upon a time")["input_ids"]
        answer["tokenizer_ids"] = [tokenizer.bos_token_id, tokenizer.eos_token_id]
        answer["chat"] = tokenizer.chat_template
    if tokens is not None:
        with torch.no_grad():
            torch.save(model.eval()(torch.tensor([tokens])).logits.float(), out)
    return answer


def open_config(folder):
    """Opens config.json, and lists what its class keeps in float32."""
    with CapturedMessages() as reported:
        config = transformers.AutoConfig.from_pretrained(folder)
        kind = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    kept = {name: sorted(getattr(kind, name, None) or []) for name in ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict")}
    return {"reported": reported.lines, "class": kind.__name__, **kept}


def main():
    torch.set_num_threads(1)
    print(json.dumps({"version": transformers.__version__}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        call = {"folder": open_folder, "config": open_config}[command.pop("open")]
        try:
            answer = call(**command)
        except Exception as error:  # The test reports which folder it was.
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

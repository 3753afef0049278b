"""Recomputes a model's decisions from the inputs in float64 and measures their margins: routers' choices, clamped activations.

Two correct programs that round differently agree on compared numbers to a few 1e-7. They agree on the results only if no
comparison is that close: another expert gives another result, and the gradient jumps where a clamp begins.
"""

import torch

MARGIN = 1e-4  # A router's scores.
NO_LIMIT = 1e4  # A limit of a clamp that changes no activation.
CLAMP_MARGIN = 2e-6  # Each draw has some 100,000 activations, of which one is often within 1e-5 of its limit.


def choose(logits, bias, *, softmax, top_k, groups=0, limited=0):
    """Experts [tokens, top_k], ascending, and the smallest distance of any token from another choice."""
    logits = logits.double()
    scores = logits.softmax(-1) if softmax else logits.sigmoid()
    if bias is not None:
        scores = scores + bias.double()
    margin = float("inf")
    if groups:
        grouped = scores.view(len(scores), groups, -1)
        strength = grouped.topk(2, -1).values.sum(-1)
        ordered = strength.sort(-1, descending=True)
        margin = float((ordered.values[:, limited - 1] - ordered.values[:, limited]).min())
        kept = torch.zeros_like(strength, dtype=torch.bool).scatter_(1, ordered.indices[:, :limited], True)
        scores = grouped.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(1)
    ordered = scores.sort(-1, descending=True)
    margin = min(margin, float((ordered.values[:, top_k - 1] - ordered.values[:, top_k]).min()))
    return ordered.indices[:, :top_k].sort(-1).values, margin


def distance_from_limit(experts, tokens, chosen):
    """Smallest distance from a clamp of GPT-OSS's experts for these tokens [tokens, dim]: the gate has an upper limit, the other
    factor both."""
    weight, bias, x = experts.gate_up_proj.double(), experts.gate_up_proj_bias.double(), tokens.double()
    both = torch.stack([x @ weight[expert] + bias[expert] for expert in range(experts.num_experts)], 1)
    both = both.gather(1, chosen.unsqueeze(-1).expand(-1, -1, both.shape[-1]))
    gate, up = both[..., ::2], both[..., 1::2].abs()
    return float(torch.stack([(gate - experts.limit).abs(), (up - experts.limit).abs()]).min())


class RoutingRecorder:
    """Hooks a model's routers and clamps; `choices` by layer and the margins are those of the forward passes since clear()."""

    def __init__(self, oracle):
        self._hooks = []
        self.clear()
        for name, module in oracle.module.named_modules():
            kind = type(module).__name__
            if kind == "TokenChoiceTopKRouter":
                self._hooks.append(module.register_forward_hook(self._torchtitan(_layer(name)), with_kwargs=True))
            elif kind in ("GptOssTopKRouter", "DeepseekV3TopkRouter", "Llama4Router") or name.endswith("mlp.gate"):
                self._hooks.append(module.register_forward_hook(self._transformers(_layer(name), oracle.module.config)))
            elif kind == "GptOssExperts":
                self._hooks.append(module.register_forward_hook(self._clamped, with_kwargs=True))

    def remove(self):
        for hook in self._hooks:
            hook.remove()

    def clear(self):
        self.choices, self.margin, self.clamp_margin = {}, float("inf"), float("inf")

    def decided(self):
        """Whether rounding alone changes no decision."""
        return self.margin >= MARGIN and self.clamp_margin >= CLAMP_MARGIN

    def said(self):
        """The margins, for the log; empty for a model without decisions."""
        text = f", smallest routing margin {self.margin:.2g}" if self.choices else ""
        return text + (f", of clamps {self.clamp_margin:.2g}" if self.clamp_margin < float("inf") else "")

    def _keep(self, layer, logits, bias, own=None, **options):
        experts, margin = choose(logits.detach(), bias, **options)
        if own is not None and not torch.equal(own.sort(-1).values, experts) and margin > 1e-5:
            raise AssertionError(f"layer {layer}: the router's own choice is another")
        self.choices[f"routing.{layer}"] = experts
        self.margin = min(self.margin, margin)

    def _torchtitan(self, layer):
        def hook(router, arguments, named, outputs):
            x = arguments[0]
            bias = arguments[1] if len(arguments) > 1 else named.get("expert_bias")
            self._keep(layer, torch.nn.functional.linear(x, router.gate.weight, router.gate.bias), bias, outputs[1],
                       softmax=router.score_func == "softmax", top_k=router.top_k, groups=router.num_expert_groups or 0,
                       limited=router.num_limited_groups or 0)
        return hook

    def _transformers(self, layer, config):
        def hook(router, arguments, outputs):
            x = arguments[0].reshape(-1, arguments[0].shape[-1])
            deepseek = hasattr(router, "e_score_correction_bias")
            self._keep(layer, torch.nn.functional.linear(x, router.weight, getattr(router, "bias", None)),
                       router.e_score_correction_bias if deepseek else None, outputs[0] if deepseek else None,
                       softmax=not deepseek and config.model_type != "llama4_text", top_k=config.num_experts_per_tok,
                       groups=config.n_group if deepseek else 0, limited=config.topk_group if deepseek else 0)
        return hook

    def _clamped(self, experts, arguments, named, _outputs):
        with torch.no_grad():
            tokens = arguments[0].detach().flatten(0, -2)
            self.clamp_margin = min(self.clamp_margin, distance_from_limit(experts, tokens, named["router_indices"]))


def _layer(name):
    parts = name.split(".")
    return int(parts[parts.index("layers") + 1])


class PinnedChoices(torch.overrides.TorchFunctionMode):
    """Inside this context, routers choose these experts by layer, in order, instead of the best by their own scores."""

    def __init__(self, choices):
        super().__init__()
        self._left = [choices[key] for key in sorted(choices, key=lambda key: int(key.split(".")[1]))]

    def __exit__(self, *error):
        super().__exit__(*error)
        if error[0] is None and self._left:
            raise AssertionError(f"{len(self._left)} routers did not choose")

    def __torch_function__(self, function, types, arguments=(), named=None):
        named = named or {}
        if function not in (torch.topk, torch.Tensor.topk) or not self._left:
            return function(*arguments, **named)
        scores, k = arguments[0], named["k"] if "k" in named else arguments[1]
        chosen = self._left[0]
        if scores.dim() != 2 or len(scores) != len(chosen) or k != chosen.shape[1]:
            return function(*arguments, **named)
        if scores.shape[1] <= int(chosen.max()):  # Groups of experts.
            return function(*arguments, **named)
        self._left.pop(0)
        return torch.return_types.topk((scores.gather(1, chosen), chosen))

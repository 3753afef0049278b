"""What routers choose, recomputed from their inputs in float64, and how close the choice was."""

import torch


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


class RoutingRecorder:
    """Hooks a model's routers; `choices` by layer and `margin` are those of the last forward pass before remove()."""

    def __init__(self, oracle):
        self.choices, self.margin, self._hooks = {}, float("inf"), []
        for name, module in oracle.module.named_modules():
            kind = type(module).__name__
            if kind == "TokenChoiceTopKRouter":
                self._hooks.append(module.register_forward_hook(self._torchtitan(_layer(name)), with_kwargs=True))
            elif kind in ("GptOssTopKRouter", "DeepseekV3TopkRouter", "Llama4Router") or name.endswith("mlp.gate"):
                self._hooks.append(module.register_forward_hook(self._transformers(_layer(name), oracle.module.config)))

    def remove(self):
        for hook in self._hooks:
            hook.remove()

    def clear(self):
        self.choices, self.margin = {}, float("inf")

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


def _layer(name):
    parts = name.split(".")
    return int(parts[parts.index("layers") + 1])

"""Values for a comparison: of order one everywhere, so that an error in any tensor is visible (see README.md)."""

import torch

NORM_SPREAD = 0.3  # One-dimensional weights become 1 + 0.3 * normal: of order one, but not all the same.
BIAS_SPREAD = 0.3
ROUTER_GAIN = 2  # In addition to the gain: torchtitan's routers start so small that noise in them hardly moves a score.
EXPERT_BIAS_SPREAD = 0.02  # Moves choices between experts; scores are in [0, 1].


def disturb(module, gain, expert_bias=True):
    """Puts a gain on torchtitan's initial values (already drawn)."""
    if gain == 1:
        return
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() == 1:
                parameter += NORM_SPREAD * torch.randn_like(parameter)
            elif name.startswith("layers."):
                parameter *= gain * (ROUTER_GAIN if ".router." in name else 1)
        for name, buffer in module.named_buffers():
            if expert_bias and name.endswith("expert_bias"):
                buffer += EXPERT_BIAS_SPREAD * torch.randn_like(buffer)


def draw(module, gain):
    """Draws a transformers model's values, as large as torchtitan's after disturb()."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("sinks"):
                parameter.normal_(1.5, BIAS_SPREAD)  # Otherwise keys outweigh sinks so far that noise in them is lost.
            elif name.endswith("router.bias"):
                parameter.normal_(0, 1)  # A bias that all experts share has no effect: the differences must be large.
            elif name.endswith("bias"):
                parameter.normal_(0, BIAS_SPREAD)
            elif parameter.dim() == 1:
                parameter.normal_(1, NORM_SPREAD)
            elif "embed_tokens" in name:
                parameter.normal_(0, 1)
            elif "lm_head" in name:
                parameter.normal_(0, parameter.shape[1] ** -0.5)
            else:
                parameter.normal_(0, 0.02 * gain)
        for name, buffer in module.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0, EXPERT_BIAS_SPREAD)

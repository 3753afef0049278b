#pragma once

#include "common/plan/encoders/options.h"
#include "worker/rank/model/encoders/text_encoder.h"

namespace titan::encoders {

// Builds the text encoder of a CLIP (arXiv 2103.00020), whose result is the pooled output [B, dim]: the last layer's
// output at the token ClipTextOptions::eos_token, normalized. Its blocks are the embeddings, one for each layer, and
// the norm with pooling. Texts have at most max_tokens tokens. Parameters have transformers' names, and no values yet.
TextEncoder build_clip_text(const ClipTextOptions& options);

}  // namespace titan::encoders

#pragma once

#include "absl/status/status.h"
#include "common/plan/models/model_spec.h"
#include "worker/rank/model/decoder/decoder.h"

// Converts a model's spec to the options of the layers that compute it.
namespace titan::model {

// Checks that the numbers of the spec fit together. InvalidArgument names those that do not.
absl::Status check(const models::ModelSpec& spec);

// Return the options of the rotation, and of one layer's parts. `seq_len` is the length of training rows: YaRN may
// apply only to rows beyond the original context (YarnScaling::only_beyond_original).
nn::RopeOptions rope_options(const models::ModelSpec& spec, int64_t seq_len);
nn::RopeOptions window_rope_options(const models::ModelSpec& spec, int64_t seq_len);  // ModelSpec::window_rope_theta.
nn::FeedForwardForm feed_forward_form(const models::ModelSpec& spec);
nn::AttentionOptions attention_options(const models::ModelSpec& spec, int64_t layer, const LayerInits& inits);
nn::LatentAttentionOptions latent_options(const models::ModelSpec& spec, int64_t layer, const LayerInits& inits,
                                          int64_t seq_len);
nn::MoeOptions moe_options(const models::ModelSpec& spec, const LayerInits& inits);

}  // namespace titan::model

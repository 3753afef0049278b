#pragma once

// The graph of a decoder, from its spec alone.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/models/model_spec.h"
#include "worker/rank/checkpoint/formats/onnx/onnx_layers.h"
#include "worker/rank/nn/rope.h"

namespace titan::checkpoint::onnx {

// Numbers of a trained decoder that depend on the length of its rows, too.
struct Positions {
  nn::RopeOptions rope;     // The rotation of training; max_seq_len is the length of the longest row.
  double latent_scale = 0;  // Factor of the logits of latent attention.
};

// Checks that a graph for `target` computes all that the spec asks for. FailedPrecondition names the member of the spec
// or the flag that does not fit.
absl::Status check_graph(const models::ModelSpec& spec, const Target& target);

// Builds the graph: inputs input_ids, attention_mask and position_ids, int64 [B, S or T], and the caches of all layers;
// outputs logits, float32 [B, S, vocabulary], and the new caches. Collects its weights. Errors: those of check_graph();
// FailedPrecondition names a parameter of the step that the graph does not use.
absl::Status build_graph(const Builder& builder, const Positions& positions);

}  // namespace titan::checkpoint::onnx

#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "worker/model/hf_names.h"
#include "worker/model/model.h"
#include "worker/nn/attention.h"
#include "worker/nn/feed_forward.h"
#include "worker/nn/layers.h"
#include "worker/nn/rope.h"

namespace titan::model::llama {

class TokenEmbedding : public nn::Block {
 public:
  explicit TokenEmbedding(const models::ModelSpec& spec);
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override;

  nn::Embedding tok_embeddings;
};

// Pre-norm residual block: h = x + attention(norm(x)); h + feed_forward(norm(h)).
class Layer : public nn::Block {
 public:
  Layer(const models::ModelSpec& spec, int64_t index, std::shared_ptr<nn::Rope> rope);
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override;
  void init_buffers(at::Device device, at::ScalarType dtype) override { rope_->fill(device, dtype); }

  nn::GroupedAttention attention;
  nn::FeedForward feed_forward;
  nn::RmsNorm attention_norm, ffn_norm;

 private:
  std::shared_ptr<nn::Rope> rope_;
};

// Final norm and vocabulary projection.
class Head : public nn::Block {
 public:
  explicit Head(const models::ModelSpec& spec);
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override;

  nn::RmsNorm norm;
  nn::Linear output;
};

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options);

absl::StatusOr<HfTensor> hf_tensor(const models::ModelSpec& spec, const std::string& fqn);
absl::StatusOr<std::optional<std::string>> fqn_of_hf_key(const models::ModelSpec& spec, const std::string& key);
nlohmann::json hf_config(const models::ModelSpec& spec);

}  // namespace titan::model::llama

#include "worker/rank/model/decoder/decoder.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/plan/models/activations.h"
#include "common/plan/models/sizes.h"
#include "worker/rank/model/decoder/options.h"
#include "worker/rank/nn/loss.h"
#include "worker/rank/parallel/context.h"
#include "worker/rank/parallel/expert.h"
#include "worker/rank/parallel/tensor.h"

namespace titan::model {
namespace {

// Returns a Declare that creates nothing, because the parameter exists already.
nn::Declare use(nn::Parameter* parameter) {
  return
      [parameter](const std::string&, const std::vector<int64_t>&, nn::Init) -> nn::Parameter& { return *parameter; };
}

std::unique_ptr<nn::SelfAttention> make_attention(const nn::Declare& declare, const std::string& fqn,
                                                  const models::ModelSpec& spec, int64_t layer, const LayerInits& inits,
                                                  int64_t seq_len, std::shared_ptr<const nn::Rope> rope) {
  if (spec.attention == models::Attention::kLatent) {
    return std::make_unique<nn::LatentAttention>(declare, fqn, latent_options(spec, layer, inits, seq_len),
                                                 std::move(rope));
  }
  return std::make_unique<nn::GroupedAttention>(declare, fqn, attention_options(spec, layer, inits), std::move(rope));
}

// Returns the rotation of each layer, null for layers without positions. Layers with the same table share it.
std::vector<std::shared_ptr<nn::Rope>> ropes_of_layers(const models::ModelSpec& spec, const BuildOptions& options) {
  const auto make = [&](nn::RopeOptions rotation) {
    rotation.max_seq_len = std::max(rotation.max_seq_len, options.longest_row);
    return std::make_shared<nn::Rope>(rotation);
  };
  const auto rope = make(rope_options(spec, options.seq_len));
  const auto in_window = spec.window_rope_theta > 0 ? make(window_rope_options(spec, options.seq_len)) : rope;
  std::vector<std::shared_ptr<nn::Rope>> ropes;
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    const auto& of_layer = spec.layer_window(layer) > 0 ? in_window : rope;
    ropes.push_back(spec.layer_has_positions(layer) ? of_layer : nullptr);
  }
  return ropes;
}

}  // namespace

TokenEmbedding::TokenEmbedding(const models::ModelSpec& spec, nn::Init init)
    : Block("tok_embeddings"),
      tok_embeddings(declare(), "tok_embeddings.weight", spec.vocab_size, spec.dim, init),
      scale_(spec.embedding_scale) {}

at::Tensor TokenEmbedding::forward(const at::Tensor& input, const nn::MicrobatchContext&) { return embed(input); }

// The scale is rounded like the activations, with which the released models were trained (Gemma).
at::Tensor TokenEmbedding::embed(const at::Tensor& tokens) const {
  const at::Tensor embedded = tok_embeddings.forward(tokens);
  if (scale_ == 1) return embedded;
  return embedded * at::scalar_tensor(scale_, at::TensorOptions(embedded.scalar_type())).item();
}

DecoderLayer::DecoderLayer(const models::ModelSpec& spec, int64_t index, const LayerInits& inits, int64_t seq_len,
                           std::shared_ptr<nn::Rope> rope)
    : Block(absl::StrCat("layers.", index)), residual_scale_(spec.residual_scale), rope_(std::move(rope)) {
  attention = make_attention(declare(), name() + ".attention", spec, index, inits, seq_len, rope_);
  if (spec.layer_has_experts(index)) {
    nn::Buffer& bias = declare_buffer(name() + ".moe.expert_bias");
    moe = std::make_unique<nn::MixtureOfExperts>(declare(), bias, name() + ".moe", moe_options(spec, inits));
  } else {
    feed_forward.emplace(declare(), name() + ".feed_forward", spec.dim, spec.ffn_hidden, inits.w1, inits.w2_w3,
                         feed_forward_form(spec));
  }
  const auto add_norm = [&](std::optional<nn::RmsNorm>& norm, const char* norm_name) {
    norm.emplace(declare(), absl::StrCat(name(), ".", norm_name, ".weight"), spec.dim, spec.norm_eps, spec.norm_offset);
  };
  const bool before = spec.norm_placement != models::NormPlacement::kPost;
  const bool after = spec.norm_placement != models::NormPlacement::kPre;
  if (before) add_norm(attention_norm, "attention_norm");
  if (after) add_norm(attention_post_norm, "attention_post_norm");
  if (before) add_norm(ffn_norm, "ffn_norm");
  if (after) add_norm(ffn_post_norm, "ffn_post_norm");
}

at::Tensor DecoderLayer::term(const at::Tensor& branch, const std::optional<nn::RmsNorm>& post_norm) const {
  const at::Tensor normed = post_norm ? post_norm->forward(branch) : branch;
  return residual_scale_ == 1 ? normed : normed * residual_scale_;
}

at::Tensor DecoderLayer::feed(const at::Tensor& input, const nn::MicrobatchContext& context) const {
  return term(moe ? moe->forward(input, context.counting) : feed_forward->forward(input), ffn_post_norm);
}

at::Tensor DecoderLayer::forward(const at::Tensor& input, const nn::MicrobatchContext& context) {
  if (!attention_norm) {
    const at::Tensor sum = input + term(attention->forward(input, context), attention_post_norm);
    return sum + feed(sum, context);
  }
  const nn::SumAndNorm first = attention_norm->forward_sum(input, {});
  const nn::SumAndNorm second =
      ffn_norm->forward_sum(first.sum, term(attention->forward(first.norm, context), attention_post_norm));
  return second.sum + feed(second.norm, context);
}

// The bias starts at zero. Training then owns it: it is saved, loaded and updated, and never reset here.
void DecoderLayer::init_buffers(at::Device device, at::ScalarType dtype) {
  if (rope_) rope_->fill(device, dtype);
  for (nn::Buffer& buffer : buffers()) {
    const at::TensorOptions wanted = at::TensorOptions().device(device).dtype(nn::accumulate_type(dtype));
    if (!buffer.value.defined()) buffer.value = at::zeros({moe->num_experts()}, wanted);
  }
}

Head::Head(const models::ModelSpec& spec, nn::Init init, nn::Parameter* tied)
    : Block("output"),
      norm(declare(), "norm.weight", spec.dim, spec.norm_eps, spec.norm_offset),
      output(tied == nullptr ? declare() : use(tied), "output.weight", spec.dim, spec.vocab_size, init),
      logit_divisor_(spec.logit_divisor),
      logit_softcap_(spec.logit_softcap),
      tied_(tied) {}

// Dividing here costs less than dividing the logits, which are wider.
at::Tensor Head::features(const at::Tensor& input) const {
  const at::Tensor normed = norm.forward(input);
  return logit_divisor_ == 1 ? normed : normed / logit_divisor_;
}

at::Tensor Head::forward(const at::Tensor& input, const nn::MicrobatchContext&) {
  const at::Tensor logits = output.forward(features(input));
  return logit_softcap_ > 0 ? nn::soft_capped(logits, logit_softcap_) : logits;
}

at::Tensor Head::loss(const at::Tensor& input, const nn::MicrobatchContext& context, const nn::Loss& loss) {
  const int64_t columns = output.weight().shape[0];
  const int64_t some = models::logit_columns(context.labels.numel(), columns, input.element_size(), max_logit_bytes);
  // The loss by parts multiplies plain numbers, so it cannot use a quantised recipe.
  const bool quantised = output.weight().products != nullptr;
  if (some >= columns || !loss.by_parts || quantised) return loss(forward(input, context), context.labels);
  return loss.by_parts(features(input), output.weight(), context.labels, some);
}

std::vector<nn::Parameter*> Head::shared_parameters() {
  return tied() ? std::vector<nn::Parameter*>{tied_} : std::vector<nn::Parameter*>{};
}

nn::Loss::ByParts loss_by_parts(const models::ModelSpec& spec) {
  return [softcap = spec.logit_softcap](const at::Tensor& input, const nn::Parameter& weight, const at::Tensor& labels,
                                        int64_t columns) {
    return nn::head_cross_entropy_sum(input, weight, labels, columns, /*vocabulary=*/nullptr, softcap);
  };
}

absl::StatusOr<Model> build_decoder(const models::ModelSpec& spec, const BuildOptions& options,
                                    const DecoderInits& inits, const MakeEmbedding& make_embedding) {
  if (absl::Status bad = check(spec); !bad.ok()) return bad;
  const std::vector<std::shared_ptr<nn::Rope>> ropes = ropes_of_layers(spec, options);
  Model model;
  std::unique_ptr<TokenEmbedding> embedding =
      make_embedding ? make_embedding(spec, inits.embedding) : std::make_unique<TokenEmbedding>(spec, inits.embedding);
  nn::Parameter* tied = spec.tied_embeddings ? &embedding->tok_embeddings.weight() : nullptr;
  model.blocks.push_back(std::move(embedding));
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
    model.blocks.push_back(
        std::make_unique<DecoderLayer>(spec, layer, inits.layer(layer), options.seq_len, ropes[layer]));
  }
  auto head = std::make_unique<Head>(spec, inits.head, tied);
  head->max_logit_bytes = options.max_logit_bytes;
  model.blocks.push_back(std::move(head));
  model.loss.by_parts = loss_by_parts(spec);
  model.parallelize = [spec](Model& whole, const ParallelOptions& parallel) {
    return parallelize_decoder(whole, spec, parallel);
  };
  return model;
}

using nn::Init;

Init truncated(double std) { return {Init::Kind::kTruncatedNormal, std, -2.0, 2.0}; }

Init depth_init(const models::ModelSpec& spec, int64_t layer) {
  const int64_t depth = spec.depth_init ? layer + 1 : spec.n_layers;
  return truncated(0.02 / std::sqrt(2.0 * static_cast<double>(depth)));
}

Init head_init(const models::ModelSpec& spec) {
  const double std = 1.0 / std::sqrt(static_cast<double>(spec.dim));
  return {Init::Kind::kTruncatedNormal, std, -3 * std, 3 * std};
}

DecoderInits inits_with_layers(const models::ModelSpec& spec, std::function<LayerInits(int64_t layer)> layer) {
  const Init head = head_init(spec);
  return {.embedding = spec.tied_embeddings ? head : Init{Init::Kind::kNormal, 1.0},
          .head = head,
          .layer = std::move(layer)};
}

DecoderInits common_inits(const models::ModelSpec& spec) {
  return inits_with_layers(spec, [spec](int64_t layer) {
    const Init plain = truncated(0.02), deep = depth_init(spec, layer);
    LayerInits inits{.attention_in = plain, .attention_out = deep, .w1 = plain, .w2_w3 = deep};
    inits.moe.w1_init = plain;
    inits.moe.w2_init = inits.moe.w3_init = inits.moe.gate_init = inits.moe.bias_init = deep;
    inits.moe.shared_w1_init = plain;
    inits.moe.shared_depth_init = deep;
    return inits;
  });
}

namespace {

using mesh::Axis;

void split_layer(DecoderLayer& layer, const comm::DeviceMesh& mesh, const parallel::TensorParallel& tensor,
                 parallel::ExpertDispatcher dispatcher) {
  for (auto* norm : {&layer.attention_norm, &layer.attention_post_norm, &layer.ffn_norm, &layer.ffn_post_norm}) {
    if (*norm) parallel::split_norm(**norm, tensor);
  }
  if (auto* latent = dynamic_cast<nn::LatentAttention*>(layer.attention.get())) {
    parallel::split_attention(*latent, tensor);
  } else {
    parallel::split_attention(dynamic_cast<nn::GroupedAttention&>(*layer.attention), tensor);
  }
  if (layer.moe) {
    parallel::split_experts(*layer.moe, mesh, tensor, dispatcher);
  } else {
    parallel::split_feed_forward(*layer.feed_forward, tensor);
  }
}

}  // namespace

absl::Status parallelize_decoder(Model& model, const models::ModelSpec& spec, const ParallelOptions& options) {
  const comm::DeviceMesh& mesh = *options.mesh;
  TITAN_RETURN_IF_ERROR(mesh::check_divisible(mesh.mesh(), models::split_sizes(spec)));
  const comm::Group& tensor_group = mesh.group(Axis::kTensor);
  const comm::Group& context_group = mesh.group(Axis::kContext);
  const parallel::TensorParallel tensor{.group = &tensor_group,
                                        .sequence = options.sequence_parallel,
                                        .overlap = options.async_tensor_parallel,
                                        .operands = options.gather_operands};
  const parallel::ContextParallel context{.group = &context_group, .rotate = options.rotate_method};
  const auto dispatcher = options.expert_dispatcher == "allgather" ? parallel::ExpertDispatcher::kAllGather
                                                                   : parallel::ExpertDispatcher::kAllToAll;
  for (const auto& block : model.blocks) {
    if (auto* embedding = dynamic_cast<TokenEmbedding*>(block.get())) {
      parallel::split_embedding(embedding->tok_embeddings, tensor);
    } else if (auto* layer = dynamic_cast<DecoderLayer*>(block.get())) {
      split_layer(*layer, mesh, tensor, dispatcher);
      if (context_group.size() > 1) layer->attention->core = parallel::context_parallel_attention(context);
      if (layer->moe && options.force_load_balance) layer->moe->force_balance();
    } else if (auto* head = dynamic_cast<Head*>(block.get())) {
      parallel::split_norm(head->norm, tensor);
      parallel::split_head(head->output, tensor, options.loss_parallel);
    }
  }
  if (tensor_group.size() == 1) return absl::OkStatus();
  if (options.loss_parallel) {
    model.loss = parallel::vocabulary_parallel_loss(tensor_group);
    model.loss.by_parts = parallel::vocabulary_parallel_loss_by_parts(tensor, spec.logit_softcap);
  } else {
    model.loss.by_parts = nullptr;  // The logits are gathered.
  }
  return absl::OkStatus();
}

}  // namespace titan::model

#include "worker/rank/model/decoder/parallelize.h"

#include "absl/strings/str_cat.h"
#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/parallel/context.h"
#include "worker/rank/parallel/expert.h"
#include "worker/rank/parallel/tensor.h"

namespace titan::model {
namespace {

using mesh::Axis;

absl::Status divides(int ranks, int64_t count, const char* what, const char* key) {
  if (count % ranks == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("parallelism.", key, " ", ranks, " does not divide the model's ", count, " ", what));
}

absl::Status check_divisible(const models::ModelSpec& spec, const mesh::Mesh& mesh) {
  const int tensor = mesh.size(Axis::kTensor);
  const char* const key = "tensor_parallel_degree";
  if (absl::Status bad = divides(tensor, spec.vocab_size, "vocabulary entries", key); !bad.ok()) return bad;
  if (absl::Status bad = divides(tensor, spec.n_heads, "attention heads", key); !bad.ok()) return bad;
  if (spec.attention == models::Attention::kGrouped) {
    if (absl::Status bad = divides(tensor, spec.n_kv_heads, "key-value heads", key); !bad.ok()) return bad;
  }
  bool has_dense = false;
  for (int64_t layer = 0; layer < spec.n_layers; ++layer) has_dense |= !spec.layer_has_experts(layer);
  if (has_dense) {
    if (absl::Status bad = divides(tensor, spec.ffn_hidden, "feed-forward channels", key); !bad.ok()) return bad;
  }
  if (!spec.moe) return absl::OkStatus();
  const int expert = mesh.size(Axis::kExpert);
  if (absl::Status bad = divides(expert, spec.moe->num_experts, "experts", "expert_parallel_degree"); !bad.ok()) {
    return bad;
  }
  if (spec.moe->num_shared_experts > 0) {
    const int64_t shared = spec.moe->num_shared_experts * spec.moe->hidden;
    if (absl::Status bad = divides(tensor, shared, "shared expert channels", key); !bad.ok()) return bad;
  }
  return divides(mesh.size(Axis::kExpertTensor), spec.moe->hidden, "channels of an expert",
                 expert > 1 ? "expert_tensor_parallel_degree" : key);
}

void split_layer(DecoderLayer& layer, const comm::DeviceMesh& mesh, const parallel::TensorParallel& tensor,
                 parallel::ExpertDispatcher dispatcher) {
  parallel::split_norm(*layer.attention_norm, tensor);
  if (auto* latent = dynamic_cast<nn::LatentAttention*>(layer.attention.get())) {
    parallel::split_attention(*latent, tensor);
  } else {
    parallel::split_attention(dynamic_cast<nn::GroupedAttention&>(*layer.attention), tensor);
  }
  parallel::split_norm(*layer.ffn_norm, tensor);
  if (layer.moe) {
    parallel::split_experts(*layer.moe, mesh, tensor, dispatcher);
  } else {
    parallel::split_feed_forward(*layer.feed_forward, tensor);
  }
}

}  // namespace

absl::Status parallelize_decoder(Model& model, const models::ModelSpec& spec, const ParallelOptions& options) {
  const comm::DeviceMesh& mesh = *options.mesh;
  if (absl::Status bad = check_divisible(spec, mesh.mesh()); !bad.ok()) return bad;
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
    } else {
      Head& head = dynamic_cast<Head&>(*block);
      parallel::split_norm(head.norm, tensor);
      parallel::split_head(head.output, tensor, options.loss_parallel);
    }
  }
  if (tensor_group.size() == 1) return absl::OkStatus();
  if (options.loss_parallel) {
    model.loss = parallel::vocabulary_parallel_loss(tensor_group);
    model.loss.by_parts = parallel::vocabulary_parallel_loss_by_parts(tensor);
  } else {
    model.loss.by_parts = nullptr;  // The logits are gathered.
  }
  return absl::OkStatus();
}

}  // namespace titan::model

#include "worker/rank/model/decoder/parallelize.h"

#include "common/base/status/status.h"
#include "common/plan/models/split_sizes.h"
#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/parallel/context.h"
#include "worker/rank/parallel/expert.h"
#include "worker/rank/parallel/tensor.h"

namespace titan::model {
namespace {

using mesh::Axis;

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

#include "common/base/status/status.h"
#include "worker/rank/comm/functional.h"
#include "worker/rank/model/flux/blocks.h"
#include "worker/rank/model/flux/flux.h"
#include "worker/rank/parallel/context.h"
#include "worker/rank/parallel/fused_columns.h"
#include "worker/rank/parallel/tensor.h"

namespace titan::model::flux {
namespace {

using mesh::Axis;
using parallel::FusedColumns;

// Each rank computes a part of the outputs from the whole input.
void split_columns(nn::Linear& layer, const comm::Group& group) {
  parallel::split(layer.weight(), 0, group);
  parallel::split(*layer.bias(), 0, group);
  layer.seams.input = [&group](const at::Tensor& x) { return comm::fan_out(x, group); };
}

// Each rank has a part of the inputs, and all get the whole output. The bias is added once, after the sum.
void split_rows(nn::Linear& layer, const comm::Group& group) {
  parallel::split(layer.weight(), 1, group);
  layer.seams.output = [&group](const at::Tensor& x) { return comm::all_reduce(x, group); };
}

// Each rank computes a part of the modulations, of which all ranks then get the whole. Each adds the whole bias.
void split_modulation(nn::Linear& layer, const comm::Group& group) {
  parallel::split(layer.weight(), 0, group);
  layer.seams.input = [&group](const at::Tensor& x) { return comm::fan_out(x, group); };
  layer.seams.output = [&group](const at::Tensor& x) { return comm::gather_alike(x, x.dim() - 1, group); };
}

// Every rank normalizes different heads with the same weights.
void split_norms(HeadNorms& norms) {
  norms.query_norm.weight().on_tensor_axis = nn::TensorAxisPlacement::kPartial;
  norms.key_norm.weight().on_tensor_axis = nn::TensorAxisPlacement::kPartial;
}

// The rows of q, k and v stand one after the other in one matrix, of which each rank has consecutive rows, like of
// every other matrix. So its outputs are not those of its heads, and the ranks exchange them.
void split_stream(Stream& stream, const models::FluxSpec& spec, const comm::Group& group) {
  split_modulation(stream.mod, group);
  split_columns(stream.qkv, group);
  const auto fused = c10::make_intrusive<FusedColumns>(std::vector<int64_t>(3, spec.dim), group);
  stream.to_shares = [fused](const at::Tensor& piece) { return parallel::to_shares(piece, fused); };
  split_norms(stream.norm);
  split_rows(stream.proj, group);
  split_columns(stream.mlp_in, group);
  split_rows(stream.mlp_out, group);
}

void split_single(SingleBlock& block, const models::FluxSpec& spec, const comm::Group& group) {
  const int64_t dim = spec.dim, mlp = spec.mlp_hidden();
  split_modulation(block.modulation, group);
  split_columns(block.linear1, group);
  const auto outputs = c10::make_intrusive<FusedColumns>(std::vector<int64_t>{dim, dim, dim, mlp}, group);
  block.to_shares = [outputs](const at::Tensor& piece) { return parallel::to_shares(piece, outputs); };
  split_norms(block.norm);
  const auto inputs = c10::make_intrusive<FusedColumns>(std::vector<int64_t>{dim, mlp}, group);
  block.to_pieces = [inputs](const at::Tensor& shares) { return parallel::to_pieces(shares, inputs); };
  split_rows(block.linear2, group);
}

}  // namespace

absl::Status parallelize(const Blocks& blocks, const models::FluxSpec& spec, const ParallelOptions& options) {
  const comm::DeviceMesh& mesh = *options.mesh;
  TITAN_RETURN_IF_ERROR(mesh::check_divisible(mesh.mesh(), models::split_sizes(spec)));
  const comm::Group &tensor = mesh.group(Axis::kTensor), &context = mesh.group(Axis::kContext);
  const nn::AttentionCore core =
      parallel::context_parallel_attention({.group = &context, .rotate = options.rotate_method});
  for (const auto& block : blocks) {
    if (auto* twin = dynamic_cast<DoubleBlock*>(block.get())) {
      twin->core = core;
      if (tensor.size() == 1) continue;
      split_stream(twin->img, spec, tensor);
      split_stream(twin->txt, spec, tensor);
    } else if (auto* single = dynamic_cast<SingleBlock*>(block.get())) {
      single->core = core;
      if (tensor.size() > 1) split_single(*single, spec, tensor);
    } else if (auto* last = dynamic_cast<FinalLayer*>(block.get()); last != nullptr && tensor.size() > 1) {
      split_modulation(last->modulation, tensor);
    }
  }
  return absl::OkStatus();
}

}  // namespace titan::model::flux

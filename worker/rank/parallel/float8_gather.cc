#include "worker/rank/parallel/float8_gather.h"

#include "worker/rank/nn/low_precision/float8.h"
#include "worker/rank/parallel/shard_unit.h"

namespace titan::parallel {

void Float8Gather::find_greatest(const std::vector<const ShardedParameter*>& parameters,
                                 const std::vector<at::Tensor>& shards, at::Device device) const {
  if (parameters.empty()) return;
  std::vector<at::Tensor> own;
  for (const at::Tensor& shard : shards)
    own.push_back(nn::amax_of(shard));  // Where it lives: offloaded ones stay there.
  const at::Tensor all = at::stack(own).to(device, /*non_blocking=*/true);  // [parameters], fp32
  shard_.all_reduce(all, c10d::ReduceOp::MAX).wait();
  if (tensor_ != nullptr && tensor_->size() > 1) tensor_->all_reduce(all, c10d::ReduceOp::MAX).wait();
  // Rounding keeps the order of numbers: this is the greatest of the rounded weight.
  const at::Tensor rounded = all.to(type_).to(at::kFloat);
  for (size_t i = 0; i < parameters.size(); ++i) greatest_[parameters[i]->parameter] = rounded[static_cast<int64_t>(i)];
}

void Float8Gather::precompute(const std::vector<const ShardedParameter*>& parameters, at::Device device) const {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> shards;
  shards.reserve(parameters.size());
  for (const ShardedParameter* placed : parameters) shards.push_back(placed->value);
  find_greatest(parameters, shards, device);
}

void Float8Gather::pack(const at::Tensor& master, const std::vector<ShardedParameter>& parameters,
                        at::Tensor& piece) const {
  std::vector<const ShardedParameter*> placed;
  std::vector<at::Tensor> shards;
  for (const ShardedParameter& one : parameters) {
    placed.push_back(&one);
    shards.push_back(master.narrow(0, one.offset, one.chunk_rows * one.row_numel));  // The padding is zero.
  }
  if (!precomputes_) find_greatest(placed, shards, piece.device());
  for (size_t i = 0; i < placed.size(); ++i) {
    const nn::Parameter* parameter = placed[i]->parameter;
    const auto found = greatest_.find(parameter);
    TORCH_CHECK(found != greatest_.end(), parameter->fqn, ": its scale was not computed before its gather");
    const nn::Operand quantised =
        nn::quantised(shards[i].to(type_), found->second, at::kFloat8_e4m3fn, /*power_of_two=*/false);
    piece.narrow(0, placed[i]->offset, shards[i].numel()).copy_(quantised.values);
    scales_[parameter] = quantised.scales;
  }
}

at::Tensor Float8Gather::scales(const nn::Parameter& parameter) const { return scales_.at(&parameter); }

}  // namespace titan::parallel

#include "worker/rank/parallel/weight_gather.h"

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/nn/low_precision/float8.h"
#include "worker/rank/parallel/shard_unit.h"

namespace titan::parallel {
namespace {

absl::StatusOr<at::ScalarType> scalar_type(const std::string& key, const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  if (name == "float16") return at::kHalf;
  if (name == "float64") return at::kDouble;
  return absl::InvalidArgumentError(
      absl::StrCat("training.", key, ": \"", name, "\" is not one of float32, bfloat16, float16, float64"));
}

}  // namespace

absl::StatusOr<Precision> make_precision(const std::string& dtype, const std::string& mixed_precision_param,
                                         const std::string& mixed_precision_reduce) {
  Precision precision;
  TITAN_ASSIGN_OR_RETURN(precision.master, scalar_type("dtype", dtype));
  if (precision.master == at::kDouble) return Precision{at::kDouble, at::kDouble, at::kDouble};
  TITAN_ASSIGN_OR_RETURN(precision.param, scalar_type("mixed_precision_param", mixed_precision_param));
  TITAN_ASSIGN_OR_RETURN(precision.reduce, scalar_type("mixed_precision_reduce", mixed_precision_reduce));
  return precision;
}

namespace {

class GatherCast final : public GatherRecipe {
 public:
  at::ScalarType type(const Precision& precision) const override { return precision.param; }
  void pack(const at::Tensor& master, const std::vector<ShardedParameter>& /*parameters*/,
            at::Tensor& piece) const override {
    piece.copy_(master);
  }
  at::Tensor scales(const nn::Parameter& /*parameter*/) const override { return {}; }
};

}  // namespace

const GatherRecipe& gather_cast() {
  static const GatherCast recipe;
  return recipe;
}

void Float8Gather::compute_amax(const std::vector<const ShardedParameter*>& parameters,
                                const std::vector<at::Tensor>& shards, at::Device device) const {
  if (parameters.empty()) return;
  std::vector<at::Tensor> own;
  for (const at::Tensor& shard : shards)
    own.push_back(nn::amax_of(shard));  // On the shard's device: offloaded shards stay there.
  const at::Tensor all = at::stack(own).to(device, /*non_blocking=*/true);  // [parameters], fp32
  shard_.all_reduce(all, c10d::ReduceOp::MAX).wait();
  if (tensor_ != nullptr && tensor_->size() > 1) tensor_->all_reduce(all, c10d::ReduceOp::MAX).wait();
  // Rounding is monotonic, so this is the largest magnitude of the rounded weight.
  const at::Tensor rounded = all.to(type_).to(at::kFloat);
  for (size_t i = 0; i < parameters.size(); ++i) greatest_[parameters[i]->parameter] = rounded[static_cast<int64_t>(i)];
}

void Float8Gather::precompute(const std::vector<const ShardedParameter*>& parameters, at::Device device) const {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> shards;
  shards.reserve(parameters.size());
  for (const ShardedParameter* placed : parameters) shards.push_back(placed->value);
  compute_amax(parameters, shards, device);
}

void Float8Gather::pack(const at::Tensor& master, const std::vector<ShardedParameter>& parameters,
                        at::Tensor& piece) const {
  std::vector<const ShardedParameter*> placed;
  std::vector<at::Tensor> shards;
  for (const ShardedParameter& one : parameters) {
    placed.push_back(&one);
    shards.push_back(master.narrow(0, one.offset, one.chunk_rows * one.row_numel));  // The padding is zero.
  }
  if (!precomputes_) compute_amax(placed, shards, piece.device());
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

namespace {

void point(c10::StorageImpl& storage, void* address, size_t bytes) {
  storage.set_data_ptr_noswap(at::DataPtr(address, storage.device()));
  storage.set_nbytes(bytes);
}

}  // namespace

WeightSlot::WeightSlot(const std::vector<int64_t>& bytes, at::Device device) {
  for (const int64_t piece : bytes) {
    pieces_.push_back({.memory = at::empty({piece}, at::TensorOptions(at::kByte).device(device))});
  }
}

void WeightSlot::lend(size_t piece, c10::StorageImpl& storage) {
  Piece& lent = pieces_.at(piece);
  TORCH_CHECK(lent.borrower == nullptr || lent.borrower == &storage,
              "two units gather their weights into one slot at the same time");
  lent.borrower = &storage;
  point(storage, lent.memory.mutable_data_ptr(), lent.memory.nbytes());
}

void WeightSlot::take_back(size_t piece, c10::StorageImpl& storage) {
  Piece& lent = pieces_.at(piece);
  if (lent.borrower == &storage) lent.borrower = nullptr;
  point(storage, nullptr, 0);
}

}  // namespace titan::parallel

#include "worker/rank/parallel/qk_clip.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/device/host_waits.h"
#include "worker/rank/nn/layers.h"

namespace titan::parallel {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNothing = -kInfinity;

// False where a logit is infinite or NaN: the loss of such a step is not finite either.
at::Tensor exceeds(const at::Tensor& largest, double tau) {
  return largest.gt(tau).bitwise_and_(largest.lt(kInfinity));
}

}  // namespace

absl::StatusOr<std::unique_ptr<QkClip>> QkClip::create(const std::vector<nn::Block*>& blocks,
                                                       const std::vector<ShardedParameter*>& parameters, double tau,
                                                       const comm::DeviceMesh& mesh, at::Device device) {
  if (!(tau > 0)) return absl::InvalidArgumentError(absl::StrCat("optimizer.qk_clip: ", tau, " is not above 0"));
  std::unique_ptr<QkClip> clip(new QkClip(tau, mesh));
  for (nn::Block* block : blocks) TITAN_RETURN_IF_ERROR(clip->add(*block, parameters));
  clip->open_table(device);
  return clip;
}

QkClip::~QkClip() {
  for (nn::SelfAttention* layer : layers_) layer->max_logits = at::Tensor();
}

absl::Status QkClip::add(nn::Block& block, const std::vector<ShardedParameter*>& parameters) {
  auto* owner = dynamic_cast<nn::HasAttention*>(&block);
  if (owner == nullptr) return absl::OkStatus();
  nn::SelfAttention& attention = owner->self_attention();
  const std::vector<nn::LogitRows> all = attention.logit_rows();
  if (all.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("optimizer.qk_clip: ", block.name(),
                     " normalizes its queries and keys: the scale of their weights does not "
                     "affect the logits"));
  }
  const auto layer = static_cast<int64_t>(layers_.size());
  layers_.push_back(&attention);
  for (const nn::LogitRows& rows : all) {
    if (rows.parameter->frozen)
      return absl::UnimplementedError(absl::StrCat("optimizer.qk_clip: ", rows.parameter->fqn, " is not trained"));
    const auto known = std::find_if(targets_.begin(), targets_.end(),
                                    [&](const Target& one) { return one.placed->parameter == rows.parameter; });
    if (known != targets_.end()) {
      known->rows.push_back(rows);
      continue;
    }
    const auto held = std::find_if(parameters.begin(), parameters.end(),
                                   [&](const ShardedParameter* one) { return one->parameter == rows.parameter; });
    TORCH_CHECK(held != parameters.end() && (*held)->dim == 0, rows.parameter->fqn, ": this rank has no rows of it");
    targets_.push_back({layer, *held, {rows}});
  }
  return absl::OkStatus();
}

// Gives each layer its row of the table. A rank of the tensor axis records only its own heads.
void QkClip::open_table(at::Device device) {
  int64_t heads = 0;
  for (const nn::SelfAttention* layer : layers_) heads = std::max(heads, layer->heads());
  table_ =
      at::full({static_cast<int64_t>(layers_.size()), heads}, kNothing, at::TensorOptions(at::kDouble).device(device));
  for (size_t i = 0; i < layers_.size(); ++i) {
    const nn::LogitRows rows = layers_[i]->logit_rows().front();
    layers_[i]->max_logits = table_[static_cast<int64_t>(i)].narrow(0, rows.parameter->offset[0] / rows.head_rows,
                                                                    rows.parameter->shape[0] / rows.head_rows);
  }
}

void QkClip::finish_step(const at::Tensor& skip) {
  if (layers_.empty()) return;
  at::NoGradGuard no_grad;
  mesh_.group(mesh::Axis::kHolders).all_reduce(table_, c10d::ReduceOp::MAX).wait();
  largest_ = table_.clone();
  table_.fill_(kNothing);
  at::Tensor above = exceeds(largest_, tau_);
  if (skip.defined()) above.bitwise_and_(skip.to(above.device()).eq(0));
  const at::Tensor factors = at::where(above, tau_ / largest_, at::ones_like(largest_));
  for (const Target& target : targets_) scale(target, factors[target.layer]);
}

// factors: float64 [heads of the widest layer].
void QkClip::scale(const Target& target, const at::Tensor& factors) {
  const ShardedParameter& placed = *target.placed;
  if (placed.value.numel() == 0) return;
  const int64_t head_rows = target.rows.front().head_rows, heads = placed.parameter->global_shape[0] / head_rows;
  at::Tensor by_row = at::ones({heads, head_rows}, factors.options());
  for (const nn::LogitRows& rows : target.rows) {
    by_row.narrow(1, rows.begin, rows.count).copy_(factors.narrow(0, 0, heads).pow(rows.power).unsqueeze(1));
  }
  at::Tensor value = placed.value;
  const at::ScalarType wide = nn::accumulate_type(value.scalar_type());
  std::vector<int64_t> shape(value.dim(), 1);
  shape[0] = value.size(0);
  const at::Tensor own = by_row.view(-1).narrow(0, placed.global_offset()[0], shape[0]).view(shape);
  value.mul_(own.to(value.device(), wide));
}

QkClip::Figures QkClip::figures() const {
  const at::TensorOptions options = table_.options();
  at::Tensor largest = at::full({1}, kNothing, options), clipped = at::zeros({1}, options);
  if (largest_.defined() && largest_.numel() > 0) {
    largest = largest_.max().view(1);
    clipped = exceeds(largest_, tau_).sum().view(1).to(at::kDouble);
  }
  if (mesh_.mesh().size(mesh::Axis::kPipeline) > 1) {
    mesh_.group(mesh::Axis::kPipeline).all_reduce(largest, c10d::ReduceOp::MAX).wait();
    mesh_.group(mesh::Axis::kPipeline).all_reduce(clipped).wait();
  }
  const device::AllowHostWaitGuard wait;
  const at::Tensor both = at::cat({largest, clipped}).cpu();
  return {both.const_data_ptr<double>()[0], static_cast<int64_t>(both.const_data_ptr<double>()[1])};
}

}  // namespace titan::parallel

#include "worker/rank/model/encoders/sharded_weights.h"

#include <algorithm>
#include <utility>

#include "common/base/status/status.h"
#include "worker/rank/nn/init.h"
#include "worker/rank/parallel/shard_unit.h"

namespace titan::encoders {
namespace {

// Returns the shape in which `rows` rows of a parameter are held.
std::vector<int64_t> held_shape(const nn::Parameter& parameter, int64_t rows) {
  std::vector<int64_t> shape = parallel::stored_shape(parameter);
  shape.front() = rows;
  return shape;
}

checkpoint::Box box_of(const nn::Parameter& parameter, int64_t first_row, int64_t rows) {
  checkpoint::Box box = checkpoint::whole(parameter.global_shape);
  box.offset.front() = first_row;
  box.shape.front() = rows;
  return box;
}

}  // namespace

ShardedWeights::ShardedWeights(const TextEncoder& encoder, const comm::Group& group, const Placement& placement)
    : group_(group), placement_(placement) {
  for (const auto& block : encoder.blocks()) {
    Block shards;
    for (nn::Parameter& parameter : block->parameters()) {
      const int64_t all = parameter.global_shape.front(), each = (all + group.size() - 1) / group.size();
      const int64_t first = std::min(each * group.rank(), all);
      const at::TensorOptions options =
          at::TensorOptions(parameter.packed_row > 0 ? at::kByte : placement.dtype).device(placement.device);
      shards.push_back({.parameter = &parameter,
                        .first_row = first,
                        .rows = std::min(each, all - first),
                        .held = at::zeros(held_shape(parameter, each), options),
                        .gathered = {},
                        .gather = {}});
    }
    blocks_.push_back(std::move(shards));
  }
}

// `rows_of` returns a shard's rows [rows, ...] in any type.
template <typename Fill>
absl::Status ShardedWeights::fill(const Fill& rows_of) {
  TITAN_RETURN_IF_ERROR(check_dtype(placement_.dtype));
  for (Block& block : blocks_) {
    for (Shard& shard : block) {
      if (shard.rows == 0) continue;
      TITAN_ASSIGN_OR_RETURN(const at::Tensor values, rows_of(shard));
      shard.held.narrow(0, 0, shard.rows).copy_(held_form(*shard.parameter, values, placement_.dtype));
    }
  }
  return absl::OkStatus();
}

absl::Status ShardedWeights::load(const FrozenWeights& weights) {
  std::vector<nn::Parameter*> all;
  for (const Block& block : blocks_) {
    for (const Shard& shard : block) all.push_back(shard.parameter);
  }
  TITAN_RETURN_IF_ERROR(weights.check(all));
  return fill([&](const Shard& shard) {
    return weights.read(*shard.parameter, box_of(*shard.parameter, shard.first_row, shard.rows));
  });
}

absl::Status ShardedWeights::draw(uint64_t seed) {
  return fill([&](const Shard& shard) -> absl::StatusOr<at::Tensor> {
    const checkpoint::Box box = box_of(*shard.parameter, shard.first_row, shard.rows);
    const at::Tensor values = at::empty(box.shape, at::kFloat);
    const int64_t first = checkpoint::first_element(box, checkpoint::whole(shard.parameter->global_shape));
    nn::fill(*shard.parameter, seed, first, first + values.numel(), values);
    return values;
  });
}

// Every weight is gathered into place: only the last ranks' rows can be missing, so it is the start of all ranks' rows.
void ShardedWeights::begin(Block& block) {
  for (Shard& shard : block) {
    if (shard.gathered.defined()) continue;
    std::vector<int64_t> shape = shard.held.sizes().vec();
    shape.front() *= group_.size();
    shard.gathered = at::empty(shape, shard.held.options());
    gathered_bytes_ += static_cast<int64_t>(shard.gathered.nbytes());
    shard.gather = group_.all_gather(shard.gathered.flatten(), shard.held.flatten());
  }
  most_gathered_bytes_ = std::max(most_gathered_bytes_, gathered_bytes_);
}

void ShardedWeights::finish(Block& block) {
  for (Shard& shard : block) {
    shard.gather.wait();
    shard.parameter->weight = shard.gathered.narrow(0, 0, shard.parameter->global_shape.front());
  }
}

void ShardedWeights::free(Block& block) {
  for (Shard& shard : block) {
    gathered_bytes_ -= static_cast<int64_t>(shard.gathered.nbytes());
    shard.parameter->weight = at::Tensor();
    shard.gathered = at::Tensor();
  }
}

BlockHooks ShardedWeights::hooks() {
  return {.before =
              [this](size_t i) {
                begin(blocks_[i]);
                finish(blocks_[i]);
                if (i + 1 < blocks_.size()) begin(blocks_[i + 1]);
              },
          .after = [this](size_t i) { free(blocks_[i]); }};
}

int64_t ShardedWeights::held_bytes() const {
  int64_t bytes = 0;
  for (const Block& block : blocks_) {
    for (const Shard& shard : block) bytes += static_cast<int64_t>(shard.held.nbytes());
  }
  return bytes;
}

}  // namespace titan::encoders

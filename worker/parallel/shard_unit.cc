#include "worker/parallel/shard_unit.h"

#include <algorithm>

namespace titan::parallel {
namespace {

int64_t product(const std::vector<int64_t>& shape, size_t from) {
  int64_t numel = 1;
  for (size_t dim = from; dim < shape.size(); ++dim) numel *= shape[dim];
  return numel;
}

ShardedParameter place(nn::Parameter& parameter, int rank, int world, int64_t offset) {
  ShardedParameter placed;
  placed.parameter = &parameter;
  placed.total_rows = parameter.shape.empty() ? 1 : parameter.shape[0];
  placed.row_numel = product(parameter.shape, 1);
  placed.chunk_rows = (placed.total_rows + world - 1) / world;
  placed.first_row = std::min(placed.chunk_rows * rank, placed.total_rows);
  placed.rows = std::min(placed.chunk_rows * (rank + 1), placed.total_rows) - placed.first_row;
  placed.offset = offset;
  return placed;
}

// The rows of `placed` as a view of a flat shard.
at::Tensor rows_of(const at::Tensor& flat, const ShardedParameter& placed) {
  std::vector<int64_t> shape = placed.parameter->shape;
  if (!shape.empty()) shape[0] = placed.rows;
  return flat.narrow(0, placed.offset, placed.rows * placed.row_numel).view(shape);
}

// Copies between a full parameter [total_rows, row_numel] and its padded pieces [world, shard]; `to_pieces` tells the
// way.
void copy_pieces(const at::Tensor& full, const at::Tensor& pieces, const ShardedParameter& placed, bool to_pieces) {
  const int64_t world = pieces.size(0);
  const auto copy = [to_pieces](at::Tensor whole, at::Tensor piece) {
    if (to_pieces) {
      piece.copy_(whole);
    } else {
      whole.copy_(piece);
    }
  };
  const int64_t piece_numel = placed.chunk_rows * placed.row_numel;
  if (placed.total_rows == world * placed.chunk_rows) {
    copy(full.view({world, piece_numel}), pieces.narrow(1, placed.offset, piece_numel));
    return;
  }
  for (int64_t rank = 0; rank < world; ++rank) {
    const int64_t first = std::min(rank * placed.chunk_rows, placed.total_rows);
    const int64_t rows = std::min(first + placed.chunk_rows, placed.total_rows) - first;
    if (rows == 0) break;
    copy(full.narrow(0, first, rows).view({-1}), pieces[rank].narrow(0, placed.offset, rows * placed.row_numel));
  }
}

}  // namespace

ShardUnit::ShardUnit(std::string name, std::vector<nn::Parameter*> parameters, const ShardUnitOptions& options)
    : name_(std::move(name)), options_(options), world_(options.shard_group->size()) {
  int64_t shard_numel = 0;
  for (nn::Parameter* parameter : parameters) {
    parameters_.push_back(place(*parameter, options.shard_group->rank(), world_, shard_numel));
    const ShardedParameter& placed = parameters_.back();
    shard_numel += placed.chunk_rows * placed.row_numel;
    padded_ |= placed.total_rows != world_ * placed.chunk_rows;
  }
  const auto on_device = at::TensorOptions().device(options.device->torch_device());
  const Precision& precision = options_.precision;
  master_ = at::zeros({shard_numel}, on_device.dtype(precision.master));  // The padding stays zero.
  gradients_ = at::zeros({shard_numel}, on_device.dtype(precision.master));
  aliased_ = world_ == 1 && precision.param == precision.master;
  direct_ = world_ > 1 && parameters_.size() == 1;
  for (ShardedParameter& placed : parameters_) {
    placed.value = rows_of(master_, placed);
    placed.grad = rows_of(gradients_, placed);
    nn::Parameter& parameter = *placed.parameter;
    if (aliased_) {
      parameter.weight = placed.value.variable_data().set_requires_grad(true);
      continue;
    }
    parameter.weight = at::empty(parameter.shape, on_device.dtype(precision.param)).set_requires_grad(true);
    options_.device->resize_storage(*parameter.weight.storage().unsafeGetStorageImpl(), 0);
  }
  unsharded_ = aliased_;
}

void ShardUnit::allocate_weight(nn::Parameter& parameter, int64_t numel) {
  const int64_t bytes = numel * static_cast<int64_t>(parameter.weight.element_size());
  options_.device->resize_storage(*parameter.weight.storage().unsafeGetStorageImpl(), bytes);
}

void ShardUnit::begin_unshard() {
  if (unsharded_ || gathered_.defined()) return;
  at::NoGradGuard no_grad;
  const at::ScalarType type = options_.precision.param;
  if (direct_) {
    // Only the last ranks' pieces are short, so that the weight is the start of the gathered pieces.
    const int64_t shard = master_.numel();
    nn::Parameter& parameter = *parameters_[0].parameter;
    allocate_weight(parameter, world_ * shard);
    gathered_ = parameter.weight.variable_data().as_strided({world_, shard}, {shard, 1});
  } else if (world_ > 1) {
    gathered_ = at::empty({world_, master_.numel()}, master_.options().dtype(type));
  } else {
    gathered_ = master_.view({1, -1});  // copy_out converts.
    return;
  }
  gather_ = options_.shard_group->all_gather(gathered_, master_.to(type));
}

void ShardUnit::unshard() {
  if (unsharded_) return;
  begin_unshard();
  gather_.wait();
  if (!direct_) copy_out(gathered_);
  gathered_.reset();
  unsharded_ = true;
}

void ShardUnit::copy_out(const at::Tensor& gathered) {
  at::NoGradGuard no_grad;
  for (ShardedParameter& placed : parameters_) {
    allocate_weight(*placed.parameter, placed.total_rows * placed.row_numel);
    // variable_data() shares the storage but not the version counter: graphs that saved the weight stay valid.
    const at::Tensor full = placed.parameter->weight.variable_data().view({placed.total_rows, placed.row_numel});
    copy_pieces(full, gathered, placed, /*to_pieces=*/false);
  }
}

void ShardUnit::reshard() {
  if (!unsharded_ || aliased_) return;
  for (ShardedParameter& placed : parameters_) {
    options_.device->resize_storage(*placed.parameter->weight.storage().unsafeGetStorageImpl(), 0);
  }
  unsharded_ = false;
}

void ShardUnit::begin_reduce(std::vector<at::Tensor> gradients, bool last) {
  TORCH_CHECK(gradients.size() == parameters_.size(), name_, ": ", gradients.size(), " gradients for ",
              parameters_.size(), " parameters");
  TORCH_CHECK(!reduced_.defined(), name_, ": the previous reduction is still in flight");
  at::NoGradGuard no_grad;
  last_ = last;
  if (world_ == 1) {
    accumulate_local(gradients);
    return;
  }
  const auto options = master_.options().dtype(options_.precision.reduce);
  const bool all_written =
      !padded_ && std::all_of(gradients.begin(), gradients.end(), [](const at::Tensor& one) { return one.defined(); });
  pieces_ = all_written ? at::empty({world_, master_.numel()}, options) : at::zeros({world_, master_.numel()}, options);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const ShardedParameter& placed = parameters_[i];
    const at::Tensor full = gradients[i].contiguous().view({placed.total_rows, placed.row_numel});
    copy_pieces(full, pieces_, placed, /*to_pieces=*/true);
    gradients[i].reset();
  }
  reduced_ = at::empty({master_.numel()}, options);
  reduce_ = options_.shard_group->reduce_scatter(reduced_, pieces_);
}

void ShardUnit::accumulate_local(const std::vector<at::Tensor>& gradients) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    ShardedParameter& placed = parameters_[i];
    if (gradients[i].defined() && has_gradients_) {
      placed.grad.add_(gradients[i]);
    } else if (gradients[i].defined()) {
      placed.grad.copy_(gradients[i]);
    } else if (!has_gradients_) {
      placed.grad.zero_();
    }
  }
  has_gradients_ = true;
}

void ShardUnit::accumulate(const at::Tensor& reduced) {
  if (has_gradients_) {
    gradients_.add_(reduced);
  } else {
    gradients_.copy_(reduced);
  }
  has_gradients_ = true;
}

void ShardUnit::finish_reduce() {
  at::NoGradGuard no_grad;
  if (reduced_.defined()) {
    reduce_.wait();
    // The backend may hold its reference a little longer: the memory must not wait for it.
    options_.device->resize_storage(*pieces_.storage().unsafeGetStorageImpl(), 0);
    pieces_.reset();
    accumulate(reduced_);
    reduced_.reset();
  }
  if (!last_ || options_.replicate_group == nullptr || options_.replicate_group->size() == 1) return;
  last_ = false;
  replicated_ = gradients_.to(options_.precision.reduce);  // The gradient shard itself when the types agree.
  replicate_ = options_.replicate_group->all_reduce(replicated_);
}

void ShardUnit::finish_gradients() {
  finish_reduce();
  if (!replicated_.defined()) return;
  replicate_.wait();
  if (!replicated_.is_same(gradients_)) gradients_.copy_(replicated_);
  replicated_.reset();
}

int64_t ShardUnit::gather_bytes() const {
  return world_ * master_.numel() * static_cast<int64_t>(c10::elementSize(options_.precision.param));
}

int64_t ShardUnit::reduce_bytes() const {
  return world_ * master_.numel() * static_cast<int64_t>(c10::elementSize(options_.precision.reduce));
}

}  // namespace titan::parallel

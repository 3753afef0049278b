#include "worker/rank/parallel/shard_unit.h"

#include <algorithm>
#include <utility>

namespace titan::parallel {
namespace {

int64_t product(const std::vector<int64_t>& shape, size_t from) {
  int64_t numel = 1;
  for (size_t dim = from; dim < shape.size(); ++dim) numel *= shape[dim];
  return numel;
}

int64_t product_before(const std::vector<int64_t>& shape, int64_t dim) {
  return product(std::vector<int64_t>(shape.begin(), shape.begin() + dim), 0);
}

ShardedParameter place_parameter(nn::Parameter& parameter, int64_t dim, int rank, int world, int64_t offset) {
  const std::vector<int64_t> shape = stored_shape(parameter);
  ShardedParameter placed;
  placed.parameter = &parameter;
  placed.dim = dim;
  placed.total_rows = shape.empty() ? 1 : shape[dim];
  placed.row_numel = placed.total_rows == 0 ? 0 : product(shape, 0) / placed.total_rows;
  placed.chunk_rows = (placed.total_rows + world - 1) / world;
  placed.first_row = std::min(placed.chunk_rows * rank, placed.total_rows);
  placed.rows = std::min(placed.chunk_rows * (rank + 1), placed.total_rows) - placed.first_row;
  placed.offset = offset;
  return placed;
}

// Returns the rows of `placed` as a view of a flat shard.
at::Tensor rows_of(const at::Tensor& flat, const ShardedParameter& placed) {
  std::vector<int64_t> shape = stored_shape(*placed.parameter);
  if (!shape.empty()) shape[placed.dim] = placed.rows;
  return flat.narrow(0, placed.offset, placed.rows * placed.row_numel).view(shape);
}

// Copies between a full parameter and its padded pieces [world, shard], in the direction given by `to_pieces`.
void copy_pieces(const at::Tensor& full, const at::Tensor& pieces, const ShardedParameter& placed, bool to_pieces) {
  const int64_t world = pieces.size(0);
  const int64_t outer = placed.dim == 0 ? 1 : product_before(placed.parameter->shape, placed.dim);
  const int64_t inner = placed.row_numel / outer;
  const auto copy = [to_pieces](const at::Tensor& whole, const at::Tensor& piece) {
    if (to_pieces) {
      piece.copy_(whole);
    } else {
      whole.copy_(piece);
    }
  };
  if (placed.total_rows == world * placed.chunk_rows) {
    const int64_t piece_numel = placed.chunk_rows * placed.row_numel;
    // [world, outer, chunk * inner] on both sides.
    copy(full.view({outer, world, placed.chunk_rows * inner}).transpose(0, 1),
         pieces.narrow(1, placed.offset, piece_numel).unflatten(1, {outer, placed.chunk_rows * inner}));
    return;
  }
  const at::Tensor rows_inside = full.view({outer, placed.total_rows, inner});
  for (int64_t rank = 0; rank < world; ++rank) {
    const int64_t first = std::min(rank * placed.chunk_rows, placed.total_rows);
    const int64_t rows = std::min(first + placed.chunk_rows, placed.total_rows) - first;
    if (rows == 0) break;
    copy(rows_inside.narrow(1, first, rows),
         pieces[rank].narrow(0, placed.offset, rows * placed.row_numel).view({outer, rows, inner}));
  }
}

}  // namespace

std::vector<int64_t> ShardedParameter::global_offset() const {
  std::vector<int64_t> start = parameter->offset;
  if (!start.empty()) start[dim] += first_row;
  return start;
}

std::vector<int64_t> ShardedParameter::shape() const {
  std::vector<int64_t> piece = parameter->shape;
  if (!piece.empty()) piece[dim] = rows;
  return piece;
}

at::Tensor ShardedParameter::piece_of(at::Tensor whole) const {
  const std::vector<int64_t> start = global_offset(), sizes = shape();
  for (size_t d = 0; d < start.size(); ++d) whole = whole.narrow(static_cast<int64_t>(d), start[d], sizes[d]);
  return whole;
}

std::vector<int64_t> stored_shape(const nn::Parameter& parameter) {
  if (parameter.packed_row == 0) return parameter.shape;
  return {parameter.shape.front(), parameter.packed_row};
}

ShardUnit::ShardUnit(std::string name, std::vector<nn::Parameter*> parameters, const ShardUnitOptions& options)
    : name_(std::move(name)), options_(options), world_(options.shard_group->size()) {
  TORCH_CHECK(std::all_of(parameters.begin(), parameters.end(),
                          [&](const nn::Parameter* one) {
                            return one->frozen == parameters.front()->frozen &&
                                   (one->packed_row > 0) == (parameters.front()->packed_row > 0);
                          }),
              name_, ": trained, frozen or packed parameters are mixed in one unit");
  place(std::move(parameters));
  const auto on_device = at::TensorOptions().device(options.device->torch_device());
  const Precision& precision = options_.precision;
  aliased_ = world_ == 1 && precision.param == precision.master && !options_.offload && gathers_numbers();
  direct_ = world_ > 1 && parameters_.size() == 1 && options_.dim == 0;
  rounds_once_ = c10::elementSize(precision.reduce) > c10::elementSize(precision.master);
  for (ShardedParameter& placed : parameters_) {
    placed.value = rows_of(master_, placed);
    if (!frozen()) placed.grad = rows_of(gradients_, placed);
    nn::Parameter& parameter = *placed.parameter;
    if (aliased_) {
      parameter.weight = placed.value.variable_data().set_requires_grad(!frozen());
      continue;
    }
    const auto without_memory = [&](at::ScalarType type) {
      at::Tensor tensor = at::empty(stored_shape(parameter), on_device.dtype(type));
      options_.device->resize_storage(*tensor.storage().unsafeGetStorageImpl(), 0);
      return tensor;
    };
    parameter.weight = without_memory(precision.param).set_requires_grad(!frozen());
    if (!gathers_numbers()) parameter.arrived.values = without_memory(gather_dtype());
  }
  unsharded_ = aliased_;
}

// Lays out the flat shard. kPartial parameters come first, so that one all-reduce sums them.
void ShardUnit::place(std::vector<nn::Parameter*> parameters) {
  const auto is_partial = [](const nn::Parameter& one) {
    return one.on_tensor_axis == nn::TensorAxisPlacement::kPartial;
  };
  parameters_.resize(parameters.size());
  int64_t shard_numel = 0;
  for (const bool partial : {true, false}) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (is_partial(*parameters[i]) != partial) continue;
      parameters_[i] = place_parameter(*parameters[i], options_.dim, options_.shard_group->rank(), world_, shard_numel);
      const ShardedParameter& placed = parameters_[i];
      shard_numel += placed.chunk_rows * placed.row_numel;
      padded_ |= placed.total_rows != world_ * placed.chunk_rows;
    }
    if (partial) partial_numel_ = shard_numel;
  }
  if (options_.tensor_group == nullptr || options_.tensor_group->size() == 1) partial_numel_ = 0;
  const bool tensor_leader = options_.tensor_group == nullptr || options_.tensor_group->rank() == 0;
  const bool first_replica = options_.replicate_group == nullptr || options_.replicate_group->rank() == 0;
  for (ShardedParameter& placed : parameters_) {
    const bool split = placed.parameter->on_tensor_axis == nn::TensorAxisPlacement::kShard;
    placed.leads = split || tensor_leader;
    placed.primary = placed.leads && first_replica;
  }
  auto options = at::TensorOptions().device(on_device()).dtype(options_.precision.master);
  // An accelerator copies page-locked memory without the host's help.
  if (options_.offload) options = options.device(at::kCPU).pinned_memory(on_device().is_cuda());
  master_ = at::zeros({shard_numel}, options);  // The padding stays zero.
  if (!frozen()) gradients_ = at::zeros({shard_numel}, options);
}

size_t ShardUnit::index_of(const nn::Parameter& parameter) const {
  const auto found = std::find_if(parameters_.begin(), parameters_.end(),
                                  [&](const ShardedParameter& placed) { return placed.parameter == &parameter; });
  return static_cast<size_t>(found - parameters_.begin());
}

// variable_data() shares the storage but not the version counter, so graphs that saved the weight stay valid.
at::Tensor ShardUnit::destination(const nn::Parameter& parameter) const {
  return gathers_numbers() ? parameter.weight.variable_data() : parameter.arrived.values;
}

void ShardUnit::allocate_weight(nn::Parameter& parameter, int64_t numel) {
  const at::Tensor weight = destination(parameter);
  c10::StorageImpl& storage = *weight.storage().unsafeGetStorageImpl();
  if (slot_ != nullptr) return slot_->lend(index_of(parameter), storage);
  options_.device->resize_storage(storage, numel * static_cast<int64_t>(weight.element_size()));
}

void ShardUnit::free_weight(nn::Parameter& parameter) {
  const at::Tensor weight = destination(parameter);
  c10::StorageImpl& storage = *weight.storage().unsafeGetStorageImpl();
  if (slot_ != nullptr) return slot_->take_back(index_of(parameter), storage);
  options_.device->resize_storage(storage, 0);
}

std::vector<int64_t> ShardUnit::weight_bytes() const {
  std::vector<int64_t> all;
  if (aliased_) return all;
  for (const ShardedParameter& placed : parameters_) {
    const int64_t numel = direct_ ? world_ * master_.numel() : placed.total_rows * placed.row_numel;
    all.push_back(numel * static_cast<int64_t>(c10::elementSize(gather_dtype())));
  }
  return all;
}

void ShardUnit::begin_unshard() {
  if (unsharded_ || gathered_.defined()) return;
  at::NoGradGuard no_grad;
  const int64_t shard = master_.numel();
  if (direct_) {
    // Only the last ranks' pieces are short, so the weight is the start of the gathered pieces.
    nn::Parameter& parameter = *parameters_[0].parameter;
    allocate_weight(parameter, world_ * shard);
    gathered_ = destination(parameter).as_strided({world_, shard}, {shard, 1});
  } else if (world_ == 1 && gathers_numbers()) {
    gathered_ = master_on_device().view({1, -1});  // copy_out() converts.
    return;
  } else {
    gathered_ = at::empty({world_, shard}, at::TensorOptions().device(on_device()).dtype(gather_dtype()));
  }
  gather_pieces();
}

// Each rank writes its piece directly into the gathered buffer, so converting the type takes no additional pass over
// memory and no buffer. Eight-bit elements are sent as bytes, which every backend supports.
void ShardUnit::gather_pieces() {
  const int rank = options_.shard_group->rank();
  at::Tensor piece = gathered_[rank];
  recipe().pack(master_on_device(), parameters_, piece);
  if (world_ == 1) return;
  const at::Tensor all = gathered_.element_size() == 1 ? gathered_.view(at::kByte) : gathered_;
  gather_ = options_.shard_group->all_gather(all, all[rank]);
}

// The copy of an offloaded shard may still be in flight when this returns. The optimizer may write to it in host memory
// anyway: it first waits for gradients, which a blocking copy brings back later on the same stream. Conversion happens
// on the device, so that the copy reads the page-locked memory itself.
at::Tensor ShardUnit::master_on_device() const {
  return master_.to(on_device(), master_.scalar_type(), /*non_blocking=*/true);
}

void ShardUnit::unshard() {
  if (unsharded_) return;
  begin_unshard();
  gather_.wait();
  if (!direct_) copy_out(gathered_);
  gathered_.reset();
  if (!gathers_numbers()) receive_scales();
  unsharded_ = true;
}

// With weights in a slot, scales stay in place too, because a graph reads both at fixed addresses.
void ShardUnit::receive_scales() {
  at::NoGradGuard no_grad;
  for (ShardedParameter& placed : parameters_) {
    at::Tensor& scales = placed.parameter->arrived.scales;
    const at::Tensor found = recipe().scales(*placed.parameter);
    if (slot_ == nullptr) {
      scales = found;
    } else if (scales.defined()) {
      scales.copy_(found);
    } else {
      scales = found.clone();
    }
  }
}

void ShardUnit::copy_out(const at::Tensor& gathered) {
  at::NoGradGuard no_grad;
  for (ShardedParameter& placed : parameters_) {
    allocate_weight(*placed.parameter, placed.total_rows * placed.row_numel);
    copy_pieces(destination(*placed.parameter), gathered, placed, /*to_pieces=*/false);
  }
}

void ShardUnit::reshard() {
  if (!unsharded_ || aliased_) return;
  for (ShardedParameter& placed : parameters_) free_weight(*placed.parameter);
  unsharded_ = false;
}

void ShardUnit::add_gradients(std::vector<at::Tensor> gradients) {
  TORCH_CHECK(!frozen() && gradients.size() == parameters_.size(), name_, ": ", gradients.size(), " gradients for ",
              frozen() ? 0 : parameters_.size(), " parameters");
  at::NoGradGuard no_grad;
  if (world_ == 1) {
    accumulate_local(gradients);
    return;
  }
  added_.resize(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!gradients[i].defined()) continue;
    if (added_[i].defined()) {
      added_[i].add_(gradients[i]);
    } else {
      // Sums have the type in which they are reduced. The tensor is reused if its memory has no other user.
      const bool ours = gradients[i].is_contiguous() && gradients[i].storage().use_count() == 1;
      added_[i] = gradients[i].to(options_.precision.reduce, /*non_blocking=*/false, /*copy=*/!ours);
    }
  }
}

void ShardUnit::begin_reduce(std::vector<at::Tensor> gradients, bool last) {
  TORCH_CHECK(!frozen(), name_, ": frozen parameters have no gradients");
  TORCH_CHECK(!reduced_.defined(), name_, ": the previous reduction is still in flight");
  at::NoGradGuard no_grad;
  if (options_.users == 1) last_ = last;
  if (world_ == 1 || options_.users > 1 || !added_.empty()) {
    add_gradients(std::move(gradients));
    gradients = {};
  }
  if (options_.users > 1) {
    if (!last || ++contributions_ < options_.users) return;
    contributions_ = 0;
  }
  last_ = last;
  if (world_ == 1) return;
  if (!added_.empty()) gradients = std::exchange(added_, {});
  TORCH_CHECK(gradients.size() == parameters_.size(), name_, ": ", gradients.size(), " gradients for ",
              parameters_.size(), " parameters");
  const auto options = master_.options().device(options_.device->torch_device()).dtype(options_.precision.reduce);
  const bool all_written =
      !padded_ && std::all_of(gradients.begin(), gradients.end(), [](const at::Tensor& one) { return one.defined(); });
  pieces_ = all_written ? at::empty({world_, master_.numel()}, options) : at::zeros({world_, master_.numel()}, options);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!gradients[i].defined()) continue;
    copy_pieces(gradients[i].contiguous(), pieces_, parameters_[i], /*to_pieces=*/true);
    gradients[i].reset();
  }
  reduced_ = at::empty({master_.numel()}, options);
  reduce_ = options_.shard_group->reduce_scatter(reduced_, pieces_);
}

void ShardUnit::reset_gradients() {
  has_gradients_ = complete_ = false;
  sum_.reset();
}

void ShardUnit::free_gradients() {
  reset_gradients();
  if (!options_.offload) options_.device->resize_storage(*gradients_.storage().unsafeGetStorageImpl(), 0);
}

void ShardUnit::allocate_gradients() {
  c10::StorageImpl& storage = *gradients_.storage().unsafeGetStorageImpl();
  const auto bytes = static_cast<int64_t>(gradients_.nbytes());
  if (static_cast<int64_t>(storage.nbytes()) < bytes) options_.device->resize_storage(storage, bytes);
}

// Opens the sum of gradients that are not yet rounded to the shard's type. Returns whether it already holds some.
bool ShardUnit::open_sum() {
  if (sum_.defined()) return true;
  sum_ = has_gradients_ ? gradients_.to(options_.precision.reduce)
                        : at::empty(gradients_.sizes(), gradients_.options().dtype(options_.precision.reduce));
  return has_gradients_;
}

void ShardUnit::round_sum() {
  if (!sum_.defined()) return;
  allocate_gradients();
  gradients_.copy_(sum_);
  sum_.reset();
  has_gradients_ = true;
}

void ShardUnit::accumulate_local(const std::vector<at::Tensor>& gradients) {
  // The step's only gradients, to which nothing is added, are rounded as they are copied.
  const bool only = last_ && !sum_.defined() && !has_gradients_ && partial_numel_ == 0 && !has_replicas();
  const bool wide = rounds_once_ && !only;
  if (!wide) allocate_gradients();
  const bool adds = wide ? open_sum() : has_gradients_;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor place = wide ? rows_of(sum_, parameters_[i]) : parameters_[i].grad;
    if (gradients[i].defined() && adds) {
      place.add_(gradients[i].to(place.device()));  // Offloaded shards are in host memory.
    } else if (gradients[i].defined()) {
      place.copy_(gradients[i]);
    } else if (!adds) {
      place.zero_();
    }
  }
  has_gradients_ |= !wide;
}

void ShardUnit::accumulate(const at::Tensor& reduced) {
  if (rounds_once_) {
    if (!sum_.defined() && !has_gradients_) {
      sum_ = reduced.to(gradients_.device());  // Shares the memory if it is on the same device.
    } else {
      open_sum();
      sum_.add_(reduced.to(sum_.device()));
    }
    return;
  }
  allocate_gradients();
  if (has_gradients_) {
    gradients_.add_(reduced.to(gradients_.device()));
  } else {
    gradients_.copy_(reduced);
  }
  has_gradients_ = true;
}

void ShardUnit::finish_reduce() {
  at::NoGradGuard no_grad;
  if (reduced_.defined()) {
    reduce_.wait();
    // The backend may hold its reference longer, so free the memory explicitly.
    options_.device->resize_storage(*pieces_.storage().unsafeGetStorageImpl(), 0);
    pieces_.reset();
    accumulate(reduced_);
    reduced_.reset();
  }
  if (!last_) return;
  if (partial_numel_ == 0) return begin_replicate_sum();
  if (partial_.defined()) return;
  // Without a copy it is a view of the sum itself, which stays alive while replicas add to it.
  const bool rounds_now = sum_.defined() && !has_replicas();
  partial_ = sum()
                 .narrow(0, 0, partial_numel_)
                 .to(on_device(), options_.precision.reduce, /*non_blocking=*/false, /*copy=*/rounds_now);
  if (rounds_now) round_sum();
  tensor_sum_ = options_.tensor_group->all_reduce(partial_);
}

void ShardUnit::finish_tensor_sum() {
  finish_reduce();
  if (!partial_.defined()) return;
  at::NoGradGuard no_grad;
  tensor_sum_.wait();
  at::Tensor place = sum().narrow(0, 0, partial_numel_);
  if (!partial_.is_alias_of(place)) place.copy_(partial_);
  partial_.reset();
  begin_replicate_sum();
}

void ShardUnit::begin_replicate_sum() {
  last_ = false;
  complete_ = true;
  if (!has_replicas()) return round_sum();
  replicated_ = sum().to(on_device(), options_.precision.reduce);  // The sum itself if the types are equal.
  replicate_ = options_.replicate_group->all_reduce(replicated_);
}

void ShardUnit::finish_gradients() {
  finish_tensor_sum();
  if (!replicated_.defined()) return;
  at::NoGradGuard no_grad;
  replicate_.wait();
  if (!replicated_.is_same(gradients_)) {
    sum_.reset();
    allocate_gradients();
    gradients_.copy_(replicated_);
    has_gradients_ = true;
  }
  replicated_.reset();
}

int64_t ShardUnit::gather_bytes() const {
  return world_ * master_.numel() * static_cast<int64_t>(c10::elementSize(gather_dtype()));
}

int64_t ShardUnit::reduce_bytes() const {
  if (frozen()) return 0;
  return world_ * master_.numel() * static_cast<int64_t>(c10::elementSize(options_.precision.reduce));
}

}  // namespace titan::parallel

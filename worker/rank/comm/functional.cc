#include "worker/rank/comm/functional.h"

#include <ATen/WrapDimUtils.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace titan::comm {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Saves the group and the dim for the backward pass, but no forward tensors.
void remember(AutogradContext* context, const Group& group, int64_t dim) {
  context->saved_data["group"] = reinterpret_cast<int64_t>(&group);
  context->saved_data["dim"] = dim;
}
const Group& remembered_group(AutogradContext* context) {
  return *reinterpret_cast<const Group*>(context->saved_data["group"].toInt());
}
int64_t remembered_dim(AutogradContext* context) { return context->saved_data["dim"].toInt(); }

// Joins rank-major pieces [size, ..., n, ...] to one tensor [..., size * n, ...]. A view if all sizes before `dim` are
// 1.
at::Tensor join_pieces(const at::Tensor& pieces, int64_t dim) {
  std::vector<int64_t> shape = pieces[0].sizes().vec();
  shape[dim] *= pieces.size(0);
  return pieces.movedim(0, dim).reshape(shape);
}

at::Tensor gather_now(const at::Tensor& piece, int64_t dim, const Group& group) {
  std::vector<int64_t> shape = piece.sizes().vec();
  shape.insert(shape.begin(), group.size());
  at::Tensor pieces = at::empty(shape, piece.options());
  group.all_gather(pieces, piece.contiguous()).wait();
  return join_pieces(pieces, dim);
}

int64_t piece_size(const at::Tensor& whole, int64_t dim, const Group& group, const char* what) {
  TORCH_CHECK(whole.size(dim) % group.size() == 0, group.name(), " ", what, ": dimension ", dim, " of ", whole.sizes(),
              " is not divisible by ", group.size(), " ranks");
  return whole.size(dim) / group.size();
}

at::Tensor own_piece(const at::Tensor& whole, int64_t dim, const Group& group) {
  const int64_t count = piece_size(whole, dim, group, "piece");
  return whole.narrow(dim, group.rank() * count, count);
}

at::Tensor reduce_scatter_now(const at::Tensor& partial, int64_t dim, const Group& group) {
  const int64_t count = piece_size(partial, dim, group, "reduce_scatter");
  // Rank-major; copied only if there are elements before `dim`.
  const at::Tensor pieces = partial.unflatten(dim, {group.size(), count}).movedim(dim, 0).contiguous();
  at::Tensor sum = at::empty(pieces[0].sizes(), partial.options());
  group.reduce_scatter(sum, pieces).wait();
  return sum;
}

at::Tensor all_reduce_now(at::Tensor own, const Group& group) {
  group.all_reduce(own).wait();
  return own;
}

// Returns a gradient that may be overwritten: the gradient itself if nothing else refers to it, otherwise a copy.
// `gradients` is the autograd engine's list, so a gradient that was made for this node has one reference.
at::Tensor take_gradient(variable_list& gradients) {
  at::Tensor gradient = std::move(gradients[0]);
  const bool alone = gradient.use_count() == 1 && gradient.storage().use_count() == 1;
  return alone && gradient.is_contiguous() ? gradient : gradient.clone(at::MemoryFormat::Contiguous);
}

struct Gather : torch::autograd::Function<Gather> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& piece, int64_t dim, const Group* group) {
    remember(context, *group, dim);
    return gather_now(piece, dim, *group);
  }
  static variable_list backward(AutogradContext* context, variable_list& gradients) {
    return {reduce_scatter_now(gradients[0], remembered_dim(context), remembered_group(context)), {}, {}};
  }
};

struct GatherAlike : torch::autograd::Function<GatherAlike> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& piece, int64_t dim, const Group* group) {
    remember(context, *group, dim);
    return gather_now(piece, dim, *group);
  }
  static variable_list backward(AutogradContext* context, variable_list& gradients) {
    return {own_piece(gradients[0], remembered_dim(context), remembered_group(context)), {}, {}};
  }
};

struct ReduceScatter : torch::autograd::Function<ReduceScatter> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& partial, int64_t dim, const Group* group) {
    remember(context, *group, dim);
    return reduce_scatter_now(partial, dim, *group);
  }
  static variable_list backward(AutogradContext* context, variable_list& gradients) {
    return {gather_now(gradients[0], remembered_dim(context), remembered_group(context)), {}, {}};
  }
};

struct AllReduce : torch::autograd::Function<AllReduce> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& partial, const Group* group) {
    return all_reduce_now(partial.clone(at::MemoryFormat::Contiguous), *group);
  }
  static variable_list backward(AutogradContext*, variable_list& gradients) { return {gradients[0], {}}; }
};

struct FanOut : torch::autograd::Function<FanOut> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& whole, const Group* group) {
    remember(context, *group, 0);
    return whole;
  }
  static variable_list backward(AutogradContext* context, variable_list& gradients) {
    return {all_reduce_now(take_gradient(gradients), remembered_group(context)), {}};
  }
};

struct TakePiece : torch::autograd::Function<TakePiece> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& whole, int64_t dim, const Group* group) {
    remember(context, *group, dim);
    return own_piece(whole, dim, *group);
  }
  static variable_list backward(AutogradContext* context, variable_list& gradients) {
    return {gather_now(gradients[0], remembered_dim(context), remembered_group(context)), {}, {}};
  }
};

}  // namespace

at::Tensor gather(const at::Tensor& piece, int64_t dim, const Group& group) {
  if (group.size() == 1) return piece;
  return Gather::apply(piece, at::maybe_wrap_dim(dim, piece.dim()), &group);
}

at::Tensor gather_alike(const at::Tensor& piece, int64_t dim, const Group& group) {
  if (group.size() == 1) return piece;
  return GatherAlike::apply(piece, at::maybe_wrap_dim(dim, piece.dim()), &group);
}

at::Tensor reduce_scatter(const at::Tensor& partial, int64_t dim, const Group& group) {
  if (group.size() == 1) return partial;
  return ReduceScatter::apply(partial, at::maybe_wrap_dim(dim, partial.dim()), &group);
}

at::Tensor all_reduce(const at::Tensor& partial, const Group& group) {
  if (group.size() == 1) return partial;
  return AllReduce::apply(partial, &group);
}

at::Tensor fan_out(const at::Tensor& whole, const Group& group) {
  if (group.size() == 1) return whole;
  return FanOut::apply(whole, &group);
}

at::Tensor take_piece(const at::Tensor& whole, int64_t dim, const Group& group) {
  if (group.size() == 1) return whole;
  return TakePiece::apply(whole, at::maybe_wrap_dim(dim, whole.dim()), &group);
}

}  // namespace titan::comm

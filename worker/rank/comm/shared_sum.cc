#include "worker/rank/comm/shared_sum.h"

namespace titan::comm {
namespace {

using Reduction = c10d::ReduceOp::RedOpType;

at::Tensor view(const std::byte* memory, int64_t count, at::ScalarType type) {
  return at::from_blob(const_cast<std::byte*>(memory), {count}, at::TensorOptions(type));
}

void combine_two(at::Tensor& out, const at::Tensor& one, const at::Tensor& other, Reduction operation) {
  switch (operation) {
    case c10d::ReduceOp::MAX:
      at::maximum_out(out, one, other);
      break;
    case c10d::ReduceOp::MIN:
      at::minimum_out(out, one, other);
      break;
    default:
      at::add_out(out, one, other);
  }
}

}  // namespace

bool can_combine(Reduction operation, at::ScalarType type) {
  switch (operation) {
    case c10d::ReduceOp::SUM:
      return c10::isFloatingType(type) || c10::isIntegralType(type, /*includeBool=*/false);
    case c10d::ReduceOp::MAX:
    case c10d::ReduceOp::MIN:
      return type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf ||
             c10::isIntegralType(type, /*includeBool=*/false);
    default:
      return false;
  }
}

void combine(const std::vector<const std::byte*>& parts, std::byte* out, int64_t count, at::ScalarType type,
             Reduction operation) {
  if (count == 0) return;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto part = [&](size_t index) { return view(parts[index], count, type); };
  const size_t last = parts.size() - 1;
  at::Tensor result = view(out, count, type);
  if (last == 1) {
    combine_two(result, part(0), part(1), operation);
    return;
  }
  // Intermediate sums need separate memory, because `out` may be a part that is still to be added.
  at::Tensor between = at::empty({count}, type);
  combine_two(between, part(0), part(1), operation);
  for (size_t index = 2; index < last; ++index) combine_two(between, between, part(index), operation);
  combine_two(result, between, part(last), operation);
}

}  // namespace titan::comm

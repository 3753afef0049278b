#include "worker/optim/newton_schulz.h"

#include "worker/nn/products.h"

namespace titan::optim {
namespace {

constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr double kLeastNorm = 1e-7;

// Each matrix over its norm, which is summed in fp32 at least.
at::Tensor normalized(const at::Tensor& x) {
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor norm = at::linalg_vector_norm(x, 2, at::IntArrayRef({1, 2}), /*keepdim=*/true, wide);
  return x.div(norm.clamp_min_(kLeastNorm).to(x.scalar_type()));
}

}  // namespace

at::Tensor newton_schulz(at::Tensor matrices, int steps) {
  const int64_t n = matrices.size(0);
  const bool tall = matrices.size(1) > matrices.size(2);
  at::Tensor x = normalized(tall ? matrices.transpose(1, 2).contiguous() : matrices);
  matrices.reset();
  const int64_t rows = x.size(1), columns = x.size(2);
  const nn::RowGroups groups = nn::group_rows(std::vector<int64_t>(n, rows), x);
  for (int step = 0; step < steps; ++step) {
    const at::Tensor a = nn::grouped_times_transposed(x.view({n * rows, columns}), x, groups);  // [n rows, rows]
    const at::Tensor square = nn::grouped_times(a, a.view({n, rows, rows}), groups);
    const at::Tensor polynomial = at::mul(a, kB).add_(square, kC);
    const at::Tensor turned = nn::grouped_times(polynomial, x, groups);
    x.mul_(kA).add_(turned.view_as(x));
  }
  return tall ? x.transpose(1, 2).contiguous() : x;
}

}  // namespace titan::optim

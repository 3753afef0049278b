#include "worker/rank/optim/newton_schulz.h"

#include <cmath>

#include "worker/rank/nn/matmul.h"

namespace titan::optim {
namespace {

constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
const double kGrown = std::pow(kC, 0.25);
constexpr double kMinNorm = 1e-7;

// Divides each matrix by its norm, which is summed at least in fp32, and multiplies it by c^(1/4). Then A A contains
// the factor c, and each of an iteration's two sums is one operation, rounded once.
at::Tensor normalized(const at::Tensor& x) {
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor norm = at::linalg_vector_norm(x, 2, at::IntArrayRef({1, 2}), /*keepdim=*/true, wide);
  return x.mul(norm.clamp_min_(kMinNorm).reciprocal_().mul_(kGrown)).to(x.scalar_type());
}

// Multiplies each matrix of one tensor by the matrix at the same index of another.
class Products {
 public:
  explicit Products(const at::Tensor& x)
      : n_(x.size(0)),
        rows_(x.size(1)),
        groups_(nn::group_rows(std::vector<int64_t>(x.size(0), x.size(1)), as_rows(x))) {}

  at::Tensor matmul_nt(const at::Tensor& x, const at::Tensor& y) const {
    if (n_ == 1) return nn::matmul_nt(x, y[0]);
    return nn::grouped_matmul_nt(as_rows(x), y, groups_).view({n_, rows_, y.size(1)});
  }
  at::Tensor times(const at::Tensor& x, const at::Tensor& y) const {
    if (n_ == 1) return nn::matmul_nn(x, y[0]);
    return nn::grouped_matmul_nn(as_rows(x), y, groups_).view({n_, rows_, y.size(2)});
  }

 private:
  at::Tensor as_rows(const at::Tensor& x) const { return x.view({n_ * rows_, x.size(2)}); }

  const int64_t n_, rows_;
  const nn::RowGroups groups_;
};

}  // namespace

at::Tensor newton_schulz(at::Tensor matrices, int steps) {
  const bool tall = matrices.size(1) > matrices.size(2);
  at::Tensor x = normalized(tall ? matrices.transpose(1, 2).contiguous() : matrices);
  matrices.reset();
  const Products products(x);
  for (int step = 0; step < steps; ++step) {
    const at::Tensor a = products.matmul_nt(x, x);
    const at::Tensor polynomial = products.times(a, a).add_(a, kB / (kGrown * kGrown));
    x = products.times(polynomial, x).add_(x, kA);
  }
  x.mul_(1 / kGrown);
  return tall ? x.transpose(1, 2).contiguous() : x;
}

}  // namespace titan::optim

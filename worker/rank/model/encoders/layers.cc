#include "worker/rank/model/encoders/layers.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <utility>
#include <vector>

namespace titan::encoders {
namespace {

constexpr nn::Init kOnes{.kind = nn::Init::Kind::kOnes};
constexpr nn::Init kZeros{.kind = nn::Init::Kind::kZeros};

}  // namespace

at::Tensor activate(Activation activation, const at::Tensor& x) {
  switch (activation) {
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kSilu:
      return at::silu(x);
    case Activation::kQuickGelu:
      return x * at::sigmoid(1.702 * x);
  }
  TORCH_CHECK(false, "unknown activation ", static_cast<int>(activation));
}

nn::Declare frozen(nn::Declare declare) {
  return [declare = std::move(declare)](std::string fqn, std::vector<int64_t> shape, nn::Init init) -> nn::Parameter& {
    nn::Parameter& parameter = declare(std::move(fqn), std::move(shape), init);
    parameter.frozen = true;
    return parameter;
  };
}

GroupNorm::GroupNorm(const nn::Declare& declare, const std::string& fqn, int64_t channels, int64_t groups, double eps)
    : weight_(&declare(fqn + ".weight", {channels}, kOnes)),
      bias_(&declare(fqn + ".bias", {channels}, kZeros)),
      groups_(groups),
      eps_(eps) {}

at::Tensor GroupNorm::forward(const at::Tensor& input) const {
  return at::group_norm(input, groups_, weight_->weight, bias_->weight, eps_);
}

namespace {

// Both are uniform between -1 / sqrt(inputs of one output) and its opposite.
nn::Init conv_init(int64_t in_channels, int64_t kernel) {
  const double bound = 1 / std::sqrt(static_cast<double>(in_channels * kernel * kernel));
  return {.kind = nn::Init::Kind::kUniform, .lower = -bound, .upper = bound};
}

}  // namespace

Conv2d::Conv2d(const nn::Declare& declare, const std::string& fqn, int64_t in_channels, int64_t out_channels,
               int64_t kernel, int64_t padding, int64_t stride)
    : weight_(&declare(fqn + ".weight", {out_channels, in_channels, kernel, kernel}, conv_init(in_channels, kernel))),
      bias_(&declare(fqn + ".bias", {out_channels}, conv_init(in_channels, kernel))),
      padding_(padding),
      stride_(stride) {}

at::Tensor Conv2d::forward(const at::Tensor& input) const {
  return at::conv2d(input, weight_->weight, bias_->weight, {stride_, stride_}, {padding_, padding_});
}

}  // namespace titan::encoders

#include "worker/rank/trace/flop_counter.h"

// Compiled with NDEBUG like the wheel: RecordFunction::inputs() asserts a flag that only debug builds of LibTorch set.
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <cstring>
#include <memory>
#include <vector>

namespace titan::trace {
namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;

int64_t product(const c10::IValue& left, const c10::IValue& right) {
  return 2 * left.toTensor().numel() * right.toTensor().size(-1);
}

// Returns the FLOPs of an attention with q, k, v of [B, H, T, D] that runs `score_products` products of the size of
// q k^T and `value_products` of the size of the weights' product with v.
int64_t attention(Inputs qkv, int64_t score_products, int64_t value_products) {
  const at::Tensor &q = qkv[0].toTensor(), &k = qkv[1].toTensor(), &v = qkv[2].toTensor();
  const int64_t scores = q.size(0) * q.size(1) * q.size(2) * k.size(2);
  return 2 * scores * (score_products * q.size(3) + value_products * v.size(3));
}

// Returns the FLOPs of a convolution of input [B, C, ...] with weight [out, C / groups, ...].
int64_t convolution(Inputs inputs) {
  const at::Tensor &input = inputs[0].toTensor(), &weight = inputs[1].toTensor();
  const auto of_dim = [&](size_t list, int64_t d) {  // A list of one number is for all dims.
    const std::vector<int64_t> all = inputs[list].toIntVector();
    return all.size() == 1 ? all[0] : all[static_cast<size_t>(d)];
  };
  int64_t places = input.size(0);
  for (int64_t d = 0; d < input.dim() - 2; ++d) {
    const int64_t reach = of_dim(5, d) * (weight.size(d + 2) - 1) + 1;
    places *= (input.size(d + 2) + 2 * of_dim(4, d) - reach) / of_dim(3, d) + 1;
  }
  return 2 * places * weight.numel();
}

}  // namespace

struct FlopCallback {
  static std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& function) {
    auto* counts = static_cast<FlopCounter::Counts*>(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::TEST_INFO));
    if (counts != nullptr) count(*counts, function.name(), function.inputs());
    return nullptr;
  }

  static void count(FlopCounter::Counts& counts, const char* name, Inputs inputs) {
    const auto is = [name](const char* other) { return std::strcmp(name, other) == 0; };
    if (is("aten::mm") || is("aten::bmm")) {
      counts.products += product(inputs[0], inputs[1]);
    } else if (is("aten::addmm") || is("aten::baddbmm")) {
      counts.products += product(inputs[1], inputs[2]);
    } else if (is("aten::convolution")) {
      counts.convolutions += convolution(inputs);
    } else if (is("aten::_scaled_dot_product_flash_attention_for_cpu")) {
      counts.attentions += attention(inputs, 1, 1);
    } else if (is("aten::_scaled_dot_product_flash_attention_for_cpu_backward")) {
      // The inputs of the backward pass begin with the gradient. It computes the scores again, the gradients of q and
      // k, and the gradients of the weights and of v.
      counts.attentions += attention(inputs.slice(1), 3, 2);
    }
  }
};

// The callback belongs to the counted thread only: a callback makes a thread box the inputs of every operator, which
// costs as much as a small operator.
FlopCounter::FlopCounter()
    : callback_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(&FlopCallback::enter).needsInputs(true).scopes({at::RecordScope::FUNCTION}))) {}

FlopCounter::~FlopCounter() { at::removeCallback(callback_); }

}  // namespace titan::trace

// The CUDA kernels of attention (float32: memory-efficient, bfloat16: flash, float64: plain) against softmax with its
// scores written down, in float64 on the CPU.

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/worker/nn/plain_attention.h"
#include "worker/comm/device.h"
#include "worker/nn/attention_core.h"

namespace titan::runtime {
namespace {

using Results = std::vector<at::Tensor>;  // Output, then the gradients of q, k, v and sinks; float64 on the CPU.

template <typename Attention>
Results run(nn::AttentionInput input, const at::TensorOptions& where, const at::Tensor& grad_out,
            Attention&& attention) {
  Results leaves;
  for (at::Tensor* tensor : {&input.q, &input.k, &input.v, &input.sinks}) {
    *tensor = tensor->to(where).detach().requires_grad_();
    leaves.push_back(*tensor);
  }
  Results results{attention(input)};
  for (at::Tensor& gradient : torch::autograd::grad({results[0]}, leaves, {grad_out.to(where)})) {
    results.push_back(std::move(gradient));
  }
  for (at::Tensor& result : results) result = result.detach().to(at::kCPU, at::kDouble);
  return results;
}

TEST(GpuAttentionTest, EveryMaskMatchesPlainAttention) {
  auto device = comm::make_device("cuda", 0);
  if (!device.ok()) GTEST_SKIP() << "no GPU: " << device.status().message();
  at::manual_seed(1);
  constexpr int64_t kRows = 2, kTokens = 301, kHeads = 4, kKvHeads = 2;
  const std::pair<at::ScalarType, double> types[] = {{at::kDouble, 1e-12}, {at::kFloat, 2e-5}, {at::kBFloat16, 0.03}};
  const nn::AttentionMask masks[] = {
      {}, {.window = 70}, {.chunk = 64}, {.documents = true}, {.window = 20, .documents = true}};
  for (const auto& [head, v_head] : {std::pair<int64_t, int64_t>{64, 64}, {20, 20}, {48, 32}}) {
    for (const nn::AttentionMask& mask : masks) {
      for (const auto& [type, tolerance] : types) {
        const auto heads = [&, type = type](int64_t count, int64_t size) {
          return at::randn({kRows, kTokens, count, size}, at::kDouble).to(type).transpose(1, 2);
        };
        const nn::AttentionInput input{.q = heads(kHeads, head),
                                       .k = heads(kKvHeads, head),
                                       .v = heads(kKvHeads, v_head),
                                       .scale = 0.15,
                                       .mask = mask,
                                       .sinks = at::randn({kHeads}, at::kDouble).to(type)};
        nn::MicrobatchContext context;
        if (mask.documents) context.documents = testing::random_documents(kRows, kTokens, 0.02);
        const at::Tensor grad_out = heads(kHeads, v_head);
        const Results oracle = run(input, at::TensorOptions(at::kDouble), grad_out, [&](const nn::AttentionInput& in) {
          return testing::plain_attention(in, context.documents);
        });
        const Results ours = run(input, at::TensorOptions((*device)->torch_device()).dtype(type), grad_out,
                                 [&](const nn::AttentionInput& in) { return nn::attend(in, context); });
        for (size_t i = 0; i < ours.size(); ++i) {
          EXPECT_LE((ours[i] - oracle[i]).abs().max().item<double>(),
                    tolerance * (1 + oracle[i].abs().max().item<double>()))
              << "result " << i << " in " << type << ", heads of " << head << " and " << v_head << ", window "
              << mask.window << ", chunk " << mask.chunk << ", documents " << mask.documents;
        }
      }
    }
  }
}

}  // namespace
}  // namespace titan::runtime

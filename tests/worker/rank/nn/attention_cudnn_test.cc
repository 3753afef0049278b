#include <gtest/gtest.h>

#include "tests/worker/rank/nn/attention_case.h"
#include "tests/worker/rank/nn/cudnn_stand_in.h"
#include "worker/rank/nn/attention_fused.h"

// Tests the calls to cuDNN that a GPU gets, and the attention that they compute. On the CPU, operators that materialize
// the scores take the same calls.
namespace titan::nn {
namespace {

using testing::AttentionCase;
using testing::cudnn_called;

at::Tensor attend_by_cudnn(const AttentionInput& input, const MicrobatchContext&) {
  return attend_by(cudnn_plan(input.scale, input.mask.causal), input);
}

AttentionCase without_mask(AttentionCase c) {
  c.mask = {.causal = c.mask.causal};
  return c;
}

TEST(AttentionCudnnTest, WholeRowsTakeOneCallPerPass) {
  at::manual_seed(1);
  titan::testing::Draw pick(1);
  for (int i = 0; i < 60; ++i) {
    const AttentionCase c = without_mask(testing::draw_attention(pick, {4, 8, 12}, {4, 8, 12}));
    cudnn_called = {};
    testing::expect_exact(c, 1e-12, attend_by_cudnn);
    EXPECT_EQ(cudnn_called.forward, 1) << c;
    EXPECT_EQ(cudnn_called.backward, 1) << c;
  }
}

TEST(AttentionCudnnTest, LowPrecisionComesClose) {
  at::manual_seed(2);
  titan::testing::Draw pick(2);
  for (int i = 0; i < 20; ++i) {
    AttentionCase c = without_mask(testing::draw_attention(pick, {24, 32}, {16, 32}));
    c.type = at::kBFloat16;
    testing::expect_exact(c, 0.03, attend_by_cudnn);
  }
}

// LibTorch caches cuDNN's plans by the layout of q, k and v, but the incoming gradient may have any layout.
TEST(AttentionCudnnTest, GradientsOfAnyLayout) {
  at::manual_seed(3);
  const AttentionInput input = testing::input_of({.tokens = 60, .sinks = true});
  const at::Tensor dense = at::randn({2, 2, 60, 8}, at::kDouble);
  const auto run = [&](const at::Tensor& grad_out) {
    return testing::run_attention(input, at::kDouble, grad_out,
                                  [](const AttentionInput& in) { return attend_by_cudnn(in, {}); });
  };
  const auto expected = run(dense);
  for (const at::Tensor& other : {dense.transpose(1, 2).contiguous().transpose(1, 2),
                                  at::cat({dense, dense}, 3).narrow(3, 0, 8), dense.mT().contiguous().mT()}) {
    const auto got = run(other);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].equal(expected[i])) << i;
  }
}

TEST(AttentionCudnnTest, DeclinesTensorsOffTheGpu) {
  EXPECT_FALSE(can_use_cudnn_attention(testing::input_of({.type = at::kBFloat16})));
}

}  // namespace
}  // namespace titan::nn

#include <gtest/gtest.h>

#include "tests/testing/draw.h"
#include "tests/worker/rank/kernels/chosen_kernels.h"
#include "tests/worker/rank/nn/attention_case.h"
#include "worker/rank/nn/attention_core.h"

namespace titan::nn {
namespace {

using Case = testing::AttentionCase;

// Returns each head's largest logit, from materialized scores.
at::Tensor plain_largest(const AttentionInput& input, const at::Tensor& documents) {
  const at::Tensor q = input.q.to(at::kDouble), k = input.k.to(at::kDouble);
  const at::Tensor hidden = testing::visible_keys(input.mask, documents, q.size(2)).unsqueeze(1).logical_not();
  const at::Tensor scores = at::matmul(q, k.repeat_interleave(q.size(1) / k.size(1), 1).transpose(2, 3)) * input.scale;
  return scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()).amax(at::IntArrayRef{0, 2, 3});
}

void expect_largest(const Case& c, double tolerance) {
  AttentionInput input = testing::input_of(c);
  MicrobatchContext context;
  if (c.mask.documents) context.documents = testing::random_documents(c.rows, c.tokens, 0.1);
  const at::Tensor plain = attend(input, context), expected = plain_largest(input, context.documents);
  input.largest = at::full_like(expected, -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(attend(input, context).equal(plain)) << "recording the maximum changed the output: " << c;
  EXPECT_LE((input.largest - expected).abs().max().item<double>(), tolerance) << c;
  // Another batch may raise the maximum, but never lowers it.
  const at::Tensor before = input.largest.clone();
  input.q = input.q * 0.5;
  attend(input, context);
  EXPECT_TRUE(input.largest.ge(before).all().item<bool>()) << c;
}

TEST(LargestLogits, AreExactForEveryMask) {
  at::manual_seed(3);
  titan::testing::Draw pick(3);
  for (int i = 0; i < 40; ++i) expect_largest(testing::draw_attention(pick, {4, 12}, {4, 8}), 1e-13);
}

// Rows are longer than the keys of one tile, and there are enough of them that queries are split.
TEST(LargestLogits, AreExactForLongRows) {
  at::manual_seed(4);
  for (const AttentionMask& mask : {AttentionMask{}, {.window = 1100}, {.window = 30}, {.documents = true}}) {
    expect_largest({.rows = 1, .kv_heads = 1, .sharing = 2, .tokens = 1300, .head = 4, .v_head = 4, .mask = mask},
                   1e-13);
  }
  expect_largest({.rows = 16, .kv_heads = 16, .tokens = 300, .head = 4, .v_head = 4}, 1e-13);
}

// Whichever kernel computes the attention, the products for the logits are in fp32.
TEST(LargestLogits, AreComputedInFp32ForBfloat16) {
  kernels::testing::with_every_choice([] {
    at::manual_seed(5);
    titan::testing::Draw pick(5);
    for (int i = 0; i < 10; ++i) {
      Case c = testing::draw_attention(pick, {8, 64}, {8});
      c.type = at::kBFloat16;
      expect_largest(c, 1e-5);
    }
  });
}

// Recording happens below autograd: the graph is the same as without it.
TEST(LargestLogits, HaveNoGradient) {
  AttentionInput input = testing::input_of({});
  input.q.requires_grad_();
  input.largest = at::zeros({2}, at::kDouble);
  attend(input, {});
  EXPECT_FALSE(input.largest.requires_grad());
  EXPECT_THROW(update_max_logits(input.q, input.k, {}, 1, at::zeros({3}, at::kDouble)), c10::Error);
}

}  // namespace
}  // namespace titan::nn

#include "worker/rank/nn/attention_core.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "tests/testing/draw.h"
#include "tests/worker/rank/kernels/chosen_kernels.h"
#include "tests/worker/rank/nn/attention_case.h"
#include "worker/rank/nn/attention_kernel.h"
#include "worker/rank/nn/attention_pairs.h"
#include "worker/rank/nn/meta_kernels.h"

namespace titan::nn {
namespace {

using Case = testing::AttentionCase;
using Results = testing::AttentionResults;
using testing::draw_attention;
using testing::input_of;
using testing::run_attention;

void expect_exact(const Case& c, double tolerance) { testing::expect_exact(c, tolerance, attend); }

TEST(AttentionCoreTest, EveryMaskMatchesPlainAttention) {
  at::manual_seed(1);
  titan::testing::Draw pick(1);
  for (int i = 0; i < 120; ++i) {
    expect_exact(draw_attention(pick, {4, 12}, {4, 8, 12}), 1e-12);
  }
}

TEST(AttentionCoreTest, LowerPrecisionsComeClose) {
  at::manual_seed(2);
  const AttentionMask masks[] = {
      {}, {.window = 70}, {.chunk = 48}, {.documents = true}, {.window = 20, .documents = true}, {.causal = false}};
  for (const AttentionMask& mask : masks) {
    for (bool sinks : {false, true}) {
      Case c{.sharing = 2, .tokens = 150, .head = 24, .v_head = 16, .mask = mask, .sinks = sinks};
      c.type = at::kFloat;
      expect_exact(c, 3e-6);
      c.type = at::kBFloat16;
      expect_exact(c, 0.03);
    }
  }
}

// In bf16, with and without Titan's own kernels, attention is exact enough under every combination of masks and for
// heads of any size.
TEST(AttentionCoreTest, EveryMaskComesCloseWithEveryKernel) {
  kernels::testing::with_every_choice([] {
    at::manual_seed(7);
    titan::testing::Draw pick(7);
    for (int i = 0; i < 40; ++i) {
      Case c = draw_attention(pick, {4, 12, 33, 64}, {4, 8, 12, 65});
      c.type = at::kBFloat16;
      expect_exact(c, 0.03);
    }
  });
}

// A model with only the plain causal mask gets LibTorch's own bits.
TEST(AttentionCoreTest, PlainCausalHasLibTorchsBits) {
  at::manual_seed(3);
  Case c{.sharing = 2, .tokens = 90, .type = at::kFloat};
  const AttentionInput in = input_of(c);
  const at::Tensor torchs = at::scaled_dot_product_attention(in.q, in.k, in.v, {}, 0.0, true, in.scale, true);
  EXPECT_TRUE(attend(in, {}).equal(torchs));
  AttentionInput wide = in;
  wide.mask = {.window = 90, .chunk = 90, .documents = true};
  MicrobatchContext one_document;
  one_document.documents = at::full({2, 90}, 4, at::kLong);
  EXPECT_TRUE(attend(wide, one_document).equal(torchs)) << "masks that hide nothing";
}

// Capped scores, which are computed by basic operations block by block, match the oracle under every mask.
TEST(AttentionCoreTest, CappedScoresMatchTheOracle) {
  at::manual_seed(21);
  titan::testing::Draw pick(21);
  for (int i = 0; i < 40; ++i) {
    Case c = draw_attention(pick, {4, 8}, {4, 6});
    c.softcap = pick({1, 2}) * 0.7;
    expect_exact(c, 1e-12, attend);
  }
  Case c{.sharing = 2, .tokens = 70, .mask = {.window = 30}, .sinks = true, .type = at::kBFloat16, .softcap = 1.5};
  expect_exact(c, 2e-2, attend);
}

// A model that is not causal gets them too. It cannot have a window, which ends at the query.
TEST(AttentionCoreTest, BidirectionalHasLibTorchsBits) {
  at::manual_seed(8);
  AttentionInput in = input_of({.sharing = 2, .tokens = 90, .mask = {.causal = false}, .type = at::kFloat});
  const at::Tensor torchs = at::scaled_dot_product_attention(in.q, in.k, in.v, {}, 0.0, false, in.scale, true);
  EXPECT_TRUE(attend(in, {}).equal(torchs));
  in.mask.window = 4;
  EXPECT_THROW(attend(in, {}), c10::Error);
}

// The incoming gradient may be an expanded scalar (from a sum), and heads may have strided elements.
TEST(AttentionCoreTest, TakesAnyLayout) {
  at::manual_seed(6);
  const AttentionInput dense = input_of({.tokens = 50, .mask = {.window = 9}});
  AttentionInput apart = dense;
  for (at::Tensor* tensor : {&apart.q, &apart.k, &apart.v}) {
    *tensor = tensor->transpose(2, 3).contiguous().transpose(2, 3);
  }
  const at::Tensor ones = at::ones({2, 2, 50, 8}, at::kDouble), expanded = at::ones({1}, at::kDouble).expand_as(ones);
  const auto attention = [](const AttentionInput& in) { return attend(in, {}); };
  const Results plain = run_attention(dense, at::kDouble, ones, attention),
                odd = run_attention(apart, at::kDouble, expanded, attention);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::allclose(plain[i], odd[i], 1e-12, 1e-12)) << i;
}

// The plain kernel serves float64 on other devices, and dry runs, which need only shapes.
TEST(AttentionCoreTest, PlainKernelMatchesTheFusedOne) {
  at::manual_seed(4);
  const AttentionInput in = input_of({.sharing = 2, .tokens = 30, .v_head = 8});
  const Band band{.first = -6, .last = 0};
  auto fused = make_cpu_attention_kernel(0.3), plain = make_plain_attention_kernel(0.3);
  const BlockOutput one = fused->forward(in.q, in.k, in.v, band), other = plain->forward(in.q, in.k, in.v, band);
  EXPECT_TRUE(at::allclose(one.out, other.out, 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(one.lse, other.lse, 1e-12, 1e-12));
  const at::Tensor grad = at::randn_like(one.out);
  const AttentionBlockGradients a = fused->backward(grad, in.q, in.k, in.v, one, band);
  const AttentionBlockGradients b = plain->backward(grad, in.q, in.k, in.v, one, band);
  EXPECT_TRUE(at::allclose(a.q, b.q, 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(a.k, b.k, 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(a.v, b.v, 1e-12, 1e-12));
}

TEST(AttentionCoreTest, DryRunsHaveShapes) {
  use_meta_kernels();
  const AttentionMask plain, window{.window = 8}, chunk{.chunk = 16}, all{.causal = false};
  for (const auto& [mask, softcap] : std::vector<std::pair<AttentionMask, double>>{{plain, 0},
                                                                                   {window, 0},
                                                                                   {chunk, 0},
                                                                                   {all, 0},
                                                                                   {{.chunk = 16, .causal = false}, 0},
                                                                                   {plain, 2},
                                                                                   {window, 2}}) {
    Case c{.sharing = 2, .tokens = 64, .v_head = 4, .mask = mask, .sinks = true, .softcap = softcap};
    AttentionInput in = input_of(c);
    std::vector<at::Tensor> leaves;
    for (at::Tensor* tensor : {&in.q, &in.k, &in.v, &in.sinks}) {
      *tensor = tensor->to(at::kMeta).requires_grad_();
      leaves.push_back(*tensor);
    }
    const at::Tensor out = attend(in, {});
    EXPECT_EQ(out.sizes(), (std::vector<int64_t>{2, 4, 64, 4}));
    const auto gradients = torch::autograd::grad({out}, leaves, {at::empty_like(out)});
    for (size_t i = 0; i < leaves.size(); ++i) EXPECT_EQ(gradients[i].sizes(), leaves[i].sizes());
  }
}

// Pieces of a pair show each query the same keys as the whole pair.
TEST(AttentionPairsTest, CutPairsShowTheSameKeys) {
  for (const Band band :
       {Band{.first = -6, .last = 0}, Band{.first = -100, .last = 4}, Band{.first = -3, .last = 50}}) {
    const BlockPair whole{.row = 1, .query = 7, .queries = 23, .key = 5, .keys = 19, .band = band};
    for (const int64_t queries : {1, 4, 23, 100}) {
      std::set<std::pair<int64_t, int64_t>> seen;
      const auto add = [](const BlockPair& pair, std::set<std::pair<int64_t, int64_t>>& to) {
        for (int64_t q = 0; q < pair.queries; ++q) {
          const int64_t last = std::min(pair.keys - 1, q + pair.band.last);
          for (int64_t k = std::max<int64_t>(0, q + pair.band.first); k <= last; ++k)
            to.insert({pair.query + q, pair.key + k});
        }
      };
      for (const BlockPair& piece : cut_queries(whole, queries)) {
        EXPECT_EQ(piece.row, 1);
        EXPECT_LE(piece.queries, queries);
        add(piece, seen);
      }
      std::set<std::pair<int64_t, int64_t>> want;
      add(whole, want);
      EXPECT_EQ(seen, want) << "band " << band.first << " to " << band.last << ", " << queries << " queries";
    }
  }
}

// The work under a window grows with the row's length, not with its square.
TEST(AttentionPairsTest, HiddenBlocksAreSkipped) {
  const auto scores = [](const std::vector<BlockPair>& pairs) {
    int64_t sum = 0;
    for (const BlockPair& pair : pairs) sum += pair.queries * pair.keys;
    return sum;
  };
  const int64_t tokens = 4096;
  const std::vector<Segment> row{{0, tokens}};
  for (int64_t window : {16, 128, 512}) {
    const auto pairs = visible_pairs(spans_of({}, 0, tokens), window, row, row);
    EXPECT_LE(scores(pairs), tokens * (window + std::max<int64_t>(64, window / 2))) << "window " << window;
  }
  EXPECT_EQ(scores(visible_pairs(spans_of({}, 256, tokens), 0, row, row)), tokens * 256);
  const at::Tensor documents = at::arange(tokens).div(64, "floor").unsqueeze(0);
  EXPECT_EQ(scores(visible_pairs(spans_of(documents, 0, tokens), 0, row, row)), tokens * 64);
}

TEST(DocumentsTest, EndWithTheirEos) {
  const int64_t eos = 2;
  const at::Tensor tokens = at::tensor({7, 2, 5, 6, 2, 2, 9, 9}, at::kLong).view({1, 8});
  EXPECT_TRUE(number_documents(tokens, eos).equal(at::tensor({0, 0, 1, 1, 1, 2, 3, 3}, at::kLong).view({1, 8})));
}

}  // namespace
}  // namespace titan::nn

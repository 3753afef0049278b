#include <gtest/gtest.h>

#include "tests/worker/rank/nn/attention_case.h"
#include "tests/worker/rank/nn/flash_stand_in.h"
#include "worker/rank/device/device_graphs.h"
#include "worker/rank/nn/attention_fused.h"
#include "worker/rank/nn/attention_kernel.h"

// Tests the calls that a GPU gets for each mask, and the attention that they compute. On the CPU, operators that
// materialize the scores take the same calls.
namespace titan::nn {
namespace {

using testing::AttentionCase;
using testing::flash_called;

at::Tensor attend_by_flash(const AttentionInput& input, const MicrobatchContext& context) {
  return attend_by(flash_plan(input, context), input);
}

TEST(FlashPlanTest, RowsOfOneSpanAreABatch) {
  EXPECT_EQ(plan_flash({.starts = {{0}}, .seq_len = 60}, 0, 3), (FlashCall{.spans = 3, .longest = 60}));
  EXPECT_EQ(plan_flash({.starts = {{0}}, .seq_len = 60}, 7, 3), (FlashCall{.spans = 3, .longest = 60, .left = 6}));
}

TEST(FlashPlanTest, EqualSpansAreABatch) {
  const FlashCall call = plan_flash(spans_of({}, 20, 60), 0, 2);
  EXPECT_EQ(call, (FlashCall{.spans = 6, .longest = 20}));
}

TEST(FlashPlanTest, UnequalSpansArePacked) {
  EXPECT_EQ(plan_flash(spans_of({}, 25, 60), 0, 2),
            (FlashCall{.spans = 6, .longest = 25, .cum_seq = {0, 25, 50, 60, 85, 110, 120}}));
  EXPECT_EQ(plan_flash({.starts = {{0, 4}, {0}}, .seq_len = 6}, 5, 2),
            (FlashCall{.spans = 3, .longest = 6, .cum_seq = {0, 4, 6, 12}, .left = 4}));
}

TEST(FlashPlanTest, WindowThatHidesNothingIsDropped) {
  EXPECT_EQ(plan_flash(spans_of({}, 20, 60), 20, 1).left, -1);
  EXPECT_EQ(plan_flash(spans_of({}, 20, 60), 19, 1).left, 18);
}

TEST(AttentionFlashTest, EveryMaskTakesOneCallPerPass) {
  at::manual_seed(1);
  titan::testing::Draw pick(1);
  for (int i = 0; i < 150; ++i) {
    const AttentionCase c = testing::draw_attention(pick, {4, 8, 12}, {4, 8, 12});
    flash_called = {};
    testing::expect_exact(c, 1e-12, attend_by_flash);
    EXPECT_EQ(flash_called.forward, 1) << c;
    EXPECT_EQ(flash_called.backward, 1) << c;
  }
}

TEST(AttentionFlashTest, LowPrecisionComesClose) {
  at::manual_seed(2);
  titan::testing::Draw pick(2);
  for (int i = 0; i < 40; ++i) {
    AttentionCase c = testing::draw_attention(pick, {24, 32}, {16, 32});
    c.type = at::kBFloat16;
    testing::expect_exact(c, 0.03, attend_by_flash);
  }
}

// Heads may be views: of fused projections, or of rows with more tokens.
TEST(AttentionFlashTest, TakesHeadsOfAnyLayout) {
  at::manual_seed(3);
  for (const int64_t chunk : {0, 20, 25}) {
    const AttentionInput dense = testing::input_of({.tokens = 60, .mask = {.chunk = chunk}, .sinks = true});
    AttentionInput views = dense;
    const at::Tensor fused = at::cat({dense.q, dense.k, dense.v}, 3).transpose(1, 2).contiguous().transpose(1, 2);
    views.q = fused.narrow(3, 0, 8);
    views.k = at::cat({dense.k, dense.k}, 2).narrow(2, 0, 60);
    views.v = dense.v.transpose(2, 3).contiguous().transpose(2, 3);
    EXPECT_TRUE(attend_by_flash(views, {}).equal(attend_by_flash(dense, {}))) << chunk;
  }
}

// If the last chunk is shorter, the device computes the same ends as the host.
TEST(AttentionFlashTest, ChunkEndsAreComputedOnTheDevice) {
  titan::testing::Draw pick(4);
  for (int i = 0; i < 20; ++i) {
    const AttentionCase c{.rows = pick({1, 2, 5}), .tokens = pick({30, 61, 100}), .mask = {.chunk = pick({7, 29, 60})}};
    const device::CaptureGuard none_is_read;
    testing::expect_exact(c, 1e-12, attend_by_flash);
  }
}

class DocumentsOfLayersTest : public ::testing::Test {
 protected:
  DocumentsOfLayersTest() {
    at::manual_seed(5);
    context_.documents = testing::random_documents(2, 60, 0.1);
    context_.flash_calls = std::make_shared<FlashCalls>();
  }
  const AttentionInput input_ = testing::input_of({.tokens = 60, .mask = {.documents = true}});
  MicrobatchContext context_;
};

TEST_F(DocumentsOfLayersTest, AreReadOnceForEachMask) {
  const at::Tensor first = attend_by_flash(input_, context_);
  AttentionInput other = input_;
  other.mask.window = 5;
  const at::Tensor windowed = attend_by_flash(other, context_);
  MicrobatchContext separate;
  separate.documents = context_.documents.clone();
  context_.documents.zero_();  // They are not read again.
  EXPECT_TRUE(attend_by_flash(input_, context_).equal(first));
  EXPECT_TRUE(attend_by_flash(other, context_).equal(windowed));
  EXPECT_FALSE(first.equal(windowed));
  EXPECT_TRUE(attend_by_flash(input_, separate).equal(first)) << "a layer alone reads them itself";
}

// A graph must not contain the documents of one step: the next step has others, wherever this layer gets them from.
TEST_F(DocumentsOfLayersTest, AreNeverCaptured) {
  for (int i = 0; i < 2; ++i) {
    {
      const device::CaptureGuard capturing;
      EXPECT_ANY_THROW(attend_by_flash(input_, context_)) << i;
    }
    attend_by_flash(input_, context_);
  }
}

// Pieces of rows may have any band in which each query sees a key and each key is seen, and more queries than keys.
TEST(AttentionFlashTest, BandsOfPiecesAreExact) {
  at::manual_seed(6);
  titan::testing::Draw pick(6);
  for (int i = 0; i < 100; ++i) {
    const int64_t queries = pick({1, 9, 40, 64}), keys = pick({1, 9, 40, 64});
    const int64_t last = std::max(std::min<int64_t>(pick({0, 3, 70}), keys - 1), keys - queries);
    const int64_t first = std::min<int64_t>(pick({0, -5, -100}), keys - queries);
    const auto heads = [&](int64_t count, int64_t tokens, int64_t size) {
      return at::randn({2, tokens, count, size}, at::kDouble).to(at::kBFloat16).transpose(1, 2);
    };
    const at::Tensor q = heads(4, queries, 16), k = heads(2, keys, 16), v = heads(2, keys, 8);
    const at::Tensor grad_out = heads(4, queries, 8);
    const auto run = [&](std::unique_ptr<AttentionKernel> kernel, at::ScalarType type) {
      const auto as = [type](const at::Tensor& tensor) { return tensor.to(type); };
      const BlockOutput result = kernel->forward(as(q), as(k), as(v), {first, last});
      const AttentionBlockGradients gradients =
          kernel->backward(as(grad_out), as(q), as(k), as(v), result, {first, last});
      return std::vector<at::Tensor>{result.out, result.lse, gradients.q, gradients.k, gradients.v};
    };
    const auto got = run(make_cuda_attention_kernel(0.3), at::kBFloat16);
    const auto expected = run(make_plain_attention_kernel(0.3), at::kDouble);
    for (size_t j = 0; j < got.size(); ++j) {
      EXPECT_LE((got[j].to(at::kDouble) - expected[j]).abs().max().item<double>(),
                0.03 * (1 + expected[j].abs().max().item<double>()))
          << "result " << j << ", " << queries << " queries, " << keys << " keys, " << first << " to " << last;
    }
  }
}

TEST(AttentionFlashTest, DeclinesTensorsOffTheGpu) {
  EXPECT_FALSE(can_use_flash_attention(at::zeros({1, 1, 1, 8}, at::kBFloat16), 8));
  EXPECT_FALSE(can_use_flash_attention(at::zeros({1, 1, 1, 8}, at::TensorOptions(at::kBFloat16).device(at::kMeta)), 8));
}

}  // namespace
}  // namespace titan::nn

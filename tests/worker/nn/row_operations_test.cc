#include <gtest/gtest.h>

#include "tests/testing/draw.h"
#include "tests/worker/kernels/chosen_kernels.h"
#include "tests/worker/nn/bf16_oracle.h"
#include "worker/nn/loss.h"
#include "worker/nn/rms_norm.h"
#include "worker/nn/rope.h"
#include "worker/nn/swiglu.h"

// What layers do to rows in bf16, with Titan's own kernels and without, against plain fp64 of the same numbers.
namespace titan::nn {
namespace {

using testing::expect_close;
using testing::rounded;
using testing::Tensors;

TEST(RowOperationsTest, RmsNorm) {
  kernels::testing::with_every_row_kernel([] {
    at::manual_seed(1);
    titan::testing::Draw pick(11);
    for (int i = 0; i < 30; ++i) {
      const int64_t dim = pick({1, 7, 16, 64, 257, 1024});
      const at::Tensor x = rounded({pick({1, 2}), pick({0, 1, 5, 40}), dim}), weight = rounded({dim});
      const auto plain = [&](const at::Tensor& in) { return in * (in * in).mean(-1, true).add(1e-5).rsqrt(); };
      const std::string what = "rows of " + std::to_string(dim);
      if (x.numel() == 0 && i % 2 == 0) continue;  // LibTorch's own has no gradient of nothing.
      expect_close(
          {x, weight}, rounded(x.sizes()), [](const Tensors& t) { return rms_norm(t[0], t[1], 1e-5); },
          [&](const Tensors& t) { return plain(t[0]) * t[1]; }, 4, what);
      expect_close(
          {x}, rounded(x.sizes()), [](const Tensors& t) { return rms_norm(t[0], {}, 1e-5); },
          [&](const Tensors& t) { return plain(t[0]); }, 4, what + " without weight");
    }
  });
}

TEST(RowOperationsTest, RmsNormOfPieces) {
  kernels::testing::with_every_row_kernel([] {
    at::manual_seed(2);
    const at::Tensor whole = rounded({3, 50, 4, 24}), weight = rounded({10});
    const auto piece = [](const at::Tensor& t) { return t.transpose(0, 1).narrow(3, 5, 10); };
    expect_close(
        {whole, weight}, rounded({50, 3, 4, 10}), [&](const Tensors& t) { return rms_norm(piece(t[0]), t[1], 1e-5); },
        [&](const Tensors& t) {
          const at::Tensor x = piece(t[0]);
          return x * (x * x).mean(-1, true).add(1e-5).rsqrt() * t[1];
        },
        4, "pieces");
  });
}

TEST(RowOperationsTest, Rope) {
  kernels::testing::with_every_row_kernel([] {
    at::manual_seed(3);
    titan::testing::Draw pick(11);
    for (int i = 0; i < 30; ++i) {
      RopeOptions options{.head_dim = 2 * pick({1, 4, 9, 32}), .max_seq_len = 90};
      options.pairs = i % 2 == 0 ? RopePairs::kNeighbours : RopePairs::kHalves;
      const int64_t tokens = pick({1, 17, 60});
      const at::Tensor x = rounded({pick({1, 3}), tokens, pick({1, 2, 5}), options.head_dim + 4});
      const at::Tensor positions = i % 3 == 0 ? at::randperm(90, at::kLong).narrow(0, 0, tokens) : at::Tensor();
      const auto turn = [&](at::ScalarType type) {
        return [&options, &positions, type](const Tensors& t) {
          const at::Tensor part = t[0].narrow(3, 2, options.head_dim);  // As latent attention turns a part of a head.
          return apply_rope(part, rope_table(options, at::kCPU, type), positions);
        };
      };
      expect_close({x}, rounded({x.size(0), tokens, x.size(2), options.head_dim}), turn(at::kFloat), turn(at::kDouble),
                   1, "heads of " + std::to_string(options.head_dim));
    }
  });
}

TEST(RowOperationsTest, Swiglu) {
  kernels::testing::with_every_row_kernel([] {
    at::manual_seed(4);
    titan::testing::Draw pick(11);
    for (int i = 0; i < 20; ++i) {
      const int64_t width = pick({1, 6, 32, 100}), rows = pick({0, 1, 9, 33});
      const std::string what = "width " + std::to_string(width);
      expect_close(
          {rounded({2, rows, width}), rounded({2, rows, width})}, rounded({2, rows, width}),
          [](const Tensors& t) { return swiglu(t[0], t[1]); }, [](const Tensors& t) { return at::silu(t[0]) * t[1]; },
          4, what);
      expect_close(
          {rounded({rows, 2 * width}) * 4}, rounded({rows, width}),
          [](const Tensors& t) { return clamped_swiglu(t[0], 7); },
          [](const Tensors& t) {
            const at::Tensor pairs = t[0].unflatten(-1, {-1, 2});
            const at::Tensor gate = pairs.select(-1, 0).clamp_max(7);
            return gate * at::sigmoid(gate * 1.702) * (pairs.select(-1, 1).clamp(-7, 7) + 1);
          },
          6, what + ", clamped");
    }
  });
}

TEST(RowOperationsTest, CrossEntropy) {
  kernels::testing::with_every_row_kernel([] {
    at::manual_seed(5);
    titan::testing::Draw pick(11);
    for (int i = 0; i < 20; ++i) {
      const int64_t rows = pick({1, 5, 40}), vocabulary = pick({2, 50, 1000});
      const at::Tensor logits = rounded({2, rows, vocabulary}) * 4;
      at::Tensor labels = at::randint(vocabulary, {2, rows}, at::kLong);
      labels.masked_fill_(at::rand({2, rows}).lt(0.2), kIgnoredLabel);
      const at::Tensor grad = at::full({}, 0.25);
      const auto loss = [&](const Tensors& t) { return cross_entropy_sum(t[0], labels); };
      expect_close({logits}, grad, loss, loss, 1, "vocabulary of " + std::to_string(vocabulary));
    }
  });
}

TEST(RowOperationsTest, ALabelOutsideTheVocabularyIsNoLoss) {
  kernels::testing::with_every_row_kernel([] {
    const at::Tensor logits = at::randn({1, 3, 10}).to(at::kBFloat16);
    for (const int64_t label : {int64_t{10}, int64_t{-1}}) {
      EXPECT_ANY_THROW(cross_entropy_sum(logits, at::full({1, 3}, label, at::kLong)).item()) << label;
    }
    const at::Tensor nothing = cross_entropy_sum(logits, at::full({1, 3}, kIgnoredLabel, at::kLong));
    EXPECT_EQ(nothing.item<float>(), 0);
  });
}

}  // namespace
}  // namespace titan::nn

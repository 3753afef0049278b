#include "worker/rank/nn/layers.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <vector>

#include "worker/rank/nn/attention.h"
#include "worker/rank/nn/feed_forward.h"
#include "worker/rank/nn/loss.h"
#include "worker/rank/nn/rope.h"

namespace titan::nn {
namespace {

// A block that declares a layer's parameters, with random values.
class TestBlock : public Block {
 public:
  TestBlock() : Block("test") {}
  using Block::declare;
  at::Tensor forward(const at::Tensor& input, const MicrobatchContext&) override { return input; }

  void randomize(at::ScalarType type) {
    for (Parameter& p : parameters()) p.weight = at::randn(p.shape, type).mul_(0.2).requires_grad_();
  }
  at::Tensor weight(const std::string& fqn) {
    for (Parameter& p : parameters()) {
      if (p.fqn == fqn) return p.weight;
    }
    throw std::out_of_range(fqn);
  }
};

double relative_error(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor w = want.to(at::kDouble);
  return ((got.to(at::kDouble) - w).norm() / w.norm()).item<double>();
}

// Rotates with cosines written out: pair (2i, 2i+1) at position t turns by t * frequency_i.
at::Tensor plain_rope(const at::Tensor& x, const at::Tensor& frequencies) {
  const at::Tensor angle = at::outer(at::arange(x.size(1), at::kDouble), frequencies).view({1, x.size(1), 1, -1});
  const at::Tensor even = x.slice(3, 0, std::nullopt, 2), odd = x.slice(3, 1, std::nullopt, 2);
  return at::stack({even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()}, -1).flatten(3);
}

at::Tensor plain_frequencies(int64_t head_dim, double theta, bool scaled) {
  std::vector<double> values;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    double f = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    const double wavelength = 2 * M_PI / f;
    if (scaled && wavelength > 8192) {
      f /= 8;
    } else if (scaled && wavelength >= 2048) {
      const double s = (8192 / wavelength - 1) / 3;
      f = (1 - s) * f / 8 + s * f;
    }
    values.push_back(f);
  }
  return at::tensor(values, at::kDouble);
}

at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t repeat = q.size(1) / k.size(1), length = q.size(2);
  const at::Tensor keys = k.repeat_interleave(repeat, 1), values = v.repeat_interleave(repeat, 1);
  const at::Tensor future = at::ones({length, length}, at::kBool).triu(1);
  const at::Tensor scores = at::matmul(q, keys.transpose(-1, -2)) / std::sqrt(static_cast<double>(q.size(3)));
  return at::matmul(scores.masked_fill(future, -INFINITY).softmax(-1), values);
}

class RopeTest : public ::testing::TestWithParam<bool> {};

// With scaling, heads of 16 at theta 500000 have pairs in all three of Llama 3.1's bands.
TEST_P(RopeTest, RotatesPairsByTheFormula) {
  RopeOptions options{.head_dim = 16, .max_seq_len = 4096, .theta = 500000};
  options.scaling.enabled = GetParam();
  const at::Tensor x = at::randn({2, 3000, 3, 16}, at::kDouble);
  const at::Tensor want = plain_rope(x, plain_frequencies(16, 500000, GetParam()));
  EXPECT_LT(relative_error(apply_rope(x, rope_table(options, at::kCPU, at::kDouble)), want), 1e-12);
  EXPECT_LT(relative_error(apply_rope(x.to(at::kFloat), rope_table(options, at::kCPU, at::kFloat)), want), 3e-5);
  const at::Tensor half = apply_rope(x.to(at::kBFloat16), rope_table(options, at::kCPU, at::kBFloat16));
  EXPECT_EQ(half.scalar_type(), at::kBFloat16);
  EXPECT_LT(relative_error(half, want), 4e-3);
}
INSTANTIATE_TEST_SUITE_P(Scaling, RopeTest, ::testing::Bool());

TEST(RopeTableTest, RefusesLongerSequences) {
  const at::Tensor table = rope_table({.head_dim = 8, .max_seq_len = 4}, at::kCPU, at::kFloat);
  EXPECT_THROW(apply_rope(at::zeros({1, 5, 1, 8}), table), c10::Error);
}

struct Shape {
  int64_t batch, length, dim, heads, kv_heads;
};

class AttentionTest : public ::testing::TestWithParam<Shape> {};

// Compares the output and every gradient with attention written out in fp64, for shared and separate key-value heads.
TEST_P(AttentionTest, MatchesPlainAttentionInBothTypes) {
  torch::manual_seed(3);
  const Shape s = GetParam();
  const int64_t head_dim = s.dim / s.heads;
  TestBlock block;
  auto rope = std::make_shared<Rope>(RopeOptions{.head_dim = head_dim, .max_seq_len = s.length, .theta = 500000});
  const GroupedAttention layer(block.declare(), "attention",
                               {.dim = s.dim, .heads = s.heads, .kv_heads = s.kv_heads, .head_dim = head_dim}, rope);
  block.randomize(at::kDouble);
  const at::Tensor x = at::randn({s.batch, s.length, s.dim}, at::kDouble).requires_grad_();
  const at::Tensor frequencies = plain_frequencies(head_dim, 500000, true);
  const auto heads = [&](const char* name) {
    return at::matmul(x, block.weight(name).t()).view({s.batch, s.length, -1, head_dim});
  };
  const at::Tensor mixed = plain_attention(plain_rope(heads("attention.wq.weight"), frequencies).transpose(1, 2),
                                           plain_rope(heads("attention.wk.weight"), frequencies).transpose(1, 2),
                                           heads("attention.wv.weight").transpose(1, 2));
  const at::Tensor want = at::matmul(mixed.transpose(1, 2).flatten(2), block.weight("attention.wo.weight").t());
  std::vector<at::Tensor> leaves{x};
  for (Parameter& p : block.parameters()) leaves.push_back(p.weight);
  const at::Tensor pull = at::randn_like(want);
  const auto want_grads = torch::autograd::grad({want}, leaves, {pull});

  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    const double tolerance = type == at::kDouble ? 1e-12 : 5e-6;
    rope->fill(at::kCPU, type);
    std::vector<at::Tensor> inputs{leaves[0].detach().to(type).requires_grad_()};
    size_t i = 1;
    for (Parameter& p : block.parameters()) {
      p.weight = leaves[i++].detach().to(type).requires_grad_();
      inputs.push_back(p.weight);
    }
    const at::Tensor got = layer.forward(inputs[0], {});
    EXPECT_EQ(got.scalar_type(), type);
    EXPECT_LT(relative_error(got, want), tolerance);
    const auto grads = torch::autograd::grad({got}, inputs, {pull.to(type)});
    for (size_t g = 0; g < grads.size(); ++g) EXPECT_LT(relative_error(grads[g], want_grads[g]), tolerance) << g;
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionTest,
                         ::testing::Values(Shape{2, 33, 64, 4, 4}, Shape{1, 70, 64, 4, 2}, Shape{3, 2, 32, 2, 1}));

TEST(LayersTest, NormAndFeedForwardMatchTheirFormulas) {
  torch::manual_seed(4);
  TestBlock block;
  const RmsNorm norm(block.declare(), "norm.weight", 24, 1e-5);
  const FeedForward ffn(block.declare(), "ffn", 24, 40, {}, {});
  block.randomize(at::kDouble);
  const at::Tensor x = at::randn({2, 5, 24}, at::kDouble);
  const at::Tensor rms = (x.square().mean(-1, true) + 1e-5).rsqrt();
  EXPECT_LT(relative_error(norm.forward(x), x * rms * block.weight("norm.weight")), 1e-13);
  const at::Tensor gate = at::matmul(x, block.weight("ffn.w1.weight").t());
  const at::Tensor want = at::matmul(gate * gate.sigmoid() * at::matmul(x, block.weight("ffn.w3.weight").t()),
                                     block.weight("ffn.w2.weight").t());
  EXPECT_LT(relative_error(ffn.forward(x), want), 1e-13);
}

// A norm with an offset multiplies by the weight plus it, and starts at 1; its gradients are those of the formula, also
// in bf16, where the sum of weight and offset is not rounded.
TEST(LayersTest, NormWithAnOffset) {
  torch::manual_seed(14);
  TestBlock block;
  const RmsNorm norm(block.declare(), "norm.weight", 24, 1e-5, /*offset=*/1);
  EXPECT_EQ(block.parameters().front().init.kind, Init::Kind::kZeros);
  block.randomize(at::kDouble);
  at::Tensor& weight = block.parameters().front().weight;
  for (const at::ScalarType type : {at::kDouble, at::kBFloat16}) {
    const double tolerance = type == at::kDouble ? 1e-12 : 4e-3;
    weight = (0.01 * at::randn({24}, at::kDouble)).to(type).requires_grad_();
    const at::Tensor x = at::randn({2, 5, 24}, at::kDouble).to(type).requires_grad_();
    const at::Tensor exact = x.detach().to(at::kDouble).requires_grad_();
    const at::Tensor scale = weight.detach().to(at::kDouble).requires_grad_();
    const at::Tensor want = exact * (exact.square().mean(-1, true) + 1e-5).rsqrt() * (1 + scale);
    const nn::SumAndNorm got = norm.forward_sum(x, {});
    EXPECT_TRUE(got.sum.is_same(x));
    EXPECT_LT(relative_error(got.norm.to(at::kDouble), want), tolerance);
    const at::Tensor pull = at::randn({2, 5, 24}, at::kDouble);
    const auto ours = torch::autograd::grad({got.norm}, {x, weight}, {pull.to(type)});
    const auto theirs = torch::autograd::grad({want}, {exact, scale}, {pull.to(type).to(at::kDouble)});
    for (size_t i = 0; i < 2; ++i) EXPECT_LT(relative_error(ours[i].to(at::kDouble), theirs[i]), tolerance) << i;
  }
}

// GeGLU with biases.
TEST(LayersTest, FeedForwardWithGeluAndBiases) {
  torch::manual_seed(15);
  TestBlock block;
  const FeedForward ffn(block.declare(), "ffn", 24, 40, {}, {}, {.gelu_tanh = true, .bias_init = Init{}});
  block.randomize(at::kDouble);
  const auto project = [&](const at::Tensor& x, const std::string& name) {
    return at::matmul(x, block.weight(name + ".weight").t()) + block.weight(name + ".bias");
  };
  const at::Tensor x = at::randn({2, 5, 24}, at::kDouble), gate = project(x, "ffn.w1");
  const at::Tensor bend = (std::sqrt(2 / M_PI) * (gate + 0.044715 * gate.pow(3))).tanh();
  const at::Tensor want = project(gate * 0.5 * (1 + bend) * project(x, "ffn.w3"), "ffn.w2");
  EXPECT_LT(relative_error(ffn.forward(x), want), 1e-13);
}

// `parallel` relies on this order: input seam, product or lookup, output seam.
TEST(LayersTest, SeamsWrapTheLayer) {
  TestBlock block;
  Linear linear(block.declare(), "w", 3, 2, {});
  Embedding embedding(block.declare(), "e", 5, 2, {});
  block.randomize(at::kDouble);
  linear.seams.input = [](const at::Tensor& x) { return x * 2; };
  linear.seams.output = [](const at::Tensor& y) { return y + 1; };
  const at::Tensor x = at::randn({4, 3}, at::kDouble);
  EXPECT_LT(relative_error(linear.forward(x), at::matmul(x * 2, block.weight("w").t()) + 1), 1e-14);
  linear.product = [](const at::Tensor& in, const Parameter& w) { return at::matmul(in, w.weight.t()) * 3; };
  EXPECT_LT(relative_error(linear.forward(x), at::matmul(x * 2, block.weight("w").t()) * 3 + 1), 1e-14);
  embedding.lookup = [](const at::Tensor& ids, const Parameter& w) { return at::embedding(w.weight, ids) * 0; };
  EXPECT_EQ(embedding.forward(at::ones({2, 2}, at::kLong)).abs().sum().item<double>(), 0);
}

// The loss is a sum over valid labels only, in fp32 for half types, so the parts of a split batch add up exactly.
TEST(LossTest, SumsOverValidLabels) {
  const at::Tensor logits = at::randn({2, 6, 11}, at::kDouble);
  at::Tensor labels = at::randint(11, {2, 6}, at::kLong);
  labels[0][2] = kIgnoreIndex;
  double want = 0;
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t t = 0; t < 6; ++t) {
      const int64_t label = labels[b][t].item<int64_t>();
      if (label >= 0) want -= logits[b][t].log_softmax(-1)[label].item<double>();
    }
  }
  EXPECT_NEAR(cross_entropy_sum(logits, labels).item<double>(), want, 1e-12);
  EXPECT_EQ(cross_entropy_sum(logits.to(at::kBFloat16), labels).scalar_type(), at::kFloat);
  EXPECT_EQ(count_valid(labels).item<int64_t>(), 11);
}

}  // namespace
}  // namespace titan::nn

#include "worker/rank/parallel/qk_clip.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/match.h"
#include "tests/testing/draw.h"
#include "tests/worker/rank/comm/thread_ranks.h"
#include "tests/worker/rank/nn/plain_attention.h"

namespace titan::parallel {
namespace {

using mesh::Axis;

// One layer whose attention core records its input.
class Layer : public nn::Block, public nn::HasAttention {
 public:
  Layer(const nn::AttentionOptions& options, const nn::RopeOptions& rope)
      : Block("layers.0"), rope_(std::make_shared<nn::Rope>(rope)) {
    attention = std::make_unique<nn::GroupedAttention>(declare(), "layers.0.attention", options, rope_);
    watch();
  }
  Layer(const nn::LatentAttentionOptions& options, const nn::RopeOptions& rope)
      : Block("layers.0"), rope_(std::make_shared<nn::Rope>(rope)) {
    attention = std::make_unique<nn::LatentAttention>(declare(), "layers.0.attention", options, rope_);
    watch();
  }
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override {
    return attention->forward(input, context);
  }
  void init_buffers(at::Device device, at::ScalarType dtype) override { rope_->fill(device, dtype); }
  nn::SelfAttention& self_attention() override { return *attention; }

  std::unique_ptr<nn::SelfAttention> attention;
  nn::AttentionInput seen;

 private:
  void watch() {
    attention->core = [this](const nn::AttentionInput& input, const nn::MicrobatchContext& context) {
      seen = input;
      return nn::attend(input, context);
    };
  }
  std::shared_ptr<nn::Rope> rope_;
};

// Returns the largest logit of each head, from all scores.
at::Tensor largest_of(const nn::AttentionInput& input) {
  const at::Tensor k = input.k.repeat_interleave(input.q.size(1) / input.k.size(1), 1);
  const at::Tensor hidden = testing::visible_keys(input.mask, {}, input.q.size(2)).unsqueeze(1).logical_not();
  return (at::matmul(input.q, k.transpose(2, 3)) * input.scale)
      .masked_fill(hidden, -std::numeric_limits<double>::infinity())
      .amax(at::IntArrayRef{0, 2, 3})
      .detach();
}

constexpr int64_t kNope = 6, kRope = 4, kValue = 3;  // Sizes of latent heads.

struct Case {
  bool latent = false, low_rank_queries = false, biases = false;
  int64_t kv_heads = 3, sharing = 1, window = 0;
};

struct Trial {
  // Runs on one rank: the shard that is scaled is the weight that the layer uses.
  Trial(const Case& c, testing::ThreadRank& self)
      : heads(c.kv_heads * c.sharing), layer(make_block(c, heads)), unit(make_unit(self)) {
    for (ShardedParameter& placed : unit->parameters()) {
      held.push_back(&placed);
      const bool vector = placed.value.dim() == 1;
      placed.value.copy_(at::randn(placed.value.sizes(), at::kDouble) * (vector ? 1.0 : 0.5));
    }
    layer->init_buffers(at::kCPU, at::kDouble);
    unit->unshard();
  }

  static std::unique_ptr<Layer> make_block(const Case& c, int64_t heads) {
    if (c.latent) {
      return std::make_unique<Layer>(nn::LatentAttentionOptions{.dim = 12,
                                                                .heads = heads,
                                                                .q_lora_rank = c.low_rank_queries ? 10 : 0,
                                                                .kv_lora_rank = 8,
                                                                .nope_dim = kNope,
                                                                .rope_dim = kRope,
                                                                .v_dim = kValue,
                                                                .softmax_scale = 0.4,
                                                                .mask = {.window = c.window}},
                                     nn::RopeOptions{.head_dim = kRope, .max_seq_len = 64});
    }
    nn::AttentionOptions options{
        .dim = 12, .heads = heads, .kv_heads = c.kv_heads, .head_dim = 6, .mask = {.window = c.window}};
    if (c.biases) options.bias_init = nn::Init{};
    return std::make_unique<Layer>(options, nn::RopeOptions{.head_dim = 6, .max_seq_len = 64});
  }
  std::unique_ptr<ShardUnit> make_unit(testing::ThreadRank& self) const {
    std::vector<nn::Parameter*> parameters;
    for (nn::Parameter& parameter : layer->parameters()) parameters.push_back(&parameter);
    return std::make_unique<ShardUnit>("layers.0", parameters,
                                       ShardUnitOptions{.shard_group = &self.mesh->group(Axis::kFsdp),
                                                        .device = self.device.get(),
                                                        .precision = {at::kDouble, at::kDouble, at::kDouble}});
  }
  std::map<std::string, at::Tensor> values() const {
    std::map<std::string, at::Tensor> all;
    for (const ShardedParameter* placed : held) all[placed->parameter->fqn.substr(19)] = placed->value.clone();
    return all;
  }

  const int64_t heads;
  std::unique_ptr<Layer> layer;
  std::unique_ptr<ShardUnit> unit;
  std::vector<ShardedParameter*> held;
};

// Returns the factor by which each row of a matrix changed, by head.
at::Tensor row_factors(const at::Tensor& after, const at::Tensor& before, int64_t head_rows) {
  const at::Tensor share = after.flatten(1).mul(before.flatten(1)).sum(1) / before.flatten(1).square().sum(1);
  return share.view({-1, head_rows});
}

void expect_near(const at::Tensor& one, const at::Tensor& other, const char* what) {
  EXPECT_LE((one - other).abs().max().item<double>(), 1e-12) << what;
}

const std::vector<Case> kCases = {{},
                                  {.biases = true, .window = 3},
                                  {.kv_heads = 2, .sharing = 3},
                                  {.biases = true, .kv_heads = 1, .sharing = 4},
                                  {.latent = true},
                                  {.latent = true, .low_rank_queries = true, .window = 4}};

// After a step the same tokens give each head's largest logit, or tau if it was above that, for any shape and over two
// microbatches. Heads below tau, and all other weights, keep their bits.
TEST(QkClipTest, LogitsShrinkToTau) {
  at::manual_seed(11);
  for (const Case& c : kCases) {
    testing::run_ranks({}, 1, testing::every_axis(), [&](testing::ThreadRank& self) {
      at::manual_seed(12);
      Trial trial(c, self);
      const at::Tensor inputs[] = {at::randn({2, 9, 12}, at::kDouble), at::randn({1, 17, 12}, at::kDouble)};
      const auto pass = [&](bool counting) {
        at::Tensor largest;
        for (const at::Tensor& input : inputs) {
          nn::MicrobatchContext context;
          context.counting = counting;
          trial.layer->forward(input, context);
          const at::Tensor one = largest_of(trial.layer->seen);
          largest = largest.defined() ? at::maximum(largest, one) : one;
        }
        return largest;
      };
      const at::Tensor before = pass(true);  // The clip does not record yet.
      const double tau = before.median().item<double>();
      ASSERT_GT(tau, 0);
      auto clip = QkClip::create({trial.layer.get()}, trial.held, tau, *self.mesh, at::kCPU).value();
      const auto old = trial.values();
      pass(false);  // Validation.
      clip->finish_step();
      EXPECT_EQ(clip->figures().clipped, 0);
      EXPECT_TRUE(pass(true).equal(before));
      clip->finish_step(at::ones({}, at::kFloat));  // This step is skipped.
      for (const auto& [name, value] : trial.values()) EXPECT_TRUE(value.equal(old.at(name))) << name;

      pass(true);
      clip->finish_step();
      EXPECT_NEAR(clip->figures().largest, before.max().item<double>(), 1e-12);
      const at::Tensor above = before.gt(tau);
      EXPECT_EQ(clip->figures().clipped, above.sum().item<int64_t>());
      EXPECT_GE(clip->figures().clipped, 1);
      const at::Tensor gamma = at::where(above, tau / before, at::ones_like(before));
      const auto now = trial.values();
      for (const auto& [name, value] : now) {
        const bool scaled = absl::StartsWith(name, "wq.") || absl::StartsWith(name, "wq_b.") ||
                            absl::StartsWith(name, "wkv_b.") || (absl::StartsWith(name, "wk.") && c.sharing == 1);
        EXPECT_EQ(!value.equal(old.at(name)), scaled) << name;
        if (!scaled) continue;
        const int64_t rows = !c.latent ? 6 : absl::StartsWith(name, "wkv_b.") ? kNope + kValue : kNope + kRope;
        const at::Tensor factors = row_factors(value.unsqueeze(1), old.at(name).unsqueeze(1), rows);
        const at::Tensor root = gamma.sqrt().unsqueeze(1), whole = gamma.unsqueeze(1);
        if (!c.latent) {
          expect_near(factors, (c.sharing == 1 ? root : whole).expand_as(factors), name.c_str());
        } else {
          expect_near(factors.narrow(1, 0, kNope), root.expand({-1, kNope}), name.c_str());
          const at::Tensor rest = factors.narrow(1, kNope, rows - kNope);
          const at::Tensor expected = rows == kNope + kRope ? whole : at::ones_like(whole);  // Rotated queries; values.
          expect_near(rest, expected.expand_as(rest), name.c_str());
        }
        for (int64_t head = 0; head < trial.heads; ++head) {
          if (above[head].item<bool>()) continue;
          EXPECT_TRUE(value.narrow(0, head * rows, rows).equal(old.at(name).narrow(0, head * rows, rows))) << name;
        }
      }
      expect_near(pass(true), at::minimum(before, at::full_like(before, tau)), "logits after the step");
      clip->finish_step();
      EXPECT_NEAR(clip->figures().largest, tau, 1e-12);
    });
  }
}

// A non-finite logit scales nothing: its step is skipped, or fails.
TEST(QkClipTest, InfiniteLogitsScaleNothing) {
  testing::run_ranks({}, 1, testing::every_axis(), [&](testing::ThreadRank& self) {
    at::manual_seed(13);
    Trial trial({}, self);
    auto clip = QkClip::create({trial.layer.get()}, trial.held, 1e-3, *self.mesh, at::kCPU).value();
    at::Tensor input = at::randn({1, 5, 12}, at::kDouble);
    input[0][2][3] = std::numeric_limits<double>::quiet_NaN();
    trial.layer->forward(input, {});
    const auto old = trial.values();
    clip->finish_step();
    for (const auto& [name, value] : trial.values()) EXPECT_TRUE(value.equal(old.at(name))) << name;
  });
}

TEST(QkClipTest, NamesLayersThatCannotBeClipped) {
  testing::run_ranks({}, 1, testing::every_axis(), [&](testing::ThreadRank& self) {
    Trial trial({}, self);
    const auto status = [&](nn::Block& block, double tau) {
      return QkClip::create({&block}, trial.held, tau, *self.mesh, at::kCPU).status();
    };
    EXPECT_EQ(status(*trial.layer, 0).code(), absl::StatusCode::kInvalidArgument);
    trial.layer->parameters().front().frozen = true;
    const absl::Status frozen = status(*trial.layer, 1);
    EXPECT_EQ(frozen.code(), absl::StatusCode::kUnimplemented);
    EXPECT_TRUE(absl::StrContains(frozen.message(), "layers.0.attention.wq.weight")) << frozen;
    for (const bool rotated : {false, true}) {
      nn::AttentionOptions options{.dim = 12, .heads = 2, .kv_heads = 2, .head_dim = 6};
      (rotated ? options.rotated_norm_eps : options.qk_norm_eps) = 1e-6;
      Layer normed(options, {.head_dim = 6, .max_seq_len = 64});
      const absl::Status refused = status(normed, 1);
      EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented);
      EXPECT_TRUE(absl::StrContains(refused.message(), "layers.0 normalizes its queries and keys")) << refused;
    }
  });
}

}  // namespace
}  // namespace titan::parallel

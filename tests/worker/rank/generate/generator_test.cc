// Compares generation token by token with the cache to passes over the whole text: every family, on several meshes.

#include "worker/rank/generate/generator.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#include "gtest/gtest.h"
#include "tests/numerics/small_models/option_specs.h"
#include "tests/worker/rank/comm/thread_ranks.h"
#include "tests/worker/rank/model/testing.h"
#include "worker/rank/generate/kv_cache.h"
#include "worker/rank/nn/attention.h"
#include "worker/rank/runtime/engine/sharded_model.h"

namespace titan::generate {
namespace {

using ::titan::testing::run_ranks;
using ::titan::testing::small_models;
using ::titan::testing::SmallModel;
using ::titan::testing::ThreadRank;
using Prompts = std::vector<std::vector<int64_t>>;

constexpr int64_t kNew = 12;
constexpr double kExact = 1e-10;  // fp64: only the order of sums may differ.

struct MeshCase {
  std::string what;
  mesh::Degrees degrees;
  int world = 1;
  bool sequence_parallel = true;
  bool experts = false;  // Whether only models with experts run on it.
};

std::unique_ptr<runtime::ShardedModel> build(const SmallModel& small, bool sequence_parallel, ThreadRank& self) {
  model::Model model = model::build(small.spec, {.seq_len = small.seq_len}).value();
  const model::ParallelOptions parallel{.mesh = self.mesh.get(), .sequence_parallel = sequence_parallel};
  const absl::Status done = model.parallelize(model, parallel);
  if (!done.ok()) throw std::runtime_error(std::string(done.message()));
  const runtime::ShardingOptions sharding{.precision = {at::kDouble, at::kDouble, at::kDouble}};
  auto sharded = runtime::ShardedModel::create(std::move(model), sharding, *self.mesh, *self.device).value();
  sharded->init_weights(7);
  return sharded;
}

Forward forward_of(runtime::ShardedModel& model, const SmallModel& small, const ThreadRank& self) {
  return forward_through([&model](at::Tensor x, const auto& pass) { return model.visit(std::move(x), pass); },
                         model.blocks().back(), small.spec.vocab_size, self.mesh->group(mesh::Axis::kTensor));
}

// Returns prompts that are longer and shorter than the windows and chunks of the small models.
Prompts some_prompts(int64_t vocabulary) {
  Prompts prompts;
  for (const int64_t length : {5, 1, 14}) {
    prompts.emplace_back();
    for (int64_t i = 0; i < length; ++i) prompts.back().push_back((length * 31 + i * 17 + i * i) % vocabulary);
  }
  return prompts;
}

struct Outcome {
  std::vector<Generation> generations;
  std::vector<at::Tensor> logits;  // [B, V] of each pass.
};

Outcome run(const SmallModel& small, const MeshCase& on, const GeneratorOptions& options, const Prompts& prompts) {
  Outcome outcome;
  run_ranks(on.degrees, on.world, testing::every_axis(), [&](ThreadRank& self) {
    const auto model = build(small, on.sequence_parallel, self);
    const Forward forward = forward_of(*model, small, self);
    Outcome own;
    GeneratorOptions mine = options;
    const int tensor = self.mesh->mesh().size(mesh::Axis::kTensor);
    if (on.sequence_parallel) mine.token_multiple = tensor;
    own.generations = generate(
        [&](const nn::MicrobatchContext& context, const at::Tensor& chosen) {
          own.logits.push_back(forward(context, chosen));
          return own.logits.back();
        },
        model->blocks(), prompts, mine);
    model->release();
    if (self.rank == 0) outcome = std::move(own);
  });
  return outcome;
}

// Repeatedly passes over the whole text and appends the likeliest token.
Outcome without_cache(const SmallModel& small, const Prompts& prompts) {
  Outcome outcome;
  outcome.generations.resize(prompts.size());
  run_ranks({}, 1, testing::every_axis(), [&](ThreadRank& self) {
    const auto model = build(small, true, self);
    const Forward forward = forward_of(*model, small, self);
    Prompts texts = prompts;
    for (int64_t token = 0; token < kNew; ++token) {
      std::vector<at::Tensor> logits;
      for (size_t row = 0; row < texts.size(); ++row) {
        nn::MicrobatchContext context;
        context.tokens = at::tensor(texts[row], at::kLong).unsqueeze(0);
        context.counting = false;
        logits.push_back(forward(context, at::tensor({context.tokens.size(1) - 1}, at::kLong)));
        texts[row].push_back(logits.back().argmax().item<int64_t>());
        outcome.generations[row].tokens.push_back(texts[row].back());
      }
      outcome.logits.push_back(at::cat(logits));
    }
  });
  return outcome;
}

class GeneratorTest : public ::testing::TestWithParam<SmallModel> {};

TEST_P(GeneratorTest, MatchesFullForwardPassesOnEveryMesh) {
  const SmallModel& small = GetParam();
  const Prompts prompts = some_prompts(small.spec.vocab_size);
  const Outcome want = without_cache(small, prompts);
  const std::vector<MeshCase> meshes = {
      {"one rank", {}, 1},
      {"tensor 2", {.tp = 2}, 2},
      {"tensor 2, whole sequences", {.tp = 2}, 2, /*sequence_parallel=*/false},
      {"shards 2", {.dp_shard = 2}, 2},
      {"experts 2", {.dp_shard = 2, .ep = 2}, 2, true, /*experts=*/true},
  };
  for (const MeshCase& on : meshes) {
    if (on.experts && !small.spec.moe) continue;
    SCOPED_TRACE(on.what);
    const Outcome got = run(small, on, {.max_new_tokens = kNew, .sampling = {.temperature = 0}}, prompts);
    ASSERT_EQ(got.logits.size(), want.logits.size());
    for (size_t pass = 0; pass < got.logits.size(); ++pass) {
      ASSERT_LE((got.logits[pass] - want.logits[pass]).abs().max().item<double>(), kExact) << "token " << pass;
    }
    for (size_t row = 0; row < prompts.size(); ++row) {
      EXPECT_EQ(got.generations[row].tokens, want.generations[row].tokens) << "row " << row;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GeneratorTest, ::testing::ValuesIn([] {
                           std::vector<SmallModel> all = small_models();
                           // Only training packs documents; here each text is one document.
                           std::erase_if(all, [](const SmallModel& model) {
                             return model.what.find("documents") != std::string::npos;
                           });
                           return all;
                         }()),
                         [](const auto& info) { return info.param.what; });

// Windows on some layers or all, other positions in windows, capped scores and logits, scales, and positions on a part
// of each head.
INSTANTIATE_TEST_SUITE_P(Options, GeneratorTest, ::testing::ValuesIn([] {
                           std::vector<SmallModel> all;
                           for (const std::string& family : testing::option_families())
                             all.push_back({family, testing::option_spec(family), 32});
                           return all;
                         }()),
                         [](const auto& info) { return info.param.what; });

SmallModel small_llama() { return small_models().front(); }

TEST(GenerateTest, TokensDoNotDependOnTheBatch) {
  const SmallModel small = small_llama();
  const Prompts prompts = some_prompts(small.spec.vocab_size);
  GeneratorOptions options{.max_new_tokens = kNew,
                           .sampling = {.temperature = 2, .top_k = 30, .top_p = 0.95, .seed = 4}};
  const Outcome together = run(small, {"", {}, 1}, options, prompts);
  for (size_t row = 0; row < prompts.size(); ++row) {
    options.first_prompt = static_cast<int64_t>(row);
    const Outcome alone = run(small, {"", {}, 1}, options, {prompts[row]});
    EXPECT_EQ(alone.generations[0].tokens, together.generations[row].tokens) << "row " << row;
  }
  options.first_prompt = 0;
  options.sampling.seed = 5;
  EXPECT_NE(run(small, {"", {}, 1}, options, prompts).generations[2].tokens, together.generations[2].tokens);
}

TEST(GenerateTest, StopTokenEndsOnlyItsRow) {
  const SmallModel small = small_llama();
  const Prompts prompts = some_prompts(small.spec.vocab_size);
  GeneratorOptions options{.max_new_tokens = kNew, .sampling = {.temperature = 0}};
  const Outcome whole = run(small, {"", {}, 1}, options, prompts);
  const std::vector<int64_t>& text = whole.generations[0].tokens;
  options.stop_tokens = {text[3]};
  std::map<size_t, std::vector<int64_t>> reported;
  options.on_token = [&](size_t prompt, int64_t token) { reported[prompt].push_back(token); };
  const Outcome stopped = run(small, {"", {}, 1}, options, prompts);
  for (size_t row = 0; row < prompts.size(); ++row) {
    const std::vector<int64_t>& all = whole.generations[row].tokens;
    const auto end = std::find(all.begin(), all.end(), text[3]);
    EXPECT_EQ(stopped.generations[row].tokens, std::vector<int64_t>(all.begin(), end)) << "row " << row;
    EXPECT_EQ(stopped.generations[row].stopped, end != all.end());
    EXPECT_EQ(reported[row], stopped.generations[row].tokens);
  }
}

// A row with non-finite logits ends without a token on any number of ranks. Other rows continue, and rows that ended
// before stay unchanged.
TEST(GenerateTest, NonFiniteLogitsEndTheirRow) {
  const SmallModel small = small_llama();
  const Prompts prompts = some_prompts(small.spec.vocab_size);
  std::mutex mutex;
  std::vector<std::vector<Generation>> all;
  const auto run_with = [&](int tensor, const GeneratorOptions& options, int64_t bad_row, size_t bad_pass) {
    all.clear();
    run_ranks({.tp = tensor}, tensor, testing::every_axis(), [&](ThreadRank& self) {
      const auto model = build(small, true, self);
      const Forward forward = forward_of(*model, small, self);
      GeneratorOptions mine = options;
      mine.token_multiple = tensor;
      size_t pass = 0;
      const auto spoiled = [&](const nn::MicrobatchContext& context, const at::Tensor& chosen) {
        at::Tensor logits = forward(context, chosen).clone();
        if (pass++ == bad_pass) logits[bad_row][3] = std::nan("");
        return logits;
      };
      const std::vector<Generation> made = generate(spoiled, model->blocks(), prompts, mine);
      model->release();
      const std::lock_guard lock(mutex);
      all.push_back(made);
    });
  };
  for (const double temperature : {0.0, 1.0}) {
    const GeneratorOptions options{.max_new_tokens = kNew, .sampling = {.temperature = temperature, .top_k = 5}};
    const Outcome whole = run(small, {"", {}, 1}, options, prompts);
    for (const int tensor : {1, 2}) {
      run_with(tensor, options, /*bad_row=*/2, /*bad_pass=*/3);
      ASSERT_EQ(all.size(), static_cast<size_t>(tensor));
      for (const std::vector<Generation>& made : all) {
        EXPECT_TRUE(made[2].not_finite);
        EXPECT_EQ(made[2].tokens,
                  std::vector<int64_t>(whole.generations[2].tokens.begin(), whole.generations[2].tokens.begin() + 3));
        for (const size_t row : {0, 1}) {
          EXPECT_FALSE(made[row].not_finite);
          EXPECT_EQ(made[row].tokens, whole.generations[row].tokens);
        }
      }
    }
  }
  const Outcome whole = run(small, {"", {}, 1}, {.max_new_tokens = kNew, .sampling = {.temperature = 0}}, prompts);
  GeneratorOptions stopping{.max_new_tokens = kNew, .sampling = {.temperature = 0}};
  stopping.stop_tokens = {whole.generations[1].tokens[0]};
  run_with(1, stopping, /*bad_row=*/1, /*bad_pass=*/2);
  EXPECT_TRUE(all.at(0)[1].stopped && !all.at(0)[1].not_finite);
}

TEST(GenerateTest, NoForwardPassWithoutNewTokens) {
  const SmallModel small = small_llama();
  const Outcome none = run(small, {"", {}, 1}, {.max_new_tokens = 0}, {{1, 2}});
  EXPECT_TRUE(none.logits.empty());
  EXPECT_TRUE(none.generations.at(0).tokens.empty());
  EXPECT_TRUE(run(small, {"", {}, 1}, {}, {}).generations.empty());
  EXPECT_THROW(run(small, {"", {}, 1}, {}, {{}}), std::exception);
}

// Windows and latents store less than all keys and values; afterwards training computes as before.
TEST(KvCacheTest, StoresTheMinimumAndLeavesTheModelUnchanged) {
  for (const SmallModel& small : small_models()) {
    if (small.what != "gpt_oss" && small.what != "deepseek") continue;
    run_ranks({}, 1, testing::every_axis(), [&](ThreadRank& self) {
      const auto model = build(small, true, self);
      const Forward forward = forward_of(*model, small, self);
      nn::MicrobatchContext context;
      context.tokens = at::arange(20, at::kLong).unsqueeze(0);
      context.counting = false;
      const at::Tensor chosen = at::tensor({19}, at::kLong);
      const at::Tensor before = forward(context, chosen);
      int64_t bytes = 0;
      {
        KvCache cache(model->blocks(), 1, 30);
        cache.expect({.lengths = {20}, .positions = {}});
        EXPECT_TRUE(forward(context, chosen).equal(before));
        bytes = cache.bytes();
      }
      EXPECT_TRUE(forward(context, chosen).equal(before));
      const models::ModelSpec& spec = small.spec;
      int64_t numbers = 0;
      for (int64_t layer = 0; layer < spec.n_layers; ++layer) {
        const int64_t slots = spec.layer_window(layer) > 0 ? spec.layer_window(layer) : 30;
        const bool latent = spec.attention == models::Attention::kLatent;
        numbers += slots * (latent ? spec.kv_lora_rank + spec.qk_rope_head_dim : spec.n_kv_heads * spec.head_dim * 2);
      }
      EXPECT_EQ(bytes, numbers * 8) << small.what;
    });
  }
}

}  // namespace
}  // namespace titan::generate

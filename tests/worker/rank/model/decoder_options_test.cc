// Compares decoders with random options to the plain model in float64, on one rank and split over a mesh: the options
// in which families of decoders differ (models::ModelSpec) compute what they say, together and apart.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/plan/models/sizes.h"
#include "tests/worker/rank/model/random_options.h"
#include "tests/worker/rank/model/split_runs.h"
#include "tests/worker/rank/model/testing.h"
#include "worker/rank/nn/loss.h"

namespace titan::testing {
namespace {

constexpr double kMargin = 1e-4;  // Least margin of the routers' choices.

// Returns the seed in TITAN_TEST_SEED, or a random one.
uint64_t draw_seed() {
  const char* const given = std::getenv("TITAN_TEST_SEED");
  return given != nullptr ? std::stoull(given) : std::random_device()();
}

Totals run_reference(const Task& task, double* margin) {
  const ReferenceBatch batch{task.batch.tokens, task.batch.documents};
  const at::Tensor logits = reference_logits(task.spec, task.weights, batch, /*seq_len=*/24, margin).flatten(0, 1);
  const at::Tensor labels = task.batch.labels.flatten();
  const at::Tensor counted = labels.ne(nn::kIgnoreIndex);
  const at::Tensor chosen = logits.log_softmax(1).gather(1, labels.clamp_min(0).unsqueeze(1)).squeeze(1);
  const at::Tensor loss = -(chosen * counted).sum();
  std::vector<std::string> names;
  std::vector<at::Tensor> leaves;
  for (const auto& [name, value] : task.weights) {
    if (!value.requires_grad()) continue;
    names.push_back(name);
    leaves.push_back(value);
  }
  Totals totals{.loss = loss.item<double>(), .gradients = {}};
  const auto gradients = torch::autograd::grad({loss}, leaves);
  for (size_t i = 0; i < names.size(); ++i) totals.gradients[names[i]] = gradients[i];
  return totals;
}

// Draws values from the first seed that leaves every discrete choice of a router a margin.
Task decided_task(const models::ModelSpec& spec, uint64_t seed, Totals& want) {
  for (int tries = 0; tries < 100; ++tries) {
    Task task = draw_task(spec, seed + tries);
    double margin = 0;
    want = run_reference(task, &margin);
    if (margin > kMargin) return task;
  }
  throw std::runtime_error("no weights leave the routers a margin");
}

// Expects the parameters that the controller plans with, in the order of declaration.
void expect_parameters(const models::ModelSpec& spec) {
  const model::Model model = *model::build(spec, {.seq_len = 24});
  std::vector<std::pair<std::string, std::vector<int64_t>>> got, want;
  for (const auto& block : model.blocks) {
    for (const nn::Parameter& p : block->parameters()) got.push_back({p.fqn, p.shape});
  }
  for (const models::ParameterSpec& p : models::parameters(spec)) want.push_back({p.fqn, p.shape});
  EXPECT_EQ(got, want);
}

class DecoderOptionsTest : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

// The printed seed repeats a run (TITAN_TEST_SEED).
TEST_F(DecoderOptionsTest, RandomCombinationsMatchThePlainModel) {
  const uint64_t first = draw_seed();
  for (uint64_t seed = first; seed < first + 24; ++seed) {
    const models::ModelSpec spec = random_options(seed);
    SCOPED_TRACE(absl::StrCat("TITAN_TEST_SEED=", seed, ": ", options_of(spec)));
    expect_parameters(spec);
    Totals want;
    const Task task = decided_task(spec, seed, want);
    expect_same(run_whole(task), want);
    // The head computes 64 columns of the vocabulary at a time.
    expect_same(run_split(task, {.what = "parts", .degrees = {}, .world = 1, .max_logit_bytes = 1}), want);
    if (HasFailure()) return;
  }
  std::cout << "24 decoders from seed " << first << std::endl;
}

TEST_F(DecoderOptionsTest, RandomCombinationsOnMeshes) {
  const std::vector<Split> splits = {
      {.what = "tp2", .degrees = {.tp = 2}, .world = 2, .max_logit_bytes = 1},
      {.what = "tp2 without sequence parallelism", .degrees = {.tp = 2}, .world = 2, .sequence = false},
      {.what = "tp2 overlapped, whole logits", .degrees = {.tp = 2}, .world = 2, .loss_parallel = false, .async = true},
      {.what = "cp2", .degrees = {.cp = 2}, .world = 2},
      {.what = "tp2 cp2 around a ring", .degrees = {.cp = 2, .tp = 2}, .world = 4, .rotate = "alltoall"}};
  const uint64_t first = draw_seed();
  for (uint64_t seed = first; seed < first + 12; ++seed) {
    const models::ModelSpec spec = random_options(seed);
    Totals want;
    const Task task = decided_task(spec, seed, want);
    for (const Split& split : splits) {
      SCOPED_TRACE(absl::StrCat(split.what, ", TITAN_TEST_SEED=", seed, ": ", options_of(spec)));
      expect_same(run_split(task, split), want);
      if (HasFailure()) return;
    }
  }
  std::cout << "12 decoders from seed " << first << std::endl;
}

// Each option by itself changes the result, in the model and in the reference alike: none is ignored by both.
TEST_F(DecoderOptionsTest, EachOptionAlone) {
  using Spec = models::ModelSpec;
  const std::map<std::string, std::function<void(Spec&)>> options = {
      {"qk_norm_whole", [](Spec& s) { s.qk_norm = s.qk_norm_whole = true; }},
      {"attention_out_bias", [](Spec& s) { s.attention_bias = true, s.attention_out_bias = false; }},
      {"attention_scale", [](Spec& s) { s.attention_scale = 0.2; }},
      {"attention_softcap", [](Spec& s) { s.attention_softcap = 2; }},
      {"window on all layers", [](Spec& s) { s.sliding_window = 5, s.window_step = 0; }},
      {"window_first_layer", [](Spec& s) { s.sliding_window = 5, s.window_step = 0, s.window_first_layer = 1; }},
      {"window_rope_theta", [](Spec& s) { s.sliding_window = 5, s.window_rope_theta = 50; }},
      {"rotary_dim", [](Spec& s) { s.rotary_dim = 4; }},
      {"post norms", [](Spec& s) { s.norm_placement = models::NormPlacement::kPost; }},
      {"both norms", [](Spec& s) { s.norm_placement = models::NormPlacement::kBoth; }},
      {"norm_offset", [](Spec& s) { s.norm_offset = 1; }},
      {"activation", [](Spec& s) { s.activation = models::Activation::kGeluTanh; }},
      {"mlp_bias", [](Spec& s) { s.mlp_bias = true; }},
      {"embedding_scale", [](Spec& s) { s.embedding_scale = 5; }},
      {"residual_scale", [](Spec& s) { s.residual_scale = 0.3; }},
      {"logit_divisor", [](Spec& s) { s.logit_divisor = 4; }},
      {"logit_softcap", [](Spec& s) { s.logit_softcap = 4; }}};
  const Spec base = small_spec("llama3", "8B");
  const double without = run_whole(draw_task(base, 1)).loss;
  for (const auto& [name, set] : options) {
    SCOPED_TRACE(name);
    Spec spec = base;
    set(spec);
    Totals want;
    const Task task = decided_task(spec, 1, want);
    expect_same(run_whole(task), want);
    EXPECT_GT(std::abs(want.loss / without - 1), 1e-6);
  }
}

}  // namespace
}  // namespace titan::testing

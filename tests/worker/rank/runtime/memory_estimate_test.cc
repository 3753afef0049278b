// The controller's estimate of a rank's peak equals what a dry run of that rank counts, within a tenth: for every
// recipe, and with drawn shapes for every way to split a model and to save memory (ctest uses one seed;
// --gtest_random_seed=N draws others).

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/plan/config/load.h"
#include "common/plan/config/parallelism.h"
#include "common/plan/config/trained_model.h"
#include "common/plan/config/validate.h"
#include "common/plan/memory/estimate.h"
#include "common/plan/models/sizes.h"
#include "worker/rank/runtime/dry_run/dry_run.h"

namespace titan::runtime {
namespace {

namespace fs = std::filesystem;

// Limits of the difference of the estimate from the counted peak, relative to it.
constexpr double kMargin = 0.1, kFluxMargin = 0.04, kVisionMargin = 0.05, kDeepstackMargin = 0.02;

// Recipes that are not in configs/.
const std::map<std::string, std::string>& kFluxFlavors =
    *new std::map<std::string, std::string>{{"flux_dev", "flux-dev"}, {"flux_debug", "flux-debug"}};
constexpr char kFluxRecipe[] = R"(
[model]
name = "flux"
flavor = "%s"
[training]
dataset = "cc12m-wds"
[encoder]
t5_encoder = "google/t5-v1_1-xxl"
max_t5_encoding_len = 512
[resources]
device = "cuda"
)";

// A recipe of configs/ or of Flux, and command line flags.
struct Case {
  std::string recipe;
  std::string words;
};

config::LoadedConfig read(const Case& one) {
  const std::vector<std::string> words = absl::StrSplit(one.words, ' ', absl::SkipEmpty());
  if (const auto flux = kFluxFlavors.find(one.recipe); flux != kFluxFlavors.end()) {
    return config::load_text(absl::StrFormat(kFluxRecipe, flux->second), config::ConfigFormat::kToml, one.recipe, words)
        .value();
  }
  const fs::path path = fs::path(std::getenv("TITAN_SOURCE")) / "configs" / (one.recipe + ".toml");
  return config::load_file(path.string(), words).value();
}

config::JobConfig load(const Case& one) {
  config::LoadedConfig loaded = read(one);
  const absl::Status valid = config::validate(loaded);
  EXPECT_TRUE(valid.ok()) << one.recipe << " " << one.words << ": " << valid;
  config::resolve(loaded.config);
  return loaded.config;
}

int64_t counted_peak(const config::JobConfig& config, const models::ModelSpec& spec, int rank) {
  RankJob job;
  job.config = config;
  job.mode = CommMode::kDryRun;
  job.world = config.resources.ranks;
  job.rank = rank;
  return dry_run(job, spec)["bytes"]["peak"].get<int64_t>();
}

using Change = std::function<void(models::ModelSpec&)>;

// Compares one rank of each pipeline stage, but only one of the stages in the middle, which are alike. `change` alters
// the recipe's model.
void compare(const Case& one, double margin = kMargin, const Change& change = {}) {
  const config::JobConfig config = load(one);
  models::ModelSpec spec = config::resolve_model(config.model).value();
  if (change) change(spec);
  const pipeline::PipelinePlan plan = config::pipeline_plan(config, models::block_names(spec)).value();
  const int places = plan.schedule.ranks;
  for (int place = 0; place < places; ++place) {
    if (place > 1 && place + 1 < places) continue;
    const int64_t counted = counted_peak(config, spec, config.resources.ranks / places * place);
    const memory::Estimate estimate = memory::peak_memory_at(config, spec, plan, place);
    const double ratio = static_cast<double>(estimate.peak.total() + estimate.host) / static_cast<double>(counted);
    std::printf("%.3f of %7.2f GiB: %s, pipeline rank %d %s\n", ratio, static_cast<double>(counted) / (1 << 30),
                one.recipe.c_str(), place, one.words.c_str());
    EXPECT_GT(ratio, 1 - margin) << one.recipe << " " << one.words << ", pipeline rank " << place;
    EXPECT_LT(ratio, 1 + margin) << one.recipe << " " << one.words << ", pipeline rank " << place;
  }
}

std::vector<Case> recipes() {
  std::vector<Case> all;
  for (const auto& file : fs::directory_iterator(fs::path(std::getenv("TITAN_SOURCE")) / "configs"))
    all.push_back({file.path().stem().string(), ""});
  return all;
}

struct Ways {
  int ranks = 8;
  int pp = 1, replicate = 1, tp = 1, cp = 1, ep = 1, etp = 1;
  std::string more;
};

std::string words_of(const Ways& ways) {
  const auto degree = [](const char* axis, int value) {
    return value == 1 ? "" : absl::StrCat(" --parallelism.", axis, "_degree ", value);
  };
  return absl::StrCat("--nproc ", ways.ranks, " --parallelism.expert_parallel_degree ", ways.ep,
                      degree("pipeline_parallel", ways.pp), degree("data_parallel_replicate", ways.replicate),
                      degree("tensor_parallel", ways.tp), degree("context_parallel", ways.cp),
                      degree("expert_tensor_parallel", ways.etp), " ", ways.more);
}

// Adds every way to split and save once, with a drawn batch, row length, recomputation, resharding and device.
class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}

  void add(const std::string& recipe, const Ways& ways) {
    const std::string ac = " --activation_checkpoint.mode ";
    const std::string mode = any<std::string>(
        {"none", "full", "selective --activation_checkpoint.selective_ac_option op",
         "full --activation_checkpoint.layers 1,3,4",
         absl::StrCat("selective --activation_checkpoint.selective_ac_option ", any<int>({2, 3})),
         absl::StrCat("memory_budget --activation_checkpoint.memory_budget ", any<int>({2, 5, 8}) / 10.0)});
    const int rows = ways.pp > 1 ? any<int>({8, 12}) : any<int>({1, 2, 3});
    const int length = any<int>({1024, 1536, 2048, 4096}) * ways.cp;
    cases_.push_back(
        {recipe,
         absl::StrCat(words_of(ways), ac, mode, " --training.local_batch_size ", rows, " --training.global_batch_size ",
                      any<bool>({true, false}) ? -1 : 2 * rows * ways.ranks / (ways.pp * ways.tp * ways.cp),
                      " --training.seq_len ", length, " --parallelism.fsdp_reshard_after_forward ",
                      any<std::string>({"default", "default", "always", "never"}), " --resources.device ",
                      any<std::string>({"cuda", "cuda", "cpu"}), " --training.max_logits_mib ",
                      any<int>({64, -1, 0, 7, 500}))});
  }
  std::vector<Case> take() { return std::move(cases_); }

 private:
  template <typename T>
  T any(const std::vector<T>& values) {
    return values[random_() % values.size()];
  }

  std::mt19937 random_;  // It draws the same numbers on every machine.
  std::vector<Case> cases_;
};

std::vector<Case> meshes(unsigned seed) {
  Draw draw(seed);
  const std::string schedule = "--parallelism.pipeline_parallel_schedule ";
  for (const Ways& ways : std::vector<Ways>{
           {.ranks = 1},
           {.ranks = 1, .more = "--training.mixed_precision_param float32"},
           {.ranks = 2, .replicate = 2},
           {.ranks = 64},
           {.replicate = 2},
           {.more = "--training.enable_cpu_offload"},
           {.more = "--optimizer.early_step_in_backward"},
           {.more = "--optimizer.state_dtype bfloat16"},
           {.more = "--optimizer.state_dtype 8bit"},
           {.ranks = 1, .more = "--optimizer.state_dtype 8bit --training.dtype bfloat16"},
           {.tp = 2, .more = "--optimizer.state_dtype 8bit --training.enable_cpu_offload"},
           {.tp = 2},
           {.tp = 8, .more = "--parallelism.enable_async_tensor_parallel"},
           {.tp = 4, .more = "--parallelism.no_enable_sequence_parallel"},
           {.tp = 4, .more = "--parallelism.disable_loss_parallel"},
           {.cp = 4},
           {.cp = 4, .more = "--parallelism.context_parallel_rotate_method alltoall"},
           {.cp = 4, .more = "--parallelism.context_parallel_load_balancer ptrr"},
           {.replicate = 2, .tp = 2, .cp = 2},
           {.pp = 2, .more = schedule + "1F1B"},
           {.ranks = 2, .pp = 2, .more = schedule + "1F1B"},
           {.pp = 4, .tp = 2, .more = schedule + "GPipe"},
           {.pp = 4, .more = schedule + "Interleaved1F1B"},
           {.pp = 4, .more = schedule + "InterleavedZeroBubble"},
           {.pp = 4, .more = schedule + "ZBVZeroBubble"},
           {.pp = 2, .tp = 2, .cp = 2, .more = schedule + "DualPipeV"},
       }) {
    draw.add(ways.pp == 1 ? "llama3_8b" : "llama3_debug", ways);
  }
  draw.add("llama3_8b", {.pp = 2, .more = schedule + "1F1B"});
  draw.add("llama3_8b", {.pp = 4, .more = schedule + "ZBVZeroBubble"});
  for (const Ways& ways : std::vector<Ways>{{}, {.tp = 2}, {.ranks = 1}, {.pp = 2}, {.ranks = 2, .pp = 2}})
    draw.add("qwen3_0.6b", ways);  // Embedding and head are tied.
  for (const char* recipe : {"deepseek_v3_16b", "qwen3_30b_a3b", "gpt_oss_20b", "llama4_17bx16e"}) {
    draw.add(recipe, {.ranks = 16, .ep = 8});
    draw.add(recipe, {.ranks = 16, .tp = 4, .ep = 8});
    draw.add(recipe, {.ranks = 16, .tp = 2, .ep = 4, .more = "--parallelism.expert_parallel_dispatcher allgather"});
  }
  draw.add("deepseek_v3_16b", {.ranks = 16, .tp = 2, .ep = 4, .more = "--optimizer.state_dtype 8bit"});
  draw.add("gpt_oss_20b", {.ranks = 64, .ep = 2, .more = "--optimizer.state_dtype 8bit"});
  draw.add("deepseek_v3_debug", {});
  draw.add("llama4_debug", {.tp = 2, .ep = 2, .etp = 2});
  draw.add("deepseek_v3_debug", {.ranks = 2, .ep = 2, .more = "--parallelism.expert_parallel_dispatcher allgather"});
  draw.add("deepseek_v3_16b", {.pp = 2, .ep = 4, .more = schedule + "DualPipeV"});
  draw.add("deepseek_v3_debug", {.pp = 2, .ep = 2, .more = schedule + "1F1B"});
  // The shards have fewer bits than the wire.
  for (const Ways& ways : std::vector<Ways>{
           {.ranks = 1, .more = "--training.dtype bfloat16"},
           {.ranks = 4, .replicate = 4, .more = "--training.dtype bfloat16"},
           {.replicate = 2, .more = "--training.dtype bfloat16"},
           {.replicate = 2, .tp = 2, .more = "--training.dtype bfloat16 --training.enable_cpu_offload"},
           {.replicate = 2, .more = "--training.dtype bfloat16 --optimizer.early_step_in_backward"},
           {.pp = 2, .replicate = 2, .more = "--training.dtype bfloat16 " + schedule + "1F1B"},
       })
    draw.add("llama3_8b", ways);
  for (const Ways& ways : std::vector<Ways>{{}, {.replicate = 2, .tp = 2}, {.ranks = 1}}) {
    Ways muon = ways;
    muon.more = "--optimizer.name Muon";
    draw.add("llama3_8b", muon);
  }
  draw.add("llama3_8b", {.more = "--optimizer.name Muon --optimizer.state_dtype 8bit"});
  draw.add("deepseek_v3_16b", {.ranks = 16, .ep = 8, .more = "--optimizer.name Muon"});
  draw.add("deepseek_v3_16b", {.ranks = 16, .ep = 8, .more = "--optimizer.name Muon --optimizer.state_dtype bfloat16"});
  return draw.take();
}

TEST(MemoryEstimate, MatchesDryRuns) {
  std::vector<Case> cases = recipes();
  EXPECT_GE(cases.size(), 20u);
  const int seed = ::testing::UnitTest::GetInstance()->random_seed();
  for (Case& one : meshes(static_cast<unsigned>(seed))) cases.push_back(std::move(one));
  for (const Case& one : cases) compare(one);
}

// Only adapters have gradients and optimizer states. 4-bit weights are bytes, unpacked one matrix at a time.
TEST(MemoryEstimate, CountsAdaptersAndFrozenWeights) {
  const std::string lora = "--model.converters lora --resources.device cuda ", nf4 = lora + "--lora.base nf4 ";
  const std::string schedule = "--parallelism.pipeline_parallel_schedule ", rows = "--training.local_batch_size ";
  const std::string full = "--activation_checkpoint.mode full ", op = "--activation_checkpoint.selective_ac_option op ";
  const std::string experts = lora + "--lora.targets attention,moe.experts ";
  const std::string budget = "--activation_checkpoint.mode memory_budget --activation_checkpoint.memory_budget ";
  for (const auto& [recipe, ways] : std::vector<std::pair<std::string, Ways>>{
           {"llama3_8b", {.ranks = 1, .more = lora + full + rows + "1"}},
           {"llama3_8b", {.ranks = 1, .more = nf4 + full + rows + "1"}},
           {"llama3_8b", {.ranks = 1, .more = nf4 + op + rows + "2 --lora.rank 64"}},
           {"llama3_8b", {.more = lora + rows + "2 --lora.base float32"}},
           {"llama3_8b", {.more = lora + full + rows + "1 --optimizer.state_dtype 8bit"}},
           {"llama3_8b", {.more = lora + full + rows + "1 --optimizer.name Muon"}},
           {"llama3_8b", {.more = nf4 + full + rows + "1 --training.enable_cpu_offload"}},
           {"llama3_8b", {.replicate = 2, .tp = 2, .more = nf4 + op + rows + "1"}},
           {"llama3_8b", {.tp = 8, .more = lora + full + rows + "2"}},
           {"llama3_8b", {.cp = 4, .more = nf4 + rows + "1"}},
           {"llama3_8b", {.pp = 2, .more = lora + rows + "8 " + schedule + "1F1B"}},
           {"llama3_8b", {.pp = 4, .more = nf4 + rows + "8 " + schedule + "ZBVZeroBubble"}},
           {"llama3_70b", {.more = nf4 + full + rows + "1"}},
           {"qwen3_0.6b", {.ranks = 2, .more = lora + rows + "2"}},
           {"deepseek_v3_16b", {.ranks = 16, .ep = 8, .more = lora + full + rows + "2"}},
           {"deepseek_v3_16b", {.ranks = 16, .ep = 8, .more = experts + full + rows + "2"}},
           {"deepseek_v3_16b", {.ranks = 16, .tp = 2, .ep = 8, .more = experts + rows + "2 --lora.rank 64"}},
           {"qwen3_30b_a3b", {.ranks = 16, .ep = 8, .more = experts + full + rows + "1"}},
           {"llama3_8b", {.ranks = 1, .more = lora + budget + "0.5 " + rows + "2"}},
           {"llama3_8b", {.ranks = 1, .more = nf4 + budget + "0.2 " + rows + "4"}},
           {"llama3_8b", {.more = lora + budget + "0.8 " + rows + "2 --lora.rank 64 --lora.targets attention"}},
           {"llama3_8b", {.tp = 8, .more = lora + budget + "0.5 " + rows + "4"}},
           {"llama3_8b",
            {.tp = 4, .more = nf4 + budget + "0.3 " + rows + "2 --parallelism.no_enable_sequence_parallel"}},
           {"deepseek_v3_16b", {.ranks = 16, .ep = 8, .more = lora + budget + "0.5 " + rows + "2"}},
           {"deepseek_v3_16b", {.ranks = 16, .tp = 2, .ep = 8, .more = lora + budget + "0.5 " + rows + "2"}},
       }) {
    compare({recipe, words_of(ways)});
  }
}

// Norms after the branches, with an offset, over all heads; capped scores and logits; biases; scales.
TEST(MemoryEstimate, CountsOptionsOfDecoders) {
  using Spec = models::ModelSpec;
  const std::vector<std::pair<std::string, Change>> options = {{"post norms",
                                                                [](Spec& s) {
                                                                  s.norm_placement = models::NormPlacement::kPost;
                                                                  s.qk_norm = s.qk_norm_whole = true;
                                                                }},
                                                               {"both norms",
                                                                [](Spec& s) {
                                                                  s.norm_placement = models::NormPlacement::kBoth;
                                                                  s.norm_offset = 1;
                                                                  s.activation = models::Activation::kGeluTanh;
                                                                  s.embedding_scale = 60;
                                                                }},
                                                               {"caps",
                                                                [](Spec& s) {
                                                                  s.attention_softcap = 50;
                                                                  s.logit_softcap = 30;
                                                                  s.sliding_window = 512;
                                                                }},
                                                               {"biases", [](Spec& s) {
                                                                  s.attention_bias = s.mlp_bias = true;
                                                                  s.rotary_dim = 64;
                                                                  s.residual_scale = 0.2;
                                                                  s.logit_divisor = 16;
                                                                }}};
  const std::string rows = "--training.seq_len 2048 --training.local_batch_size ",
                    schedule = "--parallelism.pipeline_parallel_schedule 1F1B ";
  const std::string none = "--activation_checkpoint.mode none ", full = "--activation_checkpoint.mode full ";
  const std::string op = "--activation_checkpoint.mode selective --activation_checkpoint.selective_ac_option op ";
  const std::string cuda = "--resources.device cuda ", whole = "--training.max_logits_mib 0 ";
  for (const Ways& ways : std::vector<Ways>{{.ranks = 1, .more = none + rows + "2 " + cuda},
                                            {.ranks = 1, .more = full + rows + "1 " + cuda + whole},
                                            {.ranks = 1, .more = op + rows + "1 --resources.device cpu"},
                                            {.tp = 4, .more = none + rows + "2 " + cuda},
                                            {.tp = 4, .more = op + rows + "1 " + cuda + whole},
                                            {.cp = 4, .more = none + rows + "4 " + cuda},
                                            {.pp = 2, .more = rows + "8 " + cuda + schedule}}) {
    for (const auto& [name, change] : options) {
      SCOPED_TRACE(name);
      compare({"llama3_8b", words_of(ways)}, kMargin, [&](Spec& spec) {
        spec.n_layers = 6;
        change(spec);
      });
    }
  }
}

// Flux: double and single blocks, images and captions with their frozen encoders, and every way to split and save. A
// third of them without TITAN_LONG.
TEST(MemoryEstimate, CountsFlux) {
  const std::string full = "--activation_checkpoint.mode full ", none = "--activation_checkpoint.mode none ";
  const std::string op = "--activation_checkpoint.mode selective --activation_checkpoint.selective_ac_option op ";
  const std::string budget = "--activation_checkpoint.mode memory_budget --activation_checkpoint.memory_budget 0.5 ";
  const std::string schedule = "--parallelism.pipeline_parallel_schedule ";
  const auto rows = [](int count, int pixels) {
    return absl::StrCat("--training.local_batch_size ", count, " --training.img_size ", pixels, " ");
  };
  std::vector<Case> cases;
  for (const Ways& ways : std::vector<Ways>{
           {.ranks = 256, .replicate = 4, .more = full + rows(4, 256)},
           {.ranks = 256, .replicate = 4, .more = none + rows(4, 256)},
           {.more = full + rows(16, 256)},
           {.more = none + rows(2, 1024)},
           {.more = full + rows(2, 1024)},
           {.more = op + rows(2, 512)},
           {.more = budget + rows(2, 512)},
           {.ranks = 1, .more = full + rows(1, 256) + "--optimizer.state_dtype 8bit --training.dtype bfloat16"},
           {.replicate = 8, .more = full + rows(2, 256)},
           {.more = full + rows(2, 512) + "--training.enable_cpu_offload"},
           {.more = full + rows(2, 512) + "--training.global_batch_size 64"},
           {.more = full + rows(4, 256) + "--encoder.t5_weights int8"},
           {.ranks = 64, .more = full + rows(32, 256) + "--encoder.t5_weights int8"},
           {.more = full + rows(4, 256) + "--encoder.dtype float32"},
           {.more = none + rows(1, 256) + "--training.mixed_precision_param float32"},
           {.more = full + rows(4, 256) + "--encoder.no_shard_t5"},
           {.ranks = 64,
           .more = full + rows(4, 256) + "--training.dataloader.format encodings --training.dataset_path /e"},
           {.tp = 2, .more = none + rows(4, 256)},
           {.tp = 8, .more = full + rows(8, 512)},
           {.cp = 4, .more = none + rows(2, 1024)},
           {.cp = 4, .more = full + rows(2, 1024) + "--parallelism.context_parallel_rotate_method alltoall"},
           {.replicate = 2, .tp = 2, .cp = 2, .more = none + rows(2, 512)},
           {.pp = 2, .more = none + rows(8, 256) + schedule + "1F1B"},
           {.pp = 4, .more = full + rows(8, 256) + schedule + "Interleaved1F1B"},
           {.pp = 2, .tp = 2, .more = none + rows(8, 256) + schedule + "GPipe"},
           {.pp = 2, .more = none + rows(8, 256) + schedule + "ZBVZeroBubble"},
       }) {
    cases.push_back({"flux_dev", words_of(ways)});
  }
  cases.push_back({"flux_debug", words_of({.ranks = 1, .more = none + rows(8, 256)})});
  cases.push_back({"flux_debug", words_of({.ranks = 2, .tp = 2, .more = op + rows(8, 256)})});
  for (size_t i = 0; i < cases.size(); ++i) {
    if (i % 3 == 0 || std::getenv("TITAN_LONG") != nullptr) compare(cases[i], kFluxMargin);
  }
  // Stored encodings need no encoders, not even their sizes.
  const std::string stored = "--training.dataloader.format encodings --training.dataset_path /encodings ";
  compare({"flux_dev", words_of({.more = full + rows(4, 256) + stored + "--encoder.t5_encoder /missing"})});
}

// Options of jobs with a vision tower.
namespace tower {

constexpr char kFull[] = "--activation_checkpoint.mode full ", kNone[] = "--activation_checkpoint.mode none ";
constexpr char kByOperation[] =
    "--activation_checkpoint.mode selective --activation_checkpoint.selective_ac_option op ";
constexpr char kEveryThird[] = "--activation_checkpoint.mode selective --activation_checkpoint.selective_ac_option 3 ";
constexpr char kBudget[] = "--activation_checkpoint.mode memory_budget --activation_checkpoint.memory_budget 0.5 ";
constexpr char kSchedule[] = "--parallelism.pipeline_parallel_schedule ", kCuda[] = "--resources.device cuda ";

std::string rows(int count, int length, int images, int patches) {
  return absl::StrCat("--training.local_batch_size ", count, " --training.seq_len ", length,
                      " --data.max_images_per_batch ", images, " --data.max_patches_per_image ", patches, " ");
}

// Compares a third of the cases, all with TITAN_LONG.
void compare_some(const std::string& recipe, const std::vector<Ways>& all, double margin) {
  for (size_t i = 0; i < all.size(); ++i) {
    if (i % 3 == 0 || std::getenv("TITAN_LONG") != nullptr) compare({recipe, words_of(all[i])}, margin);
  }
}

}  // namespace tower

// A vision tower, whose layers are counted apart, its images, and every way to split and save. A third of them without
// TITAN_LONG.
TEST(MemoryEstimate, CountsVisionTowers) {
  using namespace tower;
  const std::string listed = "--activation_checkpoint.mode full --activation_checkpoint.layers 0,2,3 ";
  const std::string first_layer =
      "--parallelism.pipeline_parallel_first_stage_less_layers 5 "
      "--parallelism.pipeline_parallel_last_stage_less_layers 0 ";
  compare_some(
      "vlm_debug",
      {
          {.ranks = 1, .more = kNone + rows(4, 512, 16, 256)},
          {.ranks = 1, .more = kFull + rows(4, 1024, 4, 1024) + kCuda},
          {.ranks = 2, .more = kNone + rows(2, 2048, 8, 400) + kCuda},
          {.more = kByOperation + rows(4, 512, 16, 256) + kCuda},
          {.more = kEveryThird + rows(2, 1024, 30, 100)},
          {.more = kBudget + rows(2, 1536, 5, 700) + kCuda},
          {.ranks = 2, .more = listed + rows(2, 1024, 2, 1024) + kCuda},
          {.ranks = 4, .replicate = 2, .more = kNone + rows(1, 4096, 16, 256)},
          {.ranks = 2, .replicate = 2, .more = kFull + rows(2, 512, 2, 300) + kCuda},
          {.ranks = 2, .more = kNone + rows(2, 1024, 4, 256) + kCuda + "--training.mixed_precision_param float32"},
          {.ranks = 2, .more = kNone + rows(2, 512, 4, 256) + "--training.enable_cpu_offload"},
          {.ranks = 2, .more = kNone + rows(2, 512, 4, 256) + kCuda + "--training.global_batch_size 16"},
          {.ranks = 2, .tp = 2, .more = kNone + rows(4, 1024, 8, 512) + kCuda},
          {.ranks = 4, .tp = 4, .more = kFull + rows(2, 2048, 8, 256)},
          {.ranks = 2, .tp = 2, .more = kNone + rows(2, 512, 8, 128) + "--parallelism.no_enable_sequence_parallel"},
          {.ranks = 2, .cp = 2, .more = kNone + rows(2, 2048, 6, 600) + kCuda},
          {.ranks = 4, .cp = 4, .more = kFull + rows(1, 4096, 5, 700)},
          {.ranks = 4, .cp = 2, .more = kByOperation + rows(4, 512, 3, 256) + kCuda},
          {.ranks = 4, .tp = 2, .cp = 2, .more = kNone + rows(2, 1024, 8, 256) + kCuda},
          {.ranks = 2, .pp = 2, .more = kNone + rows(8, 512, 16, 256) + kSchedule + "1F1B"},
          {.ranks = 2, .pp = 2, .more = kFull + rows(8, 512, 16, 128) + kCuda + kSchedule + "Interleaved1F1B"},
          {.ranks = 2, .pp = 2, .more = kNone + rows(8, 512, 16, 256) + kCuda + kSchedule + "ZBVZeroBubble"},
          {.ranks = 4, .pp = 2, .tp = 2, .more = kNone + rows(4, 1024, 8, 256) + kCuda + kSchedule + "GPipe"},
          {.ranks = 4, .pp = 2, .cp = 2, .more = kNone + rows(4, 1024, 8, 256) + kSchedule + "1F1B"},
          // The first stage has one layer, so that its peak is the tower's.
          {.ranks = 2, .pp = 2, .more = kNone + rows(8, 1024, 8, 1024) + kCuda + first_layer + kSchedule + "1F1B"},
          {.ranks = 4, .pp = 2, .more = kFull + rows(4, 2048, 8, 900) + kCuda + first_layer + kSchedule + "GPipe"},
          {.ranks = 4,
           .pp = 2,
           .cp = 2,
           .more = kByOperation + rows(4, 2048, 16, 400) + kCuda + first_layer + kSchedule + "GPipe"},
      },
      kVisionMargin);
}

// Qwen3-VL's tower, whose results also go to the first layers of the decoder in wider activations, and every way to
// split and save. A third of them without TITAN_LONG.
TEST(MemoryEstimate, CountsDeepstack) {
  using namespace tower;
  const std::string listed = "--activation_checkpoint.mode full --activation_checkpoint.layers 0,1,3 ";
  const std::string large = absl::StrCat("--model.flavor 2B ", kCuda),
                    larger = absl::StrCat("--model.flavor 8B ", kCuda);
  // So that the peak is the tower's.
  const std::string few_logits = "--training.max_logits_mib 1 ", large_few = "--training.max_logits_mib 512 ";
  const std::string first_layers =
      "--parallelism.pipeline_parallel_first_stage_less_layers 3 "
      "--parallelism.pipeline_parallel_last_stage_less_layers 0 ";
  compare_some(
      "qwen3_vl_debug",
      {
          {.ranks = 1, .more = kNone + rows(4, 512, 16, 512)},
          {.ranks = 1, .more = kFull + rows(4, 1024, 4, 4096) + kCuda},
          {.ranks = 2, .more = kNone + rows(2, 2048, 8, 1600) + kCuda},
          {.more = kByOperation + rows(4, 512, 16, 512) + kCuda},
          {.more = kEveryThird + rows(2, 1024, 30, 400)},
          {.more = kBudget + rows(2, 1536, 5, 2800) + kCuda},
          {.ranks = 2, .more = listed + rows(2, 1024, 2, 4096) + kCuda},
          {.ranks = 4, .replicate = 2, .more = kNone + rows(1, 4096, 16, 1024)},
          {.ranks = 2, .replicate = 2, .more = kFull + rows(2, 512, 2, 1200) + kCuda},
          {.ranks = 2, .more = kNone + rows(2, 1024, 4, 1024) + kCuda + "--training.mixed_precision_param float32"},
          {.ranks = 2, .more = kFull + rows(2, 1024, 4, 1024) + "--training.mixed_precision_param float32"},
          {.ranks = 2, .more = kNone + rows(2, 512, 4, 1024) + "--training.enable_cpu_offload"},
          {.ranks = 2, .more = kNone + rows(2, 512, 4, 1024) + kCuda + "--training.global_batch_size 16"},
          {.ranks = 2, .tp = 2, .more = kNone + rows(4, 1024, 8, 2048) + kCuda},
          {.ranks = 4, .tp = 4, .more = kFull + rows(2, 2048, 8, 1024)},
          {.ranks = 2, .tp = 2, .more = kByOperation + rows(4, 1024, 8, 2048) + kCuda},
          {.ranks = 2, .tp = 2, .more = kNone + rows(2, 512, 8, 512) + "--parallelism.no_enable_sequence_parallel"},
          {.ranks = 2, .cp = 2, .more = kNone + rows(2, 2048, 6, 2400) + kCuda},
          {.ranks = 4, .cp = 4, .more = kFull + rows(1, 4096, 5, 2800)},
          {.ranks = 4, .cp = 2, .more = kByOperation + rows(4, 512, 3, 1024) + kCuda},
          {.ranks = 4, .tp = 2, .cp = 2, .more = kNone + rows(2, 1024, 8, 1024) + kCuda},
          {.ranks = 2, .pp = 2, .more = kNone + rows(8, 512, 16, 1024) + kSchedule + "1F1B"},
          {.ranks = 2, .pp = 2, .more = kFull + rows(8, 512, 16, 512) + kCuda + kSchedule + "Interleaved1F1B"},
          {.ranks = 2, .pp = 2, .more = kNone + rows(8, 512, 16, 1024) + kCuda + kSchedule + "ZBVZeroBubble"},
          {.ranks = 4, .pp = 2, .tp = 2, .more = kNone + rows(4, 1024, 8, 1024) + kCuda + kSchedule + "GPipe"},
          {.ranks = 4, .pp = 2, .cp = 2, .more = kNone + rows(4, 1024, 8, 1024) + kSchedule + "1F1B"},
          // The first stage has few layers, so that its peak is the tower's.
          {.ranks = 2, .pp = 2, .more = kNone + rows(8, 1024, 8, 4096) + kCuda + first_layers + kSchedule + "1F1B"},
          {.ranks = 4, .pp = 2, .more = kFull + rows(4, 2048, 8, 3600) + kCuda + first_layers + kSchedule + "GPipe"},
          {.ranks = 1, .more = kFull + rows(4, 1024, 4, 4096) + kCuda + few_logits},
          {.ranks = 1, .more = kFull + rows(4, 1024, 4, 4096) + few_logits},
          {.ranks = 2, .more = kByOperation + rows(2, 1024, 2, 4096) + kCuda + few_logits},
          {.ranks = 2, .more = kBudget + rows(2, 1024, 4, 2048) + few_logits},
          {.ranks = 2,
           .more = kFull + rows(2, 1024, 4, 1024) + few_logits + "--training.mixed_precision_param float32"},
          {.ranks = 2, .tp = 2, .more = kFull + rows(4, 1024, 8, 2048) + kCuda + few_logits},
          {.ranks = 2, .cp = 2, .more = kFull + rows(2, 2048, 6, 2400) + kCuda + few_logits},
          {.ranks = 4, .replicate = 2, .more = kEveryThird + rows(1, 4096, 16, 1024) + few_logits},
          {.ranks = 2, .pp = 2, .more = kByOperation + rows(8, 1024, 8, 4096) + first_layers + kSchedule + "GPipe"},
          {.more = kFull + rows(2, 4096, 8, 4096) + larger + large_few},
          {.tp = 8, .more = kFull + rows(4, 4096, 16, 4096) + larger + large_few},
          {.more = kByOperation + rows(1, 4096, 2, 8192) + large + large_few},
          {.more = kFull + rows(2, 4096, 8, 4096) + large},
          {.more = kNone + rows(1, 4096, 2, 16384) + large},
          {.tp = 4, .more = kByOperation + rows(2, 4096, 16, 1024) + large},
          {.cp = 4, .more = kFull + rows(1, 16384, 8, 8192) + large},
          {.ranks = 64, .replicate = 2, .more = kFull + rows(4, 4096, 16, 4096) + larger},
          {.ranks = 8, .tp = 8, .more = kNone + rows(2, 4096, 8, 4096) + larger},
          {.ranks = 16, .pp = 4, .more = kNone + rows(8, 4096, 8, 4096) + larger + kSchedule + "1F1B"},
      },
      kDeepstackMargin);
}

// The tiles of logits that QK-clip scans (nn/attention_core.h) live during one layer's forward pass, which is never the
// peak, so the estimate leaves them out.
TEST(MemoryEstimate, QkClipDoesNotRaiseThePeak) {
  const std::string clip = "--optimizer.name Muon --optimizer.qk_clip 100 --resources.device cuda ";
  const std::string none = "--activation_checkpoint.mode none ", full = "--activation_checkpoint.mode full ";
  for (const auto& [recipe, ways] : std::vector<std::pair<std::string, Ways>>{
           {"llama3_debug", {.ranks = 1, .more = clip + full}},
           {"llama3_debug", {.ranks = 2, .more = clip + none}},
           {"llama3_8b", {.more = clip + full + "--training.local_batch_size 1"}},
           {"llama3_8b", {.tp = 4, .cp = 2, .more = clip + none + "--training.local_batch_size 2"}},
           {"llama3_8b", {.pp = 2, .more = clip + full + "--parallelism.pipeline_parallel_schedule 1F1B"}},
           {"deepseek_v3_16b", {.ranks = 16, .ep = 8, .more = clip + full + "--training.local_batch_size 2"}},
       }) {
    compare({recipe, words_of(ways)});
  }
}

}  // namespace
}  // namespace titan::runtime

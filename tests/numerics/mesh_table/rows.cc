#include "tests/numerics/mesh_table/rows.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <stdexcept>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/plan/models/flux.h"
#include "common/plan/pipeline/csv.h"
#include "common/plan/pipeline/generators.h"
#include "tests/worker/rank/model/random_options.h"

namespace titan::testing {
namespace {

using Change = std::function<void(config::JobConfig&)>;

constexpr int64_t kGlobalBatch = 8, kSeqLen = 32, kCaption = 8, kImageSize = 64;

models::ModelSpec small_flux_spec() {
  return models::flux_model({.flavor = "small",
                             .dim = 32,
                             .n_heads = 4,
                             .n_double_blocks = 2,
                             .n_single_blocks = 2,
                             .in_channels = 8,
                             .txt_width = 12,
                             .vec_width = 6,
                             .time_channels = 8,
                             .axes_dim = {2, 2, 4}});
}

// The decoder of the family vlm with all features, or one with experts, after a small tower.
models::ModelSpec small_vlm_spec(bool experts) {
  models::ModelSpec spec = experts ? small_spec("qwen3_moe") : shrink(models::find("vlm", "tiny-debug").value());
  spec.name = "vlm";
  spec.mask = models::Mask::kBlockCausal;
  spec.vision = models::VisionSpec{.dim = 16,
                                   .ffn_hidden = 24,
                                   .n_layers = 3,
                                   .n_heads = 2,
                                   .channels = 1,
                                   .patch_size = 2,
                                   .position_side = 3,
                                   .out_dim = spec.dim};
  return spec;
}

// One of the decoders with random options. A bias of keys has no gradient without positions, so all layers have them.
models::ModelSpec random_spec(uint64_t seed) {
  models::ModelSpec spec = shrink(random_options(seed));
  spec.nope_layer_step = 0;
  if (spec.attention == models::Attention::kLatent) spec.n_kv_heads = spec.n_heads;
  return spec;
}

constexpr char kOptions[] = "options ";  // And a seed.

models::ModelSpec spec_of(const std::string& family) {
  if (family == "flux") return small_flux_spec();
  if (absl::StartsWith(family, "like_")) return option_spec(family);
  if (absl::StartsWith(family, kOptions)) return random_spec(std::stoull(family.substr(sizeof kOptions - 1)));
  return family == "vlm" || family == "vlm_moe" ? small_vlm_spec(family == "vlm_moe") : small_spec(family);
}

struct Degrees {
  int pp = 1, replicate = 1, shard = 1, cp = 1, tp = 1, ep = 1, etp = 1;
  int world() const { return pp * replicate * shard * cp * tp; }
};

std::string describe(const Degrees& d) {
  std::string text;
  const auto add = [&](const char* axis, int degree) {
    if (degree > 1) absl::StrAppend(&text, text.empty() ? "" : " ", axis, degree);
  };
  add("pp", d.pp), add("rep", d.replicate), add("fsdp", d.shard), add("cp", d.cp), add("tp", d.tp), add("ep", d.ep);
  if (d.ep > 1 && d.tp > 1) absl::StrAppend(&text, " etp", d.etp);
  return text.empty() ? "1 rank" : text;
}

// Collects rows; every row starts from the same settings.
class Table {
 public:
  void add(const std::string& family, const Degrees& degrees, const std::string& note, const std::string& covers,
           const std::vector<Change>& changes = {}) {
    MeshRow row;
    row.name = absl::StrCat(family, " ", describe(degrees), note.empty() ? "" : ", ", note);
    row.covers = covers;
    row.family = family;
    row.only_long = only_long_;
    MeshJob& job = row.job;
    job.spec = spec_of(family);
    job.world = degrees.world();
    job.global_batch = kGlobalBatch;
    config::JobConfig& config = job.config;
    config.training.seq_len = kSeqLen;
    config.training.img_size = kImageSize;
    config.encoder.max_t5_encoding_len = kCaption;
    config.training.local_batch_size = kGlobalBatch / (degrees.replicate * degrees.shard);
    config.activation_checkpoint.mode = "none";
    config.resources.ranks = degrees.world();
    config::ParallelismSection& parallelism = config.parallelism;
    parallelism.pipeline_parallel_degree = degrees.pp;
    parallelism.data_parallel_replicate_degree = degrees.replicate;
    parallelism.data_parallel_shard_degree = degrees.shard;
    parallelism.context_parallel_degree = degrees.cp;
    parallelism.tensor_parallel_degree = degrees.tp;
    parallelism.expert_parallel_degree = degrees.ep;
    parallelism.expert_tensor_parallel_degree = degrees.etp;
    for (const Change& change : changes) change(config);
    row.reference = family;
    if (config.optimizer.early_step_in_backward) row.reference += ", unclipped";
    if (config.debug.moe_force_load_balance) row.reference += ", balanced";
    const bool is_known =
        std::any_of(rows_.begin(), rows_.end(), [&](const MeshRow& one) { return one.name == row.name; });
    if (!is_known) rows_.push_back(std::move(row));
  }
  // Whether rows that are added later are only in the long form.
  void only_long(bool only = true) { only_long_ = only; }
  std::vector<MeshRow> take() { return std::move(rows_); }

 private:
  std::vector<MeshRow> rows_;
  bool only_long_ = false;
};

Change schedule(const std::string& name) {
  return [name](config::JobConfig& config) { config.parallelism.pipeline_parallel_schedule = name; };
}
Change layers_per_stage(int layers) {
  return [layers](config::JobConfig& config) { config.parallelism.pipeline_parallel_layers_per_stage = layers; };
}
Change no_sequence_parallel() {
  return [](config::JobConfig& config) { config.parallelism.enable_sequence_parallel = false; };
}
Change no_loss_parallel() {
  return [](config::JobConfig& config) { config.parallelism.disable_loss_parallel = true; };
}
Change ring() {
  return [](config::JobConfig& config) { config.parallelism.context_parallel_rotate_method = "alltoall"; };
}
Change by_work() {
  return [](config::JobConfig& config) { config.parallelism.context_parallel_load_balancer = "ptrr"; };
}
Change reshard(const std::string& policy) {
  return [policy](config::JobConfig& config) { config.parallelism.fsdp_reshard_after_forward = policy; };
}
Change recompute(const std::string& mode, const std::string& option = "2") {
  return [=](config::JobConfig& config) {
    config.activation_checkpoint.mode = mode;
    config.activation_checkpoint.selective_ac_option = option;
  };
}
Change accumulate(int64_t local_batch) {
  return [local_batch](config::JobConfig& config) { config.training.local_batch_size = local_batch; };
}
Change asynchronous() {
  return [](config::JobConfig& config) { config.parallelism.enable_async_tensor_parallel = true; };
}
// Uses a schedule from a file instead of one by name.
Change schedule_file(const std::string& name, int ranks, int stages_per_rank, int microbatches) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/mesh_table_", getpid(), ".csv");
  std::ofstream(path) << pipeline::to_csv(pipeline::generate(name, ranks, stages_per_rank, microbatches).value());
  return [path](config::JobConfig& config) {
    config.parallelism.pipeline_parallel_schedule = "PipelineScheduleMulti";
    config.parallelism.pipeline_parallel_schedule_csv = path;
  };
}
// Uses a split given by the user, as uneven as possible.
Change module_names() {
  return [](config::JobConfig& config) {
    config.parallelism.module_fqns_per_model_part = {
        {"tok_embeddings"}, {"layers.0", "layers.1", "layers.2", "layers.3", "layers.4", "layers.5", "norm", "output"}};
  };
}
// Early steps do not clip, so the one rank without them gets a max_norm that never clips.
Change early_steps() {
  return [](config::JobConfig& config) {
    config.optimizer.early_step_in_backward = true;
    config.training.max_norm = 1e9;
  };
}
// Assigns experts in turn. If a rank's pieces are whole rows and a multiple of the experts, each token gets the same
// experts as on one rank.
Change force_balance() {
  return [](config::JobConfig& config) { config.debug.moe_force_load_balance = true; };
}
Change offload() {
  return [](config::JobConfig& config) { config.training.enable_cpu_offload = true; };
}

// Adds Flux on every axis, in pairs and triples. torchtitan has only FSDP, HSDP and CP for it.
void flux_rows(Table& table) {
  const std::string flux = "flux";
  table.add(flux, {.shard = 4}, "full AC", "Flux FSDP", {recompute("full")});
  table.add(flux, {.shard = 2}, "selective AC op", "", {recompute("selective", "op")});
  table.add(flux, {.shard = 2}, "4 microbatches, reshard always", "", {accumulate(1), reshard("always")});
  table.add(flux, {.replicate = 4}, "", "");
  table.add(flux, {.replicate = 2, .shard = 2}, "selective AC", "", {recompute("selective")});
  table.add(flux, {.cp = 4}, "alltoall, full AC", "", {ring(), recompute("full")});
  table.add(flux, {.tp = 4}, "full AC", "", {recompute("full")});
  table.add(flux, {.pp = 2}, "1F1B", "", {schedule("1F1B")});
  table.add(flux, {.pp = 2}, "Interleaved1F1B, full AC", "", {schedule("Interleaved1F1B"), recompute("full")});
  table.add(flux, {.pp = 2, .tp = 2}, "1F1B", "", {schedule("1F1B")});
  table.add(flux, {.pp = 2, .shard = 2}, "GPipe", "", {schedule("GPipe")});
  table.add(flux, {.pp = 2, .cp = 2}, "1F1B", "", {schedule("1F1B")});
  table.add(flux, {.shard = 2, .tp = 2}, "", "");
  table.add(flux, {.shard = 2, .cp = 2}, "", "");
  table.add(flux, {.cp = 2, .tp = 2}, "selective AC op", "", {recompute("selective", "op")});
  table.add(flux, {.replicate = 2, .shard = 2, .cp = 2}, "full AC", "Flux HSDP CP 2 (8)", {recompute("full")});
  table.add(flux, {.shard = 2, .cp = 2, .tp = 2}, "full AC", "", {recompute("full")});
}

// Adds a vision-language model on every axis, in pairs and triples. Its tower is whole on every tensor rank and in the
// pipeline's first stage, and context ranks encode different images. torchtitan has only FSDP and HSDP for it.
void vlm_rows(Table& table) {
  const std::string vlm = "vlm", experts = "vlm_moe";
  table.add(vlm, {.shard = 2}, "selective AC op", "", {recompute("selective", "op")});
  table.add(vlm, {.replicate = 2, .shard = 2}, "selective AC", "", {recompute("selective")});
  table.add(vlm, {.cp = 2}, "full AC", "", {recompute("full")});
  table.add(vlm, {.tp = 2}, "no sequence parallelism", "", {no_sequence_parallel()});
  table.add(vlm, {.pp = 2}, "Interleaved1F1B, full AC", "", {schedule("Interleaved1F1B"), recompute("full")});
  table.add(vlm, {.pp = 2}, "ZBVZeroBubble", "", {schedule("ZBVZeroBubble")});
  table.add(vlm, {.pp = 2, .tp = 2}, "1F1B", "", {schedule("1F1B")});
  table.add(vlm, {.shard = 2, .tp = 2}, "", "");
  table.add(vlm, {.shard = 2, .cp = 2}, "", "");
  table.add(vlm, {.cp = 2, .tp = 2}, "alltoall", "", {ring()});
  table.add(experts, {.shard = 2, .ep = 2}, "full AC", "", {recompute("full")});
  table.only_long();
  table.add(vlm, {.shard = 4}, "full AC", "", {recompute("full")});
  table.add(vlm, {.shard = 2}, "4 microbatches, reshard always", "", {accumulate(1), reshard("always")});
  table.add(vlm, {.replicate = 4}, "", "");
  table.add(vlm, {.cp = 4}, "alltoall, full AC", "", {ring(), recompute("full")});
  table.add(vlm, {.tp = 4}, "full AC", "", {recompute("full")});
  table.add(vlm, {.pp = 2}, "1F1B", "", {schedule("1F1B")});
  table.add(vlm, {.pp = 2, .shard = 2}, "GPipe", "", {schedule("GPipe")});
  table.add(vlm, {.pp = 2, .cp = 2}, "1F1B", "", {schedule("1F1B")});
  table.add(vlm, {.shard = 2, .tp = 2}, "early steps", "", {early_steps()});
  table.add(vlm, {.cp = 2, .tp = 2}, "selective AC op", "", {recompute("selective", "op")});
  table.add(vlm, {.replicate = 2, .shard = 2, .cp = 2}, "full AC", "", {recompute("full")});
  table.add(vlm, {.shard = 2, .cp = 2, .tp = 2}, "CPU offload", "", {offload()});
  table.add(experts, {.shard = 2, .tp = 2, .ep = 4, .etp = 1}, "", "");
  table.add(experts, {.pp = 2, .cp = 2, .ep = 2}, "1F1B", "", {schedule("1F1B")});
}

// Adds decoders with the options of other families on every axis, and random options on random meshes.
void decoder_option_rows(Table& table) {
  table.add("like_gemma2", {.cp = 2, .tp = 2}, "alltoall, full AC", "", {ring(), recompute("full")});
  table.add("like_olmo2", {.shard = 2, .tp = 2}, "selective AC op", "", {recompute("selective", "op")});
  table.add("like_granite", {.pp = 2, .shard = 2}, "1F1B", "", {schedule("1F1B")});
  table.only_long();
  for (const std::string& family : option_families()) {
    table.add(family, {.shard = 2}, "", "");
    table.add(family, {.tp = 2}, "", "");
    table.add(family, {.tp = 2}, "no sequence parallelism", "", {no_sequence_parallel()});
    table.add(family, {.tp = 2}, "no loss parallelism, full AC", "", {no_loss_parallel(), recompute("full")});
    table.add(family, {.tp = 2}, "asynchronous TP, selective AC op", "",
              {asynchronous(), recompute("selective", "op")});
    table.add(family, {.cp = 2}, "", "");
    table.add(family, {.cp = 2, .tp = 2}, "alltoall, memory budget", "", {ring(), recompute("memory_budget")});
    table.add(family, {.pp = 2}, "ZBVZeroBubble", "", {schedule("ZBVZeroBubble")});
    table.add(family, {.pp = 2, .shard = 2, .tp = 2}, "1F1B", "", {schedule("1F1B")});
  }
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const std::string family = absl::StrCat(kOptions, seed);
    table.add(family, {.shard = 2, .tp = 2}, "", "");
    table.add(family, {.cp = 2, .tp = 2}, "selective AC op", "", {recompute("selective", "op")});
    table.add(family, {.pp = 2, .tp = 2}, "1F1B", "", {schedule("1F1B")});
  }
  table.only_long(false);
}

// Adds torchtitan's integration tests of language models, mesh by mesh.
void integration_rows(Table& table) {
  const std::string llama = "llama3";
  table.add(llama, {.shard = 4}, "", "default (4)");
  table.add(llama, {.shard = 4}, "selective AC op", "1D, selective AC op", {recompute("selective", "op")});
  table.add(llama, {.tp = 2}, "", "2D eager, TP 2");
  table.add(llama, {.shard = 4}, "full AC", "", {recompute("full")});
  table.add(llama, {.pp = 4}, "InterleavedZeroBubble", "PP 4 InterleavedZeroBubble",
            {schedule("InterleavedZeroBubble")});
  table.add(llama, {.pp = 2}, "ZBVZeroBubble", "PP 2 ZBV", {schedule("ZBVZeroBubble")});
  table.add(llama, {.pp = 2}, "1F1B", "PP 2 1F1B", {schedule("1F1B")});
  table.add(llama, {.pp = 2}, "GPipe", "PP 2 GPipe", {schedule("GPipe")});
  table.add(llama, {.pp = 2, .shard = 2}, "1F1B, 4 layers a stage", "PP 2 DP 2 1F1B",
            {schedule("1F1B"), layers_per_stage(4)});
  table.add(llama, {.pp = 2, .shard = 2}, "GPipe", "PP 2 DP 2 GPipe", {schedule("GPipe")});
  table.add(llama, {.pp = 2, .tp = 2}, "1F1B", "PP 2 TP 2", {schedule("1F1B")});
  table.add(llama, {.pp = 2, .shard = 2, .tp = 2}, "1F1B", "PP 2 DP 2 TP 2 (8)", {schedule("1F1B")});
  table.add(llama, {.pp = 4}, "Interleaved1F1B", "PP 4 Interleaved1F1B (4)", {schedule("Interleaved1F1B")});
  table.add(llama, {.pp = 4}, "Interleaved1F1B, 1 layer a stage", "PP 4 Interleaved1F1B, 1 layer a stage (4)",
            {schedule("Interleaved1F1B"), layers_per_stage(1)});
  table.add(llama, {.pp = 2}, "schedule from CSV", "PP 2 CSV", {schedule_file("InterleavedZeroBubble", 2, 2, 8)});
  table.add(llama, {.tp = 2}, "asynchronous TP", "async TP", {asynchronous()});
  table.add(llama, {.replicate = 4}, "", "DDP 4");
  table.add(llama, {.replicate = 2, .shard = 2}, "", "HSDP 2x2");
  table.add("llama3_packed", {.shard = 4}, "full AC", "Flex with full AC (4)", {recompute("full")});
  table.add("llama3_packed", {.shard = 4}, "selective AC op", "Flex, Varlen with selective AC (4)",
            {recompute("selective", "op")});
  table.add(llama, {.cp = 2, .tp = 2}, "selective AC op", "", {recompute("selective", "op")});
  table.add(llama, {.pp = 2, .tp = 2}, "ZBVZeroBubble, selective AC op", "",
            {schedule("ZBVZeroBubble"), recompute("selective", "op")});
  table.add("deepseek_v3", {.shard = 2, .tp = 2, .ep = 2}, "selective AC op", "", {recompute("selective", "op")});
  table.add(llama, {.shard = 2, .tp = 2}, "memory budget", "", {recompute("memory_budget")});
  table.add(llama, {.cp = 4}, "allgather", "CP 4 allgather");
  table.add(llama, {.cp = 4}, "alltoall", "CP 4 alltoall", {ring()});
  table.add(llama, {.replicate = 2, .shard = 2, .tp = 2}, "", "HSDP + TP (8)");
  table.add(llama, {.shard = 2, .cp = 2}, "", "FSDP 2 CP 2");
  table.add(llama, {.replicate = 2, .cp = 2}, "", "DDP 2 CP 2");
  table.add(llama, {.replicate = 2, .shard = 2, .cp = 2}, "", "HSDP CP 2 (8)");
  table.add(llama, {.shard = 2, .cp = 2, .tp = 2}, "", "FSDP 2 TP 2 CP 2 (8)");
  table.add(llama, {.shard = 2, .cp = 2, .tp = 2}, "CPU offload", "", {offload()});
  table.add(llama, {.shard = 2, .cp = 2, .tp = 2}, "CPU offload, early steps",
            "offload, optimizer in backward, TP 2 CP 2 DP 2 (8)", {offload(), early_steps()});
  table.add(llama, {.replicate = 2, .cp = 2, .tp = 2}, "CPU offload, early steps", "the same with DDP 2 (8)",
            {offload(), early_steps()});
  table.add(llama, {.shard = 2}, "reshard always", "reshard always (2)", {reshard("always")});
  table.add(llama, {.shard = 2}, "4 microbatches", "gradient accumulation (2)", {accumulate(1)});
  table.add(llama, {.pp = 2, .cp = 2, .tp = 2}, "1F1B", "validation TP 2 CP 2 PP 2 (8)", {schedule("1F1B")});
  table.add("deepseek_v3", {.shard = 4, .ep = 2}, "", "DeepSeek V3 FSDP 4 EP 2");
  table.add("deepseek_v3", {.pp = 2, .shard = 2, .ep = 2}, "DualPipeV", "DeepSeek V3 PP 2 EP 2 DualPipeV (4)",
            {schedule("DualPipeV")});
  table.add("deepseek_v3", {.pp = 2, .shard = 2, .tp = 2, .ep = 4, .etp = 1}, "Interleaved1F1B",
            "DeepSeek V3 PP 2 FSDP 2 TP 2 EP 4 ETP 1 (8)", {schedule("Interleaved1F1B")});
  table.add("deepseek_v3", {.pp = 2, .shard = 2, .tp = 2, .ep = 2, .etp = 2}, "Interleaved1F1B",
            "DeepSeek V3 PP 2 FSDP 2 TP 2 EP 2 ETP 2 (8)", {schedule("Interleaved1F1B")});
  table.add("deepseek_v3_packed", {.pp = 2, .shard = 4, .ep = 4}, "Interleaved1F1B, selective AC",
            "DeepSeek V3 Flex PP 2 FSDP 4 EP 4 SAC (8)", {schedule("Interleaved1F1B"), recompute("selective")});
  table.add("qwen3", {.shard = 2, .tp = 2}, "", "Qwen3 FSDP 2 TP 2 (4)");
  table.add("qwen3_moe", {.shard = 2, .tp = 2, .ep = 2, .etp = 2}, "", "Qwen3 MoE FSDP 2 TP 2 EP 2 ETP 2 (4)");
  table.add("llama4", {.pp = 2, .shard = 2, .tp = 2, .ep = 4, .etp = 1}, "1F1B", "Llama 4 PP 2 FSDP 2 TP 2 EP 4 (8)",
            {schedule("1F1B")});
  table.add("gpt_oss", {.shard = 4, .tp = 2, .ep = 4, .etp = 1}, "", "GPT-OSS FSDP 4 TP 2 EP 4 (8)");
}

// Adds every pair of axes, every schedule, every family, and meshes of four axes.
void further_rows(Table& table) {
  const std::string llama = "llama3";
  table.add(llama, {.tp = 4}, "", "");
  table.add(llama, {.tp = 2}, "no sequence parallelism", "TP 2 without SP", {no_sequence_parallel()});
  table.add(llama, {.tp = 2}, "no loss parallelism", "", {no_loss_parallel()});
  table.add(llama, {.shard = 2, .tp = 2}, "no sequence parallelism, full AC", "",
            {no_sequence_parallel(), recompute("full")});
  table.add(llama, {.replicate = 2, .tp = 2}, "", "");
  table.add(llama, {.replicate = 2, .tp = 2}, "no sequence parallelism", "", {no_sequence_parallel()});
  table.add(llama, {.cp = 2, .tp = 2}, "alltoall", "", {ring()});
  table.add(llama, {.cp = 2, .tp = 2}, "no sequence parallelism", "", {no_sequence_parallel()});
  table.add(llama, {.pp = 2, .replicate = 2}, "LoopedBFS", "", {schedule("LoopedBFS")});
  table.add(llama, {.pp = 2, .cp = 2}, "Interleaved1F1B, alltoall", "", {schedule("Interleaved1F1B"), ring()});
  table.add(llama, {.pp = 2, .tp = 2}, "ZBVZeroBubble, no sequence parallelism", "",
            {schedule("ZBVZeroBubble"), no_sequence_parallel()});
  table.add(llama, {.pp = 2, .shard = 2}, "InterleavedZeroBubble, full AC", "",
            {schedule("InterleavedZeroBubble"), recompute("full")});
  table.add(llama, {.pp = 2, .shard = 2}, "1F1B, reshard always", "", {schedule("1F1B"), reshard("always")});
  table.add(llama, {.pp = 2, .shard = 2}, "1F1B, 2 runs a step", "", {schedule("1F1B"), accumulate(2)});
  table.add(llama, {.pp = 4, .tp = 2}, "DualPipeV", "", {schedule("DualPipeV")});
  table.add(llama, {.shard = 8}, "reshard never", "", {reshard("never")});
  table.add(llama, {.cp = 8}, "alltoall, full AC", "", {ring(), recompute("full")});
  table.add("llama3_packed", {.cp = 2, .tp = 2}, "alltoall", "", {ring()});
  table.add("llama3_packed", {.pp = 2, .cp = 2}, "1F1B", "", {schedule("1F1B")});
  table.add("llama3_packed", {.cp = 2, .tp = 2}, "alltoall, by work", "", {ring(), by_work()});
  table.add("llama3_packed", {.pp = 2, .cp = 4}, "1F1B, by work", "", {schedule("1F1B"), by_work()});
  table.add("qwen3", {.pp = 2, .shard = 2}, "1F1B", "", {schedule("1F1B")});
  table.add("qwen3", {.pp = 2, .shard = 2, .tp = 2}, "ZBVZeroBubble", "", {schedule("ZBVZeroBubble")});
  table.add("qwen3", {.replicate = 2, .cp = 2, .tp = 2}, "", "");
  table.add("qwen3_moe", {.tp = 2}, "", "");
  table.add("qwen3_moe", {.cp = 2, .tp = 2, .ep = 4, .etp = 1}, "", "");
  table.add("qwen3_moe", {.pp = 2, .tp = 2}, "1F1B, no sequence parallelism", "",
            {schedule("1F1B"), no_sequence_parallel()});
  table.add("deepseek_v3", {.tp = 2}, "no sequence parallelism", "", {no_sequence_parallel()});
  table.add("deepseek_v3", {.shard = 2, .tp = 2, .ep = 4, .etp = 1}, "no sequence parallelism", "",
            {no_sequence_parallel()});
  table.add("deepseek_v3", {.replicate = 2, .shard = 2, .ep = 2}, "full AC", "HSDP EP", {recompute("full")});
  table.add("deepseek_v3", {.shard = 2, .cp = 2, .tp = 2, .ep = 8, .etp = 1}, "", "");
  table.add("deepseek_v3", {.pp = 2, .cp = 2, .tp = 2, .ep = 2, .etp = 2}, "ZBVZeroBubble", "",
            {schedule("ZBVZeroBubble")});
  table.add("deepseek_v3", {.pp = 2, .shard = 4, .ep = 2}, "InterleavedZeroBubble", "",
            {schedule("InterleavedZeroBubble")});
  table.add("llama4", {.shard = 2, .tp = 2, .ep = 2, .etp = 2}, "", "");
  table.add("llama4", {.cp = 2, .ep = 2}, "", "");
  table.add("llama4_irope", {.cp = 2, .tp = 2}, "alltoall", "", {ring()});
  table.add("llama4_irope", {.pp = 2, .shard = 2, .ep = 2}, "GPipe", "", {schedule("GPipe")});
  table.add("gpt_oss", {.tp = 2}, "", "");
  table.add("gpt_oss", {.cp = 2, .tp = 2, .ep = 2, .etp = 2}, "", "");
  table.add("gpt_oss", {.pp = 2, .cp = 2, .ep = 2}, "1F1B", "PP CP EP", {schedule("1F1B")});
  // With more expert shards than experts of a rank, experts are cut along their second dim.
  table.add("deepseek_v3", {.shard = 8, .ep = 4}, "4 experts a rank", "", {});
  table.add("qwen3_moe", {.shard = 8, .ep = 8}, "", "");
}

// Adds options that are not degrees.
void option_rows(Table& table) {
  const std::string llama = "llama3";
  table.add(llama, {.shard = 2, .tp = 4}, "asynchronous TP", "", {asynchronous()});
  table.add(llama, {.pp = 2, .tp = 2}, "asynchronous TP, ZBVZeroBubble", "",
            {schedule("ZBVZeroBubble"), asynchronous()});
  table.add(llama, {.cp = 2, .tp = 2}, "asynchronous TP, full AC", "", {asynchronous(), recompute("full")});
  table.add("deepseek_v3", {.shard = 2, .tp = 2, .ep = 4, .etp = 1}, "asynchronous TP", "", {asynchronous()});
  table.add("gpt_oss", {.shard = 2, .tp = 2, .ep = 2, .etp = 2}, "asynchronous TP", "", {asynchronous()});
  table.add(llama, {.pp = 2, .shard = 2}, "1F1B, module names", "", {schedule("1F1B"), module_names()});
  table.add("deepseek_v3", {.cp = 2, .ep = 2}, "memory budget", "", {recompute("memory_budget")});
  table.add("deepseek_v3", {.shard = 2, .tp = 2, .ep = 4, .etp = 1}, "memory budget", "", {recompute("memory_budget")});
  table.add("qwen3", {.shard = 2, .cp = 2, .tp = 2}, "no sequence parallelism", "Qwen3 FSDP TP CP, no SP",
            {no_sequence_parallel()});
  table.add("qwen3_packed", {.shard = 2, .tp = 2}, "", "");
  table.add("qwen3_packed", {.pp = 2, .cp = 2}, "1F1B, alltoall", "", {schedule("1F1B"), ring()});
  table.add("deepseek_v3_packed", {.cp = 2, .tp = 2, .ep = 2, .etp = 2}, "", "");
}

// Adds updates in the middle of the backward pass: gradients that are summed over tensor ranks, replicas, tied matrices
// or several runs of a step must be complete before.
void early_rows(Table& table) {
  const std::string llama = "llama3";
  table.add(llama, {.shard = 4}, "early steps", "", {early_steps()});
  table.add(llama, {.replicate = 2, .shard = 2, .tp = 2}, "early steps", "", {early_steps()});
  table.add(llama, {.tp = 2}, "early steps, no sequence parallelism", "", {early_steps(), no_sequence_parallel()});
  table.add(llama, {.cp = 4}, "early steps, alltoall, full AC", "", {early_steps(), ring(), recompute("full")});
  table.add(llama, {.shard = 2, .tp = 2}, "early steps, 4 microbatches", "", {early_steps(), accumulate(1)});
  table.add(llama, {.replicate = 2, .tp = 2}, "early steps, 2 microbatches, CPU offload", "",
            {early_steps(), accumulate(2), offload()});
  table.add(llama, {.shard = 2, .tp = 2}, "early steps, reshard never", "", {early_steps(), reshard("never")});
  table.add("qwen3", {.shard = 2, .tp = 2}, "early steps", "", {early_steps()});
  table.add("qwen3", {.cp = 2, .tp = 2}, "early steps, selective AC op", "",
            {early_steps(), recompute("selective", "op")});
  table.add("qwen3_moe", {.shard = 2, .tp = 2}, "early steps", "", {early_steps()});
  table.add("deepseek_v3", {.replicate = 2, .cp = 2, .tp = 2}, "early steps", "", {early_steps()});
  table.add("gpt_oss", {.shard = 2, .tp = 2}, "early steps", "", {early_steps()});
}

// Adds every way to split experts, in combination with everything that affects them. DeepSeek's routing is limited to
// groups of experts in all rows.
void expert_rows(Table& table) {
  const std::string deepseek = "deepseek_v3";
  table.add(deepseek, {.shard = 4, .ep = 4}, "forced balance", "", {force_balance()});
  table.add(deepseek, {.cp = 2, .tp = 2, .ep = 2, .etp = 2}, "forced balance", "", {force_balance()});
  table.add(deepseek, {.pp = 2, .shard = 2, .tp = 2, .ep = 4, .etp = 1}, "Interleaved1F1B, forced balance", "",
            {schedule("Interleaved1F1B"), force_balance()});
  table.add(deepseek, {.replicate = 2, .tp = 2, .ep = 2, .etp = 1}, "", "");
  table.add(deepseek, {.replicate = 2, .tp = 2, .ep = 1, .etp = 2}, "", "");
  table.add(deepseek, {.replicate = 2, .cp = 2, .tp = 2, .ep = 4, .etp = 1}, "", "");
  table.add("qwen3_moe", {.cp = 2, .tp = 2, .ep = 2, .etp = 2}, "no sequence parallelism", "",
            {no_sequence_parallel()});
  table.add("llama4", {.replicate = 2, .shard = 2, .tp = 2, .ep = 2, .etp = 2}, "full AC", "", {recompute("full")});
  table.add("llama4_irope", {.pp = 2, .cp = 2, .tp = 2, .ep = 4, .etp = 1}, "1F1B", "", {schedule("1F1B")});
  table.add("gpt_oss", {.pp = 2, .cp = 2, .tp = 2, .ep = 2, .etp = 2}, "ZBVZeroBubble", "",
            {schedule("ZBVZeroBubble")});
  table.add("gpt_oss_packed", {.shard = 2, .cp = 2, .ep = 2}, "", "");
  table.add("gpt_oss_packed", {.cp = 4, .ep = 2}, "by work", "", {by_work()});
  table.add("llama4_irope_packed", {.shard = 2, .cp = 2, .ep = 2}, "alltoall, by work", "", {ring(), by_work()});
  table.add("deepseek_v3_packed", {.cp = 2, .tp = 2, .ep = 2, .etp = 1}, "by work", "", {by_work()});
  table.add("qwen3_moe_packed", {.shard = 2, .tp = 2, .ep = 4, .etp = 1}, "", "");
  table.add(deepseek, {.shard = 2, .tp = 2, .ep = 2, .etp = 2}, "2 microbatches", "", {accumulate(2)});
  for (const char* policy : {"always", "never"}) {
    const std::string note = std::string("reshard ") + policy;
    table.add("llama3", {.shard = 2, .tp = 2}, note, "", {reshard(policy)});
    table.add(deepseek, {.shard = 4, .ep = 2}, note, "", {reshard(policy)});
    table.add("gpt_oss", {.shard = 2, .tp = 2, .ep = 2, .etp = 2}, note, "", {reshard(policy)});
  }
  table.add("qwen3", {.shard = 2, .tp = 2}, "reshard always", "", {reshard("always")});
  table.add("llama3", {.shard = 2, .cp = 2}, "reshard never", "", {reshard("never")});
  table.add("llama4", {.pp = 2, .shard = 2, .ep = 2}, "1F1B, reshard always", "",
            {schedule("1F1B"), reshard("always")});
}

// Adds every schedule with every other axis.
void schedule_rows(Table& table) {
  const std::string llama = "llama3", deepseek = "deepseek_v3";
  for (const pipeline::ScheduleKind& kind : pipeline::schedule_kinds()) {
    const Change chosen = schedule(kind.name);
    table.add(llama, {.pp = 2, .replicate = 2}, kind.name, "", {chosen});
    table.add(llama, {.pp = 2, .shard = 2}, kind.name, "", {chosen});
    table.add(llama, {.pp = 2, .cp = 2}, kind.name, "", {chosen});
    table.add(llama, {.pp = 2, .tp = 2}, kind.name, "", {chosen});
    table.add(llama, {.pp = 2, .tp = 2}, kind.name + ", no sequence parallelism", "", {chosen, no_sequence_parallel()});
    table.add(deepseek, {.pp = 2, .shard = 2, .ep = 2}, kind.name, "", {chosen});
    table.add(deepseek, {.pp = 2, .tp = 2, .ep = 2, .etp = 1}, kind.name, "", {chosen});
    table.add(deepseek, {.pp = 2, .shard = 2, .tp = 2, .ep = 2, .etp = 2}, kind.name, "", {chosen});
  }
  table.add(deepseek, {.replicate = 2, .shard = 2, .tp = 2, .ep = 2, .etp = 2}, "", "");
  table.add(deepseek, {.shard = 2, .tp = 2, .ep = 2, .etp = 2}, "no sequence parallelism", "",
            {no_sequence_parallel()});
  table.add("gpt_oss", {.shard = 2, .tp = 2, .ep = 2, .etp = 2}, "no sequence parallelism", "",
            {no_sequence_parallel()});
}

}  // namespace

const std::vector<MeshRow>& mesh_rows() {
  static const auto& rows = *new std::vector<MeshRow>([] {
    Table table;
    integration_rows(table);
    further_rows(table);
    option_rows(table);
    early_rows(table);
    expert_rows(table);
    schedule_rows(table);
    flux_rows(table);
    decoder_option_rows(table);
    vlm_rows(table);
    return table.take();
  }());
  return rows;
}

MeshJob one_rank(const MeshRow& row) {
  MeshJob job = row.job;
  job.world = 1;
  job.config.parallelism = {};
  job.config.activation_checkpoint.mode = "none";
  job.config.training.enable_cpu_offload = false;
  job.config.optimizer.early_step_in_backward = false;
  job.config.training.local_batch_size = job.global_batch;
  job.config.resources.ranks = 1;
  return job;
}

}  // namespace titan::testing

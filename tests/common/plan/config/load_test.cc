#include "common/plan/config/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "common/plan/config/assets.h"
#include "common/plan/config/fields.h"
#include "common/plan/config/json.h"
#include "common/plan/config/support.h"
#include "common/plan/config/validate.h"
#include "nlohmann/json.hpp"

namespace titan::config {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

LoadedConfig toml(std::string_view text, const std::vector<std::string>& overrides = {}) {
  absl::StatusOr<LoadedConfig> loaded = load_text(text, ConfigFormat::kToml, "a.toml", overrides);
  EXPECT_TRUE(loaded.ok()) << loaded.status().message();
  return loaded.ok() ? *std::move(loaded) : LoadedConfig();
}

std::string error(std::string_view text, const std::vector<std::string>& overrides = {}) {
  const absl::StatusOr<LoadedConfig> loaded = load_text(text, ConfigFormat::kToml, "a.toml", overrides);
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(loaded.status().message());
}

// torchtitan 0.2.2's recipe for the 8B model, as its users have it.
constexpr char kLlama8b[] = R"(# NOTE: this toml config is a preset for 64 A100 GPUs.
[job]
dump_folder = "./outputs"
description = "Llama 3 8B training"

[profiling]
enable_profiling = true
save_traces_folder = "profile_trace"
profile_freq = 100

[metrics]
log_freq = 10
enable_tensorboard = true
save_tb_folder = "tb"

[model]
name = "llama3"
flavor = "8B"
hf_assets_path = "./assets/hf/Llama-3.1-8B"
# converters = ["quantize.linear.float8"]

[optimizer]
name = "AdamW"
lr = 3e-4
eps = 1e-8

[lr_scheduler]
warmup_steps = 200  # lr scheduler warm up

[training]
local_batch_size = 1
seq_len = 8192
max_norm = 1.0  # grad norm clipping
steps = 1000
dataset = "c4"

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
pipeline_parallel_degree = 1
context_parallel_degree = 1

[checkpoint]
enable = false
folder = "checkpoint"
interval = 500
last_save_model_only = true
export_dtype = "float32"
async_mode = "disabled"  # ["disabled", "async", "async_with_pinned_mem"]

[compile]
enable = false
components = ["model", "loss"]

[activation_checkpoint]
mode = "selective"  # ["none", "selective", "full"]
selective_ac_option = "op"  # "int" = ac every positive int layer or 'op', ac based on ops policy

[quantize.linear.float8]
enable_fsdp_float8_all_gather = false
precompute_float8_dynamic_scale_for_fsdp = false
filter_fqns = ["output"]

[validation]
enable = false
dataset = "c4_validation"
freq = 500
steps = 1200
)";

TEST(LoadTest, ReadsATorchtitanRecipe) {
  const LoadedConfig loaded = toml(kLlama8b);
  EXPECT_EQ(loaded.config.model.flavor, "8B");
  EXPECT_EQ(loaded.config.optimizer.lr, 3e-4);
  EXPECT_EQ(loaded.config.training.seq_len, 8192);
  EXPECT_EQ(loaded.config.quantize.linear.float8.filter_fqns, std::vector<std::string>{"output"});
  EXPECT_EQ(loaded.config.validation.steps, 1200);
  // Options of a feature that is off change nothing; torchtitan's recipes contain them.
  ASSERT_THAT(loaded.warnings, SizeIs(1));
  EXPECT_EQ(loaded.warnings[0],
            "a.toml:63: quantize.linear.float8.filter_fqns has no effect while model.converters is []");
}

TEST(LoadTest, RefusesUnsupportedFeaturesOfARecipe) {
  EXPECT_TRUE(validate(toml(kLlama8b)).ok());  // Its dataset, c4, comes from a hub.
  const absl::Status status = validate(toml(kLlama8b, {"--fault_tolerance.enable"}));
  const std::string message(status.message());
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 0);
  EXPECT_THAT(message, HasSubstr("fault_tolerance.enable = true: fault-tolerant replicas: not supported yet"));
}

TEST(LoadTest, CommandLineWinsOverFileWinsOverDefaults) {
  const LoadedConfig loaded =
      toml("[training]\nsteps = 5\nseq_len = 64\n[checkpoint]\nenable = true\n[metrics]\nenable_tensorboard = true\n",
           {"--training.steps", "7", "--checkpoint.interval=3", "--metrics.no_enable_tensorboard",
            "--training.dataloader.order", "per_rank", "--debug.deterministic", "--quantize.linear.float8.recipe_name",
            "rowwise", "--model.converters", "", "--checkpoint.exclude_from_loading", "lr_scheduler,dataloader",
            "--debug.seed", "42"});
  EXPECT_EQ(loaded.config.training.steps, 7);
  EXPECT_EQ(loaded.config.training.seq_len, 64);
  EXPECT_EQ(loaded.config.training.local_batch_size, 8);
  EXPECT_TRUE(loaded.config.checkpoint.enable);
  EXPECT_EQ(loaded.config.checkpoint.interval, 3);
  EXPECT_FALSE(loaded.config.metrics.enable_tensorboard);
  EXPECT_EQ(loaded.config.training.dataloader.order, "per_rank");
  EXPECT_TRUE(loaded.config.debug.deterministic);
  EXPECT_EQ(loaded.config.debug.seed, 42);
  EXPECT_EQ(loaded.config.quantize.linear.float8.recipe_name, "rowwise");
  EXPECT_THAT(loaded.config.checkpoint.exclude_from_loading, ElementsAre("lr_scheduler", "dataloader"));
  EXPECT_EQ(loaded.origins.at("training.steps").file, "command line");
  EXPECT_EQ(loaded.origins.at("training.seq_len").line, 3);
}

TEST(LoadTest, CommandLineForms) {
  const LoadedConfig loaded =
      toml("", {"--nproc", "8", "--nodes=2", "--training.local-batch-size", "2", "--checkpoint.enable", "true",
                "--training.steps", "1", "--training.steps", "2", "--checkpoint.load_step", "-1",
                "--parallelism.module_fqns_per_model_part", R"([["tok_embeddings"],["norm","output"]])",
                "--parallelism.context_parallel_load_balancer", "None"});
  EXPECT_EQ(loaded.config.resources.ranks, 8);
  EXPECT_EQ(loaded.config.resources.ranks_per_node, 4);
  EXPECT_EQ(loaded.config.training.local_batch_size, 2);
  EXPECT_TRUE(loaded.config.checkpoint.enable);
  EXPECT_EQ(loaded.config.training.steps, 2);  // The last one wins.
  EXPECT_EQ(loaded.config.checkpoint.load_step, -1);
  ASSERT_TRUE(loaded.config.parallelism.module_fqns_per_model_part.has_value());
  EXPECT_THAT(*loaded.config.parallelism.module_fqns_per_model_part,
              ElementsAre(ElementsAre("tok_embeddings"), ElementsAre("norm", "output")));
  EXPECT_FALSE(loaded.config.parallelism.context_parallel_load_balancer.has_value());
  EXPECT_EQ(toml("", {"--restart.no_progress_limit", "5"}).config.restart.no_progress_limit,
            5);  // "--restart.no_progress_limit" is not the negation of a flag.
}

// A file's ranks per node go with the file's number of ranks: if the command line sets another number, ranks are placed
// freely unless it sets ranks per node too.
TEST(LoadTest, OverriddenRanksIgnoreTheFilesPlacement) {
  const std::string file = "[resources]\nranks = 8\nranks_per_node = 4\n";
  const auto per_node = [&](const std::vector<std::string>& words) {
    return toml(file, words).config.resources.ranks_per_node;
  };
  EXPECT_EQ(per_node({"--nproc", "2"}), 0);
  EXPECT_EQ(toml(file, {"--nproc", "2"}).origins.count("resources.ranks_per_node"), 0u);
  EXPECT_EQ(per_node({"--nproc", "16", "--resources.ranks_per_node", "4"}), 4);
  EXPECT_EQ(per_node({"--nproc", "16", "--nodes", "2"}), 8);
  EXPECT_EQ(per_node({"--resources.ranks", "4"}), 4);
  EXPECT_EQ(per_node({}), 4);
}

TEST(LoadTest, OlderSpellingsMeanTheirSuccessors) {
  const LoadedConfig loaded = toml(R"(
[training]
batch_size = 4
max_seq_len = 512
tensor_parallel_degree = 2
compile = true
enable_float8_linear = true
enable_loss_parallel = false
warmup_steps = 20
seed = 7
[parallelism]
replica_degree = 2
hsdp_degree = 4
pp_degree = 3
sharding_strategy = "SHARD_GRAD_OP"
[optimizer]
type = "Adam"
fused = false
[model]
tokenizer_path = "./assets/llama/tokenizer.json"
[checkpoint]
enable_checkpoint = true
model_weights_only = false
exclude_from_loading = "optim,lr_scheduler"
[float8]
filter_fqns = "output,wq"
)");
  const JobConfig& c = loaded.config;
  EXPECT_EQ(c.training.local_batch_size, 4);
  EXPECT_EQ(c.training.seq_len, 512);
  EXPECT_EQ(c.parallelism.tensor_parallel_degree, 2);
  EXPECT_TRUE(c.compile.enable);
  EXPECT_THAT(c.model.converters, ElementsAre("quantize.linear.float8"));
  EXPECT_TRUE(c.parallelism.disable_loss_parallel);
  EXPECT_EQ(c.lr_scheduler.warmup_steps, 20);
  EXPECT_EQ(c.debug.seed, 7);
  EXPECT_EQ(c.parallelism.data_parallel_replicate_degree, 2);
  EXPECT_EQ(c.parallelism.data_parallel_shard_degree, 4);
  EXPECT_EQ(c.parallelism.pipeline_parallel_degree, 3);
  EXPECT_EQ(c.parallelism.fsdp_reshard_after_forward, "never");
  EXPECT_EQ(c.optimizer.name, "Adam");
  EXPECT_EQ(c.optimizer.implementation, "foreach");
  EXPECT_EQ(c.model.hf_assets_path, "./assets/llama");
  EXPECT_TRUE(c.checkpoint.enable);
  EXPECT_FALSE(c.checkpoint.last_save_model_only);
  EXPECT_THAT(c.checkpoint.exclude_from_loading, ElementsAre("optimizer", "lr_scheduler"));
  EXPECT_THAT(c.quantize.linear.float8.filter_fqns, ElementsAre("output", "wq"));
  EXPECT_THAT(loaded.warnings, SizeIs(19));  // One warning per older spelling.
  EXPECT_EQ(loaded.warnings[0], "a.toml:3: training.batch_size is an older spelling of training.local_batch_size");
}

// This value of a later torchtitan stands for two settings.
TEST(LoadTest, ImplementationMayNameStateTypes) {
  const LoadedConfig loaded = toml("[optimizer]\nimplementation = \"fused_opt_states_bf16\"\n");
  EXPECT_EQ(loaded.config.optimizer.implementation, "fused");
  EXPECT_EQ(loaded.config.optimizer.state_dtype, "bfloat16");
  EXPECT_THAT(loaded.warnings, IsEmpty());
}

// The debug recipe of torchtitan's first year, from before [parallelism] and the converters.
TEST(LoadTest, ReadsARecipeOf2024) {
  constexpr char kRecipe[] = R"(# torchtitan Config.toml
[job]
dump_folder = "./outputs"
description = "Llama 3 debug training"
use_for_integration_test = true
[profiling]
enable_profiling = false
save_traces_folder = "profile_trace"
profile_freq = 10
[metrics]
log_freq = 1
enable_color_printing = true
enable_tensorboard = true
save_tb_folder = "tb"
[model]
name = "llama3"
flavor = "debugmodel"
norm_type = "rmsnorm"  # layernorm / np_layernorm / rmsnorm
tokenizer_path = "./torchtitan/datasets/tokenizer/original/tokenizer.model"
[optimizer]
name = "AdamW"
lr = 8e-4
[training]
batch_size = 8
seq_len = 2048
warmup_steps = 2  # lr scheduler warm up, normally 20% of the train steps
max_norm = 1.0  # grad norm clipping
steps = 10
data_parallel_degree = -1
tensor_parallel_degree = 1
compile = false
dataset = "c4_test"  # supported datasets: c4_test (2K), c4 (177M)
[experimental]
context_parallel_degree = 1
pipeline_parallel_degree = 1
pipeline_parallel_split_points = []
enable_async_tensor_parallel = false
[checkpoint]
enable_checkpoint = false
folder = "checkpoint"
interval_type = "steps"
interval = 5
model_weights_only = false
export_dtype = "float32"
async_mode = "disabled"  # ["disabled", "async", "async_with_pinned_mem"]
[activation_checkpoint]
mode = 'selective'  # ['none', 'selective', 'full']
selective_ac_option = '2'  # 'int' = ac every positive int layer or 'op', ac based on ops policy
[float8]
enable_float8_linear = false
)";
  const LoadedConfig loaded = toml(kRecipe);
  EXPECT_TRUE(validate(loaded).ok()) << validate(loaded).message();
  EXPECT_EQ(loaded.config.model.hf_assets_path, "./torchtitan/datasets/tokenizer");
  EXPECT_EQ(loaded.config.lr_scheduler.warmup_steps, 2);
  EXPECT_FALSE(loaded.config.metrics.disable_color_printing);
  EXPECT_FALSE(loaded.config.checkpoint.last_save_model_only);
  EXPECT_THAT(loaded.config.model.converters, IsEmpty());
  std::string text = kRecipe;
  text.replace(text.find("\"steps\""), 7, "\"minutes\"");
  EXPECT_THAT(error(text),
              HasSubstr("checkpoint.interval_type = \"minutes\": unknown key; checkpoint.interval counts steps"));
}

// Names are found in any case, and the warning reports the one that was taken.
TEST(LoadTest, NamesInAnyCase) {
  const LoadedConfig loaded = toml(R"([optimizer]
type = "adamw"
implementation = "For_Loop"
[[optimizer.param_groups]]
pattern = "norm"
name = "ADAM"
[lr_scheduler]
decay_type = "Cosine"
[training]
mixed_precision_param = "torch.bfloat16"
mixed_precision_reduce = "FP32"
dataset = "C4_test"
[model]
name = "LLaMA3"
flavor = "DebugModel"
converters = "Quantize.Linear.Float8"
[checkpoint]
async_mode = "ASYNC"
exclude_from_loading = ["Optimizer"]
[activation_checkpoint]
mode = "Full"
)");
  const JobConfig& c = loaded.config;
  EXPECT_EQ(c.optimizer.name, "AdamW");
  EXPECT_EQ(c.optimizer.implementation, "for-loop");
  EXPECT_EQ(c.optimizer.param_groups.at(0).name, "Adam");
  EXPECT_EQ(c.lr_scheduler.decay_type, "cosine");
  EXPECT_EQ(c.training.mixed_precision_param, "bfloat16");
  EXPECT_EQ(c.training.mixed_precision_reduce, "float32");
  EXPECT_EQ(c.training.dataset, "c4_test");
  EXPECT_EQ(c.model.name, "llama3");
  EXPECT_EQ(c.model.flavor, "debugmodel");
  EXPECT_THAT(c.model.converters, ElementsAre("quantize.linear.float8"));
  EXPECT_EQ(c.checkpoint.async_mode, "async");
  EXPECT_THAT(c.checkpoint.exclude_from_loading, ElementsAre("optimizer"));
  EXPECT_EQ(c.activation_checkpoint.mode, "full");
  EXPECT_THAT(loaded.warnings, Contains("a.toml:2: optimizer.type = \"adamw\" is read as \"AdamW\""));
  EXPECT_THAT(loaded.warnings, Contains("a.toml:14: model.name = LLaMA3: is read as \"llama3\""));
  EXPECT_THAT(error("[optimizer]\nname = \"adamx\"\n"), HasSubstr("not one of the allowed values AdamW"));
  // torchtitan accepts schedules in any case too, so the loader does not warn.
  EXPECT_THAT(toml("[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = \"gpipe\"\n").warnings,
              Not(Contains(HasSubstr("is read as"))));
}

TEST(LoadTest, ShardingStrategiesMustAgreeWithDegrees) {
  const auto reshard = [](const std::string& keys) {
    return toml("[parallelism]\n" + keys + "[resources]\nranks = 8\nranks_per_node = 4\n")
        .config.parallelism.fsdp_reshard_after_forward;
  };
  const std::string hybrid = "data_parallel_replicate_degree = 2\n";
  EXPECT_EQ(reshard("sharding_strategy = \"full_shard\"\n"), "always");
  EXPECT_EQ(reshard("sharding_strategy = \"ShardingStrategy.HYBRID_SHARD\"\n" + hybrid), "always");
  EXPECT_EQ(reshard("sharding_strategy = \"HYBRID_SHARD\"\nreplica_degree = 2\nhsdp_degree = 4\n"), "always");
  EXPECT_EQ(reshard("sharding_strategy = \"_HYBRID_SHARD_ZERO2\"\n" + hybrid), "never");
  EXPECT_EQ(reshard("sharding_strategy = \"NO_SHARD\"\ndata_parallel_replicate_degree = 8\n"), "default");
  EXPECT_EQ(reshard("sharding_strategy = \"NO_SHARD\"\ndata_parallel_shard_degree = 1\n"
                    "data_parallel_replicate_degree = 8\n"),
            "default");
  // Ranks on other axes do not count.
  EXPECT_THAT(error("[parallelism]\nsharding_strategy = \"HYBRID_SHARD\"\ntensor_parallel_degree = 4\n" + hybrid +
                    "[resources]\nranks = 8\n"),
              HasSubstr("but the degrees do not"));
  // Degrees on the command line count as well as those in the file.
  EXPECT_EQ(toml("[parallelism]\nsharding_strategy = \"HYBRID_SHARD\"\n",
                 {"--nproc", "8", "--parallelism.data_parallel_replicate_degree", "2"})
                .config.parallelism.fsdp_reshard_after_forward,
            "always");
}

// A file without a number of ranks is checked with the number from the command line.
TEST(LoadTest, ShardingStrategiesUseTheCommandLinesRanks) {
  std::vector<Problem> problems;
  const std::optional<LoadedConfig> loaded =
      load_job("[parallelism]\nsharding_strategy = \"HYBRID_SHARD\"\ndata_parallel_replicate_degree = 2\n",
               ConfigFormat::kToml, "a.toml", {"--nproc", "8"}, problems);
  ASSERT_TRUE(loaded) << to_status(problems);
  EXPECT_EQ(loaded->config.parallelism.fsdp_reshard_after_forward, "always");
  EXPECT_FALSE(load_job("# nothing\n", ConfigFormat::kToml, "a.toml", {"--nproc", "8"}, problems));
  EXPECT_THAT(format(problems.back()), HasSubstr("sets no key"));
}

TEST(LoadTest, AcceptsOlderAndAlternativeValues) {
  const LoadedConfig loaded = toml(R"([training]
dataset = "c4_mini"
fp8_linear = ""
enable_selective_ac = false
[model]
norm_type = "fused_rmsnorm"
converters = ["quantize.moe.float8"]
[parallelism]
fsdp_reshard_after_forward = false
[float8]
moe_fqns = ["experts"]
[checkpoint]
exclude_from_loading = "data_loader,lr_scheduler"
)");
  EXPECT_EQ(loaded.config.training.dataset, "c4_test");
  EXPECT_EQ(loaded.config.parallelism.fsdp_reshard_after_forward, "never");
  EXPECT_THAT(loaded.config.model.converters, ElementsAre("quantize.grouped_mm.float8"));
  EXPECT_THAT(loaded.config.checkpoint.exclude_from_loading, ElementsAre("dataloader", "lr_scheduler"));
  EXPECT_THAT(loaded.warnings, Contains("a.toml:2: training.dataset = \"c4_mini\" is read as \"c4_test\""));
  EXPECT_THAT(loaded.warnings, Contains("a.toml:3: training.fp8_linear has no effect: it is off"));
  EXPECT_THAT(loaded.warnings,
              Contains("a.toml:13: checkpoint.exclude_from_loading = \"data_loader,lr_scheduler\" with "
                       "\"data_loader\" read as \"dataloader\""));
  EXPECT_THAT(loaded.warnings,
              Contains("a.toml:9: parallelism.fsdp_reshard_after_forward = false is read as \"never\""));
}

TEST(LoadTest, LayersOfRecomputation) {
  const auto layers = [](const std::string& value, const std::vector<std::string>& words = {}) {
    return toml(value.empty() ? "" : "[activation_checkpoint]\nlayers = " + value + "\n", words)
        .config.activation_checkpoint.layers;
  };
  EXPECT_THAT(layers("[0, 4, 2]"), ElementsAre(0, 4, 2));
  EXPECT_THAT(layers("[]"), IsEmpty());
  for (const char* words : {"1,3", "[1, 3]", " 1 , 3 "})
    EXPECT_THAT(layers("", {"--activation_checkpoint.layers", words}), ElementsAre(1, 3)) << words;
  EXPECT_THAT(error("[activation_checkpoint]\nlayers = [-1]\n"), HasSubstr("a list of integers, at least 0"));
  EXPECT_THAT(toml("[activation_checkpoint]\nlayers = [1]\nselective_ac_option = \"3\"\n").warnings,
              Contains(HasSubstr("selective_ac_option = 3 has no effect")));
}

TEST(LoadTest, OlderSpellingMustAgreeWithItsSuccessor) {
  const LoadedConfig same = toml("[training]\nbatch_size = 4\nlocal_batch_size = 4\n");
  EXPECT_EQ(same.config.training.local_batch_size, 4);
  EXPECT_THAT(same.warnings, Contains("a.toml:3: training.local_batch_size has the same meaning as training.batch_size "
                                      "(a.toml:2); keep only training.local_batch_size"));
  EXPECT_THAT(
      toml("[model]\nconverters = [\"float8\"]\n[float8]\nenable_float8_linear = true\n").config.model.converters,
      ElementsAre("quantize.linear.float8"));
  EXPECT_THAT(error("[model]\nconverters = [\"float8\"]\n[float8]\nenable_float8_linear = false\n"),
              HasSubstr("contradicts it"));
  EXPECT_THAT(
      error("[training]\nbatch_size = 4\nlocal_batch_size = 8\n"),
      HasSubstr("means training.local_batch_size = 8, and training.batch_size = 4 (a.toml:2) contradicts it; keep "
                "only training.local_batch_size"));
  EXPECT_THAT(error("", {"--training.batch_size", "4", "--training.local_batch_size", "5"}), HasSubstr("keep only"));
  EXPECT_EQ(toml("[training]\nbatch_size = 4\n", {"--training.local_batch_size", "2"}).config.training.local_batch_size,
            2);
  EXPECT_EQ(toml("[training]\nlocal_batch_size = 4\n", {"--training.batch_size", "2"}).config.training.local_batch_size,
            2);
}

TEST(LoadTest, KeysWithoutAMeaningWarnOnceEach) {
  const LoadedConfig loaded = toml(R"(
[training]
gc_freq = 100
gc_debug = true
[training.dataloader]
num_workers = 4
persistent_workers = true
pin_memory = true
prefetch_factor = 2
[activation_checkpoint]
early_stop = true
determinism_check = "none"
[compile]
backend = "aot_eager"
)");
  ASSERT_THAT(loaded.warnings, SizeIs(9));
  EXPECT_EQ(loaded.warnings[0], "a.toml:3: training.gc_freq has no effect: there is no Python garbage collector");
  EXPECT_TRUE(validate(loaded).ok()) << validate(loaded).message();
}

// A missing feature that would change neither numbers nor files is named in one warning, and the job is not rejected.
TEST(LoadTest, MissingSpeedFeatureGivesOneWarning) {
  const LoadedConfig loaded = toml(R"(
[parallelism]
data_parallel_shard_degree = 4
expert_parallel_degree = 4
expert_parallel_comm_backend = "deepep"
[model]
name = "deepseek_v3"
[resources]
ranks = 4
)");
  EXPECT_TRUE(validate(loaded).ok()) << validate(loaded).message();
  EXPECT_THAT(loaded.warnings,
              ElementsAre(HasSubstr("a.toml:5: parallelism.expert_parallel_comm_backend = deepep has no effect")));
}

// compile selects the kernels of GPU ranks, unless resources.kernels selects LibTorch's operations. A CPU kernel level
// has no effect on a GPU. Settings without effect give a warning.
TEST(LoadTest, UnusedKernelSettingsGiveAWarning) {
  const auto warnings = [](const std::string& compile, const std::string& resources) {
    return toml("[compile]\n" + compile + "[resources]\n" + resources).warnings;
  };
  EXPECT_THAT(warnings("enable = true\ncomponents = [\"loss\"]\n", "device = \"cuda\"\n"), IsEmpty());
  EXPECT_THAT(warnings("enable = true\n", ""), IsEmpty());
  EXPECT_THAT(warnings("enable = false\n", "device = \"cuda\"\nkernels = \"reference\"\n"), IsEmpty());
  EXPECT_THAT(warnings("enable = true\n", "device = \"cuda\"\nkernels = \"reference\"\n"),
              ElementsAre(HasSubstr("compile.enable has no effect while resources.kernels is reference")));
  EXPECT_THAT(warnings("components = [\"loss\"]\n", ""),
              ElementsAre(HasSubstr("compile.components has no effect while compile.enable is false")));
  EXPECT_THAT(warnings("", "device = \"cuda\"\nkernels = \"avx2\"\n"),
              ElementsAre(HasSubstr("resources.kernels has no effect while resources.device is cuda")));
}

// torchtitan ignores the type too; its Qwen recipes set one together with a full last checkpoint.
TEST(LoadTest, ExportTypeOfAFullCheckpointGivesAWarning) {
  const LoadedConfig loaded =
      toml("[checkpoint]\nenable = true\nexport_dtype = \"float16\"\nlast_save_model_only = false\n");
  EXPECT_TRUE(validate(loaded).ok()) << validate(loaded).message();
  EXPECT_THAT(loaded.warnings, ElementsAre("a.toml:3: checkpoint.export_dtype has no effect while "
                                           "checkpoint.last_save_model_only is false"));
  EXPECT_THAT(toml("[checkpoint]\nenable = true\nexport_dtype = \"float16\"\n").warnings, IsEmpty());
}

TEST(LoadTest, UnusedTracesFolderGivesAWarning) {
  EXPECT_THAT(toml("[comm]\nsave_traces_folder = \"t\"\n").warnings, IsEmpty());
  EXPECT_THAT(toml("[comm]\ntrace_buf_size = 0\nsave_traces_folder = \"t\"\n").warnings,
              ElementsAre("a.toml:3: comm.save_traces_folder has no effect while comm.trace_buf_size is 0"));
}

TEST(LoadTest, ReportsAllProblemsInFileOrder) {
  const std::string message =
      error("[training]\nstep = 1\nseq_len = \"x\"\n[modle]\nname = \"a\"\nflavor = \"b\"\n[optimizer]\nlr = -1\n",
            {"--metrics.log_freq", "0"});
  EXPECT_EQ(message,
            "a.toml:2: training.step = 1: unknown key; did you mean training.steps?\n"
            "a.toml:3: training.seq_len = \"x\": expects an integer (tokens), at least 1, not a string\n"
            "a.toml:5: modle.name = \"a\": unknown section [modle]; did you mean model?\n"
            "a.toml:8: optimizer.lr = -1: out of range: expects a number, at least 0\n"
            "command line: metrics.log_freq = 0: out of range: expects an integer (steps), at least 1");
}

TEST(LoadTest, YamlAndJsonGiveTheSameAsToml) {
  const LoadedConfig a = toml(
      "[training]\nsteps = 5\nmax_norm = 2\n[training.dataloader]\norder = \"per_rank\"\n[model]\nconverters = "
      "[\"mx\"]\n"
      "[debug]\nseed = 3\n[lr_scheduler]\ndecay_ratio = 0.25\n[job]\ndescription = \"1: a # b\"\n");
  const auto yaml = load_text(
      "training:\n  steps: 5\n  max_norm: 2\n  dataloader: {order: per_rank}\nmodel:\n  converters: [mx]\n"
      "debug:\n  seed: 3\nlr_scheduler:\n  decay_ratio: 0.25\njob:\n  description: '1: a # b'\nmetrics:\n",
      ConfigFormat::kYaml, "a.yaml");
  const auto json = load_text(R"({"training": {"steps": 5, "max_norm": 2, "dataloader": {"order": "per_rank"}},
      "model": {"converters": ["mx"]}, "debug": {"seed": 3}, "lr_scheduler": {"decay_ratio": 0.25},
      "job": {"description": "1: a # b"}})",
                              ConfigFormat::kJson, "a.json");
  ASSERT_TRUE(yaml.ok()) << yaml.status().message();
  ASSERT_TRUE(json.ok()) << json.status().message();
  EXPECT_EQ(to_json(yaml->config), to_json(a.config));
  EXPECT_EQ(to_json(json->config), to_json(a.config));
}

TEST(LoadTest, YamlKeepsTextThatLooksLikeOtherTypes) {
  const auto loaded = load_text(
      "job:\n  description: 12\n  save_config_file: ~\nactivation_checkpoint:\n  selective_ac_option: 3\n"
      "checkpoint:\n  enable: True\noptimizer:\n  lr: 3e-4\ndebug:\n  seed: null\n",
      ConfigFormat::kYaml, "a.yaml");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->config.job.description, "12");
  EXPECT_FALSE(loaded->config.job.save_config_file.has_value());
  EXPECT_EQ(loaded->config.activation_checkpoint.selective_ac_option, "3");
  EXPECT_TRUE(loaded->config.checkpoint.enable);
  EXPECT_EQ(loaded->config.optimizer.lr, 3e-4);
}

TEST(LoadTest, GuessesTheFormatOfStandardInput) {
  EXPECT_EQ(guess_format("  {\"training\": {}}"), ConfigFormat::kJson);
  EXPECT_EQ(guess_format("[training]\nsteps = 1\n"), ConfigFormat::kToml);
  EXPECT_EQ(guess_format("training:\n  steps: 1\n"), ConfigFormat::kYaml);
  EXPECT_EQ(guess_format("[training\nsteps = 1\n"), ConfigFormat::kToml);
}

TEST(LoadTest, FilesAreNamedInErrors) {
  EXPECT_EQ(load_file("/nowhere/a.toml").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(load_file("/nowhere/a.toml").status().message()), HasSubstr("/nowhere/a.toml"));
  EXPECT_EQ(load_file("/etc/hostname").status().code(), absl::StatusCode::kInvalidArgument);
  const std::string source = std::getenv("TITAN_SOURCE");
  for (const char* name : {"llama3_tiny", "llama3_debug", "llama3_8b"}) {
    const auto loaded = load_file(source + "/configs/" + name + ".toml");
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_THAT(loaded->warnings, IsEmpty()) << name;
    JobConfig config = loaded->config;
    EXPECT_TRUE(validate(config).ok()) << validate(config).message();
  }
}

// Defaults select the installation's own tokenizer and text; paths that the user sets stay.
TEST(AssetsTest, DefaultsPointIntoTheInstallation) {
  setenv("TITAN_ASSETS", "/opt/assets", 1);
  JobConfig config;
  config.validation.dataset_path = "/data/mine";
  resolve_assets(config);
  EXPECT_EQ(config.model.hf_assets_path, "/opt/assets/tokenizer");
  EXPECT_EQ(config.training.dataset_path, "/opt/assets/c4_test");
  EXPECT_EQ(config.validation.dataset_path, "/data/mine");
  config = JobConfig();
  config.model.hf_assets_path = "/weights/llama";
  config.training.dataset = "c4";
  resolve_assets(config);
  EXPECT_EQ(config.model.hf_assets_path, "/weights/llama");
  // A job that trains on c4 from a hub validates on it, too.
  EXPECT_EQ(config.training.dataset_path, "hf://datasets/allenai/c4");
  EXPECT_EQ(config.validation.dataset_path, "hf://datasets/allenai/c4");
  config.validation.dataset_path.reset();
  resolve_assets(config);
  EXPECT_EQ(config.validation.dataset_path, "/opt/assets/c4_validation");  // training.dataset_path is set.
  config = JobConfig();
  config.training.dataloader.sources = {{.name = "a", .dataset = "c4_test"}, {.name = "b", .dataset_path = "/data/b"}};
  resolve_assets(config);
  EXPECT_EQ(config.training.dataloader.sources[0].dataset_path, "/opt/assets/c4_test");
  EXPECT_EQ(config.training.dataloader.sources[1].dataset_path, "/data/b");
  EXPECT_EQ(config.training.dataset_path, std::nullopt);  // No source reads training.dataset_path.
  unsetenv("TITAN_ASSETS");
}

// job.save_config_file has the configuration that the job really runs with. If the folder cannot be written, the error
// names it.
TEST(ReportTest, SavesTheConfigurationUnderTheDumpFolder) {
  const std::string dump = std::string(::testing::TempDir()) + "/titan_config_report";
  std::filesystem::remove_all(dump);
  JobConfig config;
  config.job.dump_folder = dump;
  config.training.steps = 77;
  ASSERT_TRUE(report(config).ok());
  EXPECT_FALSE(std::filesystem::exists(dump));
  config.job.save_config_file = "used/job.json";
  ASSERT_TRUE(report(config).ok());
  const auto saved = load_file(dump + "/used/job.json");
  ASSERT_TRUE(saved.ok()) << saved.status().message();
  EXPECT_EQ(saved->config.training.steps, 77);
  config.job.save_config_file = "used/job.json/below";
  const absl::Status bad = report(config);
  EXPECT_FALSE(bad.ok());
  EXPECT_THAT(std::string(bad.message()), HasSubstr("job.save_config_file: write " + dump + "/used/job.json/below"));
  std::filesystem::remove_all(dump);
}

// Messages of a check are shown in terminals and logs, so control characters in names are removed.
TEST(LoadTest, NamesAreShownWithoutControlCharacters) {
  for (const char* name : {"debug\bmodel", "a\ttab", "\x1b[2J"}) {
    JobConfig config;
    config.model.flavor = name;
    const std::string message(validate(config).message());
    EXPECT_THAT(message, HasSubstr("model.flavor"));
    for (const char c : message) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= ' ') << message;
  }
}

// YAML anchors that multiply, deep nesting and truncated or damaged files give an error or a configuration, never a
// crash.
TEST(LoadTest, DamagedFilesNeverCrash) {
  std::string bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n";
  for (char c = 'b'; c <= 'j'; ++c) {
    bomb += std::string(1, c) + ": &" + c + " [";
    for (int i = 0; i < 10; ++i) bomb += std::string(i ? ", *" : "*") + static_cast<char>(c - 1);
    bomb += "]\n";
  }
  EXPECT_EQ(load_text(bomb, ConfigFormat::kYaml, "a").status().code(), absl::StatusCode::kInvalidArgument);
  for (const ConfigFormat format : {ConfigFormat::kToml, ConfigFormat::kYaml, ConfigFormat::kJson}) {
    EXPECT_FALSE(load_text(std::string(100000, '['), format, "a").ok());
    EXPECT_FALSE(load_text(std::string(100000, '{'), format, "a").ok());
    EXPECT_FALSE(load_text(std::string(5 << 20, ' '), format, "a").ok());
  }
  std::mt19937 random(17);
  const std::string seeds[] = {
      kLlama8b, to_toml(JobConfig()), to_json(JobConfig()).dump(1),
      "training:\n  steps: 5\n  dataloader: {order: &x per_rank}\nmodel:\n  converters: [*x, \"a\\u0041\"]\n"};
  const std::string alphabet =
      "[]{}=\"'#.,:-&*!|>%@`\\\n\t \x01\xff\xc3" + std::string("0123456789eE+_abtrue") + std::string(1, char{0});
  for (int round = 0; round < 2000; ++round) {
    std::string text = seeds[round % 4];
    for (int edits = 1 + static_cast<int>(random() % 8); edits > 0 && !text.empty(); --edits) {
      const std::size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = alphabet[random() % alphabet.size()];
          break;
        case 1:
          text.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
        case 2:
          text.erase(at, 1 + random() % 20);
          break;
        case 3:
          text.resize(random() % 8 == 0 ? at : text.size());
          break;
      }
    }
    for (const ConfigFormat format : {ConfigFormat::kToml, ConfigFormat::kYaml, ConfigFormat::kJson}) {
      const auto loaded = load_text(text, format, "a");
      if (loaded.ok()) to_json(loaded->config).dump();  // Throws on invalid UTF-8.
      EXPECT_TRUE(loaded.ok() || loaded.status().code() == absl::StatusCode::kInvalidArgument);
    }
  }
}

// Any words and JSON members give a configuration or an error that names them.
TEST(LoadTest, OddWordsAndJsonNeverCrash) {
  const std::vector<std::string> words = {"--training.steps",
                                          "5",
                                          "-1",
                                          "--",
                                          "--=",
                                          "--.",
                                          "--x.y.z=",
                                          "--checkpoint.enable",
                                          "true",
                                          "--nproc",
                                          "--nodes",
                                          "0",
                                          "--nodes=-3",
                                          "--no_x",
                                          "--training.no_",
                                          "--model.converters",
                                          ",,",
                                          "\xff\xfe",
                                          "--float8.recipe_name",
                                          "--training.enable_float8_linear",
                                          "--a",
                                          "",
                                          "None",
                                          "--parallelism.module_fqns_per_model_part",
                                          "[[",
                                          "[[1]]",
                                          "--resources.ranks=1e3"};
  std::mt19937 random(23);
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> line;
    for (std::size_t length = random() % 8; line.size() < length;) line.push_back(words[random() % words.size()]);
    const auto loaded = load_overrides(line);
    if (loaded.ok()) {
      to_json(loaded->config).dump();
      (void)validate(*loaded);
    }
    EXPECT_TRUE(loaded.ok() || loaded.status().code() == absl::StatusCode::kInvalidArgument);
  }
  const nlohmann::json full = to_json(JobConfig());
  const std::vector<nlohmann::json> values = {nullptr,
                                              true,
                                              -1,
                                              1e300,
                                              UINT64_MAX,
                                              "",
                                              "None",
                                              nlohmann::json::array({1, "a"}),
                                              nlohmann::json::object(),
                                              nlohmann::json::array({nlohmann::json::array({"x"})})};
  const nlohmann::json flat = full.flatten();
  for (const auto& [pointer, old] : flat.items()) {
    for (const nlohmann::json& value : values) {
      nlohmann::json damaged = full;
      damaged[nlohmann::json::json_pointer(pointer)] = value;
      const auto config = from_json(damaged);
      if (config.ok()) (void)validate(*config);
    }
  }
}

}  // namespace
}  // namespace titan::config

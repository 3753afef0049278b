#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/plan/config/json.h"
#include "common/rank_protocol/launch.h"
#include "tests/worker/rank/comm/thread_ranks.h"
#include "tests/worker/rank/data/testing.h"
#include "worker/rank/data/loader/batch.h"
#include "worker/rank/model/language/text_batches.h"
#include "worker/rank/runtime/failure/failure.h"
#include "worker/rank/runtime/options.h"
#include "worker/rank/runtime/step/batch_plan.h"
#include "worker/rank/runtime/step/parallel_setup.h"
#include "worker/rank/runtime/step/reporter.h"
#include "worker/rank/runtime/step/step_report.h"

namespace titan::runtime {
namespace {

using namespace rank_protocol;  // For the exit codes.

TEST(BatchPlanTest, DealsRowsToRanksAndMicrobatches) {
  EXPECT_EQ(plan_batch(-1, 8, 4).value(), (BatchPlan{32, 8, 1}));
  EXPECT_EQ(plan_batch(64, 8, 2).value(), (BatchPlan{64, 8, 4}));
  // A job that resumes with more ranks keeps its global batch, in smaller pieces.
  EXPECT_EQ(plan_batch(8, 8, 2).value(), (BatchPlan{8, 4, 1}));
  EXPECT_EQ(plan_batch(12, 5, 2).value(), (BatchPlan{12, 3, 2}));
  const absl::Status uneven = plan_batch(9, 8, 2).status();
  EXPECT_EQ(uneven.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(uneven.message(), "training.global_batch_size = 9")) << uneven;
}

TEST(FdLimitTest, RankZeroNeedsDescriptorsForAllOthers) {
  EXPECT_TRUE(check_fd_limit(2, 1024).ok());
  EXPECT_TRUE(check_fd_limit(10'000, 65'536).ok());
  EXPECT_TRUE(check_fd_limit(10'000, 0).ok()) << "the limit is unknown";
  const absl::Status few = check_fd_limit(10'000, 4096);
  EXPECT_EQ(few.code(), absl::StatusCode::kFailedPrecondition);
  for (const char* expected_text : {"10000 ranks", "20128", "4096", "LimitNOFILE"}) {
    EXPECT_TRUE(absl::StrContains(few.message(), expected_text)) << few;
  }
}

// parallelism.pipeline_parallel_expert_parallel_overlap changes when work is done, but no result.
TEST(ParallelSetupTest, PairsOverlapOnlyWithTheirKey) {
  config::JobConfig config;
  config.parallelism.pipeline_parallel_degree = 2;
  config.parallelism.expert_parallel_degree = 2;
  EXPECT_TRUE(overlaps_pairs(config));
  config.parallelism.pipeline_parallel_expert_parallel_overlap = false;
  EXPECT_FALSE(overlaps_pairs(config));
}

// Returns a check that accepts rows of whole microbatches, and at least `min_count` of them.
TakesBatch pipeline_of(int64_t size, int64_t min_count) {
  return [=](int64_t rows) {
    if (rows % size != 0) return absl::InvalidArgumentError(absl::StrCat(size, " does not divide ", rows));
    return rows / size < min_count ? absl::InvalidArgumentError("too few microbatches") : absl::OkStatus();
  };
}

// If a job resumes on another mesh and its original local batch does not fit the pipeline, another local batch may.
TEST(BatchPlanTest, FindsALocalBatchThatThePipelineAccepts) {
  EXPECT_EQ(plan_batch(24, 4, 2, pipeline_of(2, 1)).value(), (BatchPlan{24, 4, 3}));
  EXPECT_EQ(plan_batch(24, 3, 2, pipeline_of(2, 1)).value(), (BatchPlan{24, 2, 6}));  // 3: not whole microbatches.
  EXPECT_EQ(plan_batch(24, 4, 2, pipeline_of(2, 3)).value(), (BatchPlan{24, 6, 2}));  // No smaller one is enough.
  const absl::Status none = plan_batch(12, 4, 4, pipeline_of(2, 1)).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kInvalidArgument);
  for (const char* part : {"training.global_batch_size = 12", "4 data-parallel ranks 3 rows", "with 3: 2 does not",
                           "with 1: 2 does not", "choose fewer"}) {
    EXPECT_TRUE(absl::StrContains(none.message(), part)) << none;
  }
}

// On any mesh all rows are dealt, the mesh accepts each piece, and every case that has a solution gets one.
TEST(BatchPlanTest, RandomMeshes) {
  const int requested_seed = ::testing::UnitTest::GetInstance()->random_seed();  // --gtest_random_seed repeats.
  const unsigned seed = requested_seed != 0 ? static_cast<unsigned>(requested_seed) : std::random_device()();
  std::mt19937 dice(seed);
  const auto draw = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(dice); };
  int refused = 0, above = 0;
  for (int i = 0; i < 4000; ++i) {
    const int64_t ranks = draw(1, 8), global = draw(1, 96), local = draw(1, 16);
    const TakesBatch takes = pipeline_of(draw(1, 4), draw(1, 8));
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", case ", i, ": ", global, " rows on ", ranks, " ranks by ", local));
    std::vector<int64_t> fitting;
    for (int64_t rows = 1; rows * ranks <= global; ++rows) {
      if (global % (ranks * rows) == 0 && takes(rows).ok()) fitting.push_back(rows);
    }
    const absl::StatusOr<BatchPlan> plan = plan_batch(global, local, ranks, takes);
    ASSERT_EQ(plan.ok(), !fitting.empty()) << plan.status();
    if (!plan.ok()) {
      ++refused;
      continue;
    }
    EXPECT_EQ(plan->global_batch, global);
    EXPECT_EQ(plan->local_batch * plan->microbatches * ranks, global);
    const auto next = std::upper_bound(fitting.begin(), fitting.end(), local);
    EXPECT_EQ(plan->local_batch, next == fitting.begin() ? *next : *std::prev(next));
    above += plan->local_batch > local ? 1 : 0;
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(above, 0);
}

// All ranks get the same sums, and a command to one rank reaches all.
TEST(StepReportTest, SumsLossesAndNormAndSpreadsCommands) {
  testing::run_ranks({.dp_replicate = 2, .dp_shard = 2}, 4, {mesh::Axis::kWorld}, [](testing::ThreadRank& self) {
    StepReport mine;
    mine.loss_sum = at::scalar_tensor(10.0 * (self.rank + 1), at::kDouble);
    mine.loss_terms = 10;
    const double counted[] = {9, 16, 0, 0};  // Ranks 2 and 3 hold what 0 and 1 hold.
    mine.sum_of_squares = at::scalar_tensor(counted[self.rank], at::kDouble);
    mine.stop = self.rank == 3;
    Exchanged all = exchange(mine, *self.mesh, at::kCPU, /*max_norm=*/0.5);
    const StepSummary summary = all.reports.summary();
    EXPECT_DOUBLE_EQ(summary.avg_loss, 2.5);
    EXPECT_DOUBLE_EQ(summary.max_loss, 4);
    EXPECT_DOUBLE_EQ(summary.grad_norm, 5);
    EXPECT_TRUE(summary.stop);
    EXPECT_FALSE(summary.checkpoint);
    EXPECT_DOUBLE_EQ(all.gate.divisor.item<double>(), 2 * (5 + 1e-6));
    EXPECT_EQ(all.gate.skip.item<float>(), 0);
  });
}

TEST(StepReportTest, OneRanksNanReachesAll) {
  testing::run_ranks({}, 2, {mesh::Axis::kWorld}, [](testing::ThreadRank& self) {
    StepReport mine;
    mine.loss_sum = at::scalar_tensor(self.rank == 0 ? std::nan("") : 1.0, at::kDouble);
    mine.loss_terms = 1;
    Exchanged all = exchange(mine, *self.mesh, at::kCPU, /*max_norm=*/1);
    const StepSummary summary = all.reports.summary();
    EXPECT_TRUE(std::isnan(summary.avg_loss));
    EXPECT_TRUE(std::isnan(summary.max_loss));
    EXPECT_EQ(all.gate.skip.item<float>(), 1);
  });
}

// The data sent at the end of a step does not grow with the number of ranks.
TEST(StepReportTest, TwoReductionsForAnyWorldSize) {
  for (const int ranks : {2, 5}) {
    testing::run_ranks({}, ranks, {mesh::Axis::kWorld}, [](testing::ThreadRank& self) {
      StepReport mine;
      mine.loss_sum = at::scalar_tensor(-1.0 - self.rank, at::kDouble);
      mine.loss_terms = self.rank == 0 ? 0 : 2;  // The loss of a rank without tokens is ignored.
      const StepSummary summary = exchange(mine, *self.mesh, at::kCPU, /*max_norm=*/1).reports.summary();
      EXPECT_DOUBLE_EQ(summary.max_loss, -1);
      const comm::LedgerCounts sent = self.ledger.counts();
      ASSERT_EQ(sent.size(), 1u);
      EXPECT_EQ(sent.at("world/all_reduce"), (comm::LedgerEntry{2, 56}));
    });
  }
}

// Finite losses do not hide non-finite gradients, or the reverse. A step without labels is skipped as well, but is not
// an error.
TEST(StepReportTest, NonFiniteStepsAreSkipped) {
  const double huge = std::numeric_limits<double>::infinity();
  const std::vector<std::tuple<double, double, double>> cases = {
      {huge, 1, 1}, {-huge, 1, 1}, {1, 1, huge}, {1, 1, std::nan("")}, {0, 0, 1}};
  testing::run_ranks({}, 2, {mesh::Axis::kWorld}, [&](testing::ThreadRank& self) {
    for (const auto& [loss, tokens, squares] : cases) {
      StepReport mine;
      const bool first = self.rank == 0;
      mine.loss_sum = at::scalar_tensor(first ? loss : 0.0, at::kDouble);
      mine.loss_terms = first ? tokens : 0.0;
      mine.sum_of_squares = at::scalar_tensor(first ? squares : 0.0, at::kDouble);
      Exchanged all = exchange(mine, *self.mesh, at::kCPU, /*max_norm=*/1);
      const StepSummary summary = all.reports.summary();
      EXPECT_EQ(std::isfinite(summary.avg_loss) && std::isfinite(summary.grad_norm), tokens == 0);
      EXPECT_EQ(all.gate.skip.item<float>(), 1) << loss << " " << tokens << " " << squares;
    }
  });
}

template <typename Throw>
Failure caught(Throw&& body) {
  try {
    body();
  } catch (...) {
    return current_failure();
  }
  return {kExitFinished, "", ""};
}

TEST(FailureTest, StatusAndExceptionsBecomeExitCodes) {
  const auto of = [](const absl::Status& status) { return caught([&] { check(status, kExitUserError, "DATA"); }); };
  EXPECT_EQ(of(absl::OkStatus()).exit_code(), kExitFinished);
  EXPECT_EQ(of(absl::NotFoundError("x")).exit_code(), kExitUserError);
  EXPECT_STREQ(of(absl::NotFoundError("x")).error_class(), "user");
  EXPECT_EQ(of(absl::FailedPreconditionError("fenced: attempt 3")).exit_code(), kExitFenced);
  EXPECT_EQ(of(absl::FailedPreconditionError("does not fit")).exit_code(), kExitUserError);
  EXPECT_EQ(of(absl::ResourceExhaustedError("no space")).exit_code(), kExitStorage);
  EXPECT_EQ(caught([] { check(absl::UnavailableError("rank 1"), kExitUserError, "WEIGHTS"); }).exit_code(),
            kExitPeerLost);
  EXPECT_EQ(caught([] { throw comm::PeerLost("gone"); }).exit_code(), kExitPeerLost);
  EXPECT_STREQ(caught([] { throw comm::PeerLost("gone"); }).error_class(), "peer");
  EXPECT_EQ(caught([] { throw std::bad_alloc(); }).exit_code(), kExitOutOfMemory);
  EXPECT_EQ(caught([] { (void)at::empty({int64_t{1} << 55}); }).exit_code(), kExitOutOfMemory);
  EXPECT_EQ(caught([] { TORCH_CHECK(false, "broken"); }).exit_code(), kExitInternal);
  EXPECT_EQ(caught([] { throw 7; }).exit_code(), kExitInternal);
}

TEST(OptionsTest, SeparatesFlagsFromOverrides) {
  const CommandLineOptions options =
      parse_options({"--config", "a.toml", "--rank=1", "--world", "2", "--store", "h:1", "--training.steps", "5",
                     "--checkpoint.enable", "--training.seq_len=64"})
          .value();
  EXPECT_EQ(options.config_file, "a.toml");
  EXPECT_EQ(options.rank, 1);
  EXPECT_EQ(options.world, 2);
  EXPECT_EQ(options.overrides,
            (std::vector<std::string>{"--training.steps", "5", "--checkpoint.enable", "--training.seq_len=64"}));
}

TEST(OptionsTest, NamesTheWrongFlag) {
  const auto message = [](const std::vector<std::string>& words) {
    return std::string(parse_options(words).status().message());
  };
  EXPECT_TRUE(absl::StrContains(message({}), "--config"));
  EXPECT_TRUE(absl::StrContains(message({"--config"}), "--config needs a value"));
  EXPECT_TRUE(absl::StrContains(message({"--rank", "-1"}), "--rank: \"-1\""));
  EXPECT_TRUE(absl::StrContains(message({"--ranks", "1"}), "--ranks: unknown flag"));
}

TEST(OptionsTest, StoreAboveTheLastPortIsRefused) {
  const auto read = [](const std::string& store) {
    return std::string(read_job({.config_file = absl::StrCat(std::getenv("TITAN_SOURCE"), "/configs/llama3_tiny.toml"),
                                 .world = 2,
                                 .store = store,
                                 .overrides = {"--resources.ranks_per_node", "8"}})
                           .status()
                           .message());
  };
  EXPECT_EQ(read("h:65535"), "");  // If 2 ranks are started by hand, they need not fill nodes of 8.
  EXPECT_TRUE(absl::StrContains(read("h:65536"), "--store: \"h:65536\": the largest port is 65535"));
}

// Ranks started by hand on a second node find their GPU by flags or by torchrun's environment.
TEST(OptionsTest, RanksOfASecondNodeHaveItsDevices) {
  const auto read = [](CommandLineOptions options) {
    options.config_file = absl::StrCat(std::getenv("TITAN_SOURCE"), "/configs/llama3_tiny.toml");
    options.store = "10.0.0.1:29500";
    options.world = 4;
    return read_job(options);
  };
  EXPECT_EQ(read({.rank = 3})->local_rank, 3) << "all on one node";
  EXPECT_EQ(read({.rank = 3})->local_ranks, 4);
  const auto second = read({.rank = 3, .local_rank = 1, .local_world = 2, .host = "10.0.0.2"});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->local_rank, 1);
  EXPECT_EQ(second->local_ranks, 2);
  EXPECT_EQ(second->host, "10.0.0.2");
  ::setenv("LOCAL_RANK", "1", 1);
  ::setenv("LOCAL_WORLD_SIZE", "2", 1);
  EXPECT_EQ(read({.rank = 3})->local_rank, 1);
  EXPECT_EQ(read({.rank = 3})->local_ranks, 2);
  EXPECT_EQ(read({.rank = 3, .local_rank = 0})->local_rank, 0) << "a flag takes precedence";
  ::setenv("LOCAL_RANK", "one", 1);
  EXPECT_TRUE(
      absl::StrContains(read({.rank = 3}).status().message(), "LOCAL_RANK: \"one\" is not an integer of 0 or more"));
  ::unsetenv("LOCAL_RANK");
  ::unsetenv("LOCAL_WORLD_SIZE");
  const auto message = [&](const CommandLineOptions& options) { return std::string(read(options).status().message()); };
  EXPECT_TRUE(absl::StrContains(message({.rank = 3, .local_rank = 2, .local_world = 2}), "this node has 2 ranks"));
  EXPECT_TRUE(absl::StrContains(message({.rank = 0, .local_world = 5}), "the job has 4 ranks in all"));
}

// A current controller stores neither key, so such a job comes from an older one and must continue as it began.
TEST(OptionsTest, AJobOfAnOlderControllerKeepsItsMeaning) {
  char folder[] = "/tmp/titan-launch-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  config::JobConfig config;
  config.validation.enable = true;
  config.validation.dataloader.order = "per_rank";
  Launch launch;
  launch.job_uid = "older";
  launch.attempt = 2;
  launch.config = config::to_json(config);
  launch.ranks = {{0, 0, "n1", "127.0.0.1"}};
  const std::string file = absl::StrCat(folder, "/launch.json");
  std::ofstream(file) << to_json(launch).dump();
  const absl::StatusOr<RankJob> job = read_job({.config_file = file});
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->config.debug.seed, 0);
  EXPECT_EQ(job->config.validation.dataloader.order, "global");
}

// Validation has its own keys for its files and for how they are read.
TEST(DataSetupTest, ValidationReadsTheKindsOfFilesThatTrainingReads) {
  const data::testing::Folder folder;
  folder.write_tokenizer(data::testing::byte_tokenizer());
  folder.write("a.txt", "one\n\ntwo");
  folder.write("b.jsonl", R"({"again": "three"})");
  config::JobConfig config;
  config.model.hf_assets_path = folder.path();
  config.validation.dataset_path = folder.path();
  config.validation.seq_len = 6;
  config::DataLoaderSection& keys = config.validation.dataloader;
  const auto first = [&] {
    const auto loader = model::open_validation_loader(config, {});
    if (!loader.ok()) return std::string(loader.status().message());
    const absl::StatusOr<data::Batch> batch = (*loader)->next();
    if (!batch.ok()) return std::string(batch.status().message());
    std::string text;
    for (int64_t i = 1; i < 5; ++i) {
      const auto token = batch->at(data::kTokens)[0][i].item<int64_t>();
      text += token < 256 ? static_cast<char>(token) : '|';
    }
    return text;
  };
  keys.text_key = "again";
  EXPECT_EQ(first(), "thre");
  keys.format = "text";
  EXPECT_EQ(first(), "one\n");
  keys.text_documents = "blank_lines";
  EXPECT_EQ(first(), "one|");
  keys.format = "parquet";
  EXPECT_TRUE(absl::StrContains(first(), "validation.dataset: dataset_path")) << first();
}

// A command of the node counts until it is acknowledged. Events are numbered lines.
TEST(ReporterTest, CommandsAndEvents) {
  char folder[] = "/tmp/titan-reporter-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  auto reporter = Reporter::open(absl::StrCat(folder, "/run"), 2, system_clock()).value();
  auto beacon = BeaconReader::open(beacon_path(absl::StrCat(folder, "/run"), 2)).value();
  EXPECT_EQ(reporter->command(), BeaconCommand::kNone);
  EXPECT_TRUE(beacon->write(beacon->page().command, static_cast<uint32_t>(BeaconCommand::kCheckpoint)).ok());
  EXPECT_EQ(reporter->command(), BeaconCommand::kCheckpoint);
  reporter->acknowledge(BeaconCommand::kCheckpoint);
  EXPECT_EQ(reporter->command(), BeaconCommand::kNone);
  ASSERT_TRUE(beacon->look().ok());
  EXPECT_EQ(beacon->page().command_seen.load(), 1U);
  reporter->finished_step(7, absl::Milliseconds(5));
  ASSERT_TRUE(beacon->look().ok());
  EXPECT_EQ(beacon->page().step.load(), 7);
  EXPECT_EQ(beacon->page().step_nanos.load(), 5'000'000);
  EXPECT_EQ(beacon->page().own_steps.load(), 0);
  reporter->own_time(absl::Milliseconds(3));
  reporter->own_time(absl::Milliseconds(4));
  ASSERT_TRUE(beacon->look().ok());
  EXPECT_EQ(beacon->page().own_steps.load(), 2);
  EXPECT_EQ(beacon->page().own_nanos.load(), 7'000'000);

  reporter->warning("careful");
  std::ifstream file(spool_path(absl::StrCat(folder, "/run"), 2));
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  EXPECT_EQ(nlohmann::json::parse(line)["message"], "careful");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace titan::runtime

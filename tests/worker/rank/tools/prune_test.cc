// Tests that old steps are removed, but never one that a job may need.

#include "worker/rank/tools/prune.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/io/storage/faulty_files.h"
#include "common/io/storage/process_identity.h"
#include "tests/worker/rank/checkpoint/fake_job.h"
#include "worker/rank/checkpoint/shards/step_reader.h"
#include "worker/rank/checkpoint/steps/step_folders.h"

namespace titan::tools {
namespace {

namespace fs = std::filesystem;
using checkpoint::testing::Attempt;
using storage::FileOperation;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PruneTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dump_ = fs::path(::testing::TempDir()) / ("prune." + std::to_string(::getpid()));
    fs::remove_all(dump_);
    checkpoint::testing::output_rows = 10;
  }
  void TearDown() override { fs::remove_all(dump_); }

  void save(const std::vector<int64_t>& steps) {
    Attempt job({.dump = dump_.string(), .world = 2, .attempt = ++attempt_});
    for (const int64_t step : steps) ASSERT_TRUE(job.save(step).ok());
  }
  fs::path folder() const { return dump_ / "checkpoint"; }
  void damage(int64_t step) {
    for (const auto& entry : fs::directory_iterator(folder() / ("step-" + std::to_string(step)))) {
      if (entry.path().extension() != ".safetensors") continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(fs::file_size(entry.path()) / 2));
      file.put('\x5a').put('\xa5');
    }
  }
  absl::Status prune(const PruneOptions& options, storage::Files& files = storage::posix_files()) {
    output_.str("");
    return tools::prune(files, folder().string(), options, output_);
  }
  std::vector<std::string> names() const {
    return storage::posix_files().list(folder().string()).value_or(std::vector<std::string>());
  }

  fs::path dump_;
  int attempt_ = 0;
  std::ostringstream output_;
};

TEST_F(PruneTest, KeepsTheNewestAndEveryKth) {
  save({1, 2, 3, 4, 5, 6});
  ASSERT_TRUE(prune({.keep = 1, .keep_every = 3, .dry_run = true}).ok());
  EXPECT_THAT(output_.str(), HasSubstr("4 steps would be removed"));
  EXPECT_EQ(names().size(), 6u) << "a dry run removes nothing";
  ASSERT_TRUE(prune({.keep = 2, .keep_every = 3}).ok());
  EXPECT_THAT(names(), ElementsAre("step-3", "step-5", "step-6"));
  EXPECT_THAT(output_.str(), HasSubstr("step-6: kept (the newest intact step)"));
  const auto loaded = Attempt({.dump = dump_.string(), .world = 1, .attempt = ++attempt_}).load();
  EXPECT_EQ(loaded->step, 6);
}

TEST_F(PruneTest, KeepsTheNewestIntactStep) {
  save({5, 10, 15});
  damage(15);
  ASSERT_TRUE(prune({.keep = 1}).ok());
  EXPECT_THAT(names(), ElementsAre("step-10", "step-15"));
  damage(10);
  EXPECT_TRUE(absl::IsDataLoss(prune({.keep = 1})));
  EXPECT_THAT(names(), ElementsAre("step-10", "step-15")) << "nothing is removed if no step is intact";
}

// The job resumed from step 5 and committed 7, so it would resume from 7.
TEST_F(PruneTest, KeepsTheStepTheJobCommittedLast) {
  save({5, 10, 15});
  save({7});
  ASSERT_TRUE(prune({.keep = 1}).ok());
  EXPECT_THAT(names(), ElementsAre("step-15", "step-7"));
  EXPECT_THAT(output_.str(), HasSubstr("step-7: kept (the newest that its job committed)"));
}

TEST_F(PruneTest, RemovesNothingWhileAJobRuns) {
  save({5, 10, 15});
  const storage::Fence fence(dump_.string());
  const storage::Fence::Claim claim{.job_uid = "job", .attempt = 7, .job = "a job", .process = "elsewhere"};
  ASSERT_TRUE(fence.raise(claim).ok());
  const absl::Status refused = prune({.keep = 1});
  EXPECT_TRUE(storage::is_in_use(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("a job"));
  EXPECT_EQ(names().size(), 3u);
  ASSERT_TRUE(fence.release("job", 7).ok());
  ASSERT_TRUE(prune({.keep = 1}).ok());
  EXPECT_THAT(names(), ElementsAre("step-15"));
  EXPECT_EQ(fence.holder()->attempt, 7) << "the folder keeps its owner";
}

TEST_F(PruneTest, KeepsAStepBeingRead) {
  save({5, 10});
  const auto reader = checkpoint::StepReader::open(storage::posix_files(), (folder() / "step-5").string());
  ASSERT_TRUE(reader.ok());
  ASSERT_TRUE(prune({.keep = 1}).ok());
  EXPECT_THAT(names(), ElementsAre("step-10", "step-5"));
  EXPECT_THAT(output_.str(), HasSubstr("step-5: kept (it is being read)"));
}

// A step is either complete or gone, wherever the run is interrupted; the next run finishes it.
TEST_F(PruneTest, InterruptedRunLeavesNoPartialStep) {
  save({5, 10, 15});
  storage::FaultyFiles breaking([](const FileOperation& operation) {
    const bool breaks = operation.kind == FileOperation::Kind::kRemoveFolder && fs::exists(operation.path);
    return storage::Fault{breaks ? absl::InternalError("interrupted") : absl::OkStatus()};
  });
  EXPECT_FALSE(prune({.keep = 1}, breaking).ok());
  const auto steps = checkpoint::list_steps(storage::posix_files(), folder().string());
  ASSERT_EQ(steps->size(), 1u);
  EXPECT_EQ(steps->front().step, 15);
  EXPECT_EQ(names().size(), 3u) << "folders being removed still exist";
  ASSERT_TRUE(prune({.keep = 1}).ok());
  EXPECT_THAT(names(), ElementsAre("step-15"));
}

TEST_F(PruneTest, RefusesAFolderWithoutSteps) {
  fs::create_directories(folder());
  EXPECT_TRUE(absl::IsNotFound(prune({.keep = 1})));
}

}  // namespace
}  // namespace titan::tools

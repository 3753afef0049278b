// Tests what the trainer relies on: saving, loading, resharding, precedence.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <future>
#include <thread>

#include "absl/time/clock.h"
#include "common/io/storage/faulty_files.h"
#include "common/rank_protocol/launch.h"
#include "tests/worker/rank/checkpoint/fake_job.h"
#include "worker/rank/checkpoint/shards/step_reader.h"
#include "worker/rank/checkpoint/steps/step_folders.h"

namespace titan::checkpoint::testing {
namespace {

using storage::posix_files;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
namespace event = rank_protocol::event;

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dump_ =
        storage::join_path(::testing::TempDir(), "checkpoint." + std::to_string(::getpid()) + "." +
                                                     ::testing::UnitTest::GetInstance()->current_test_info()->name());
    ASSERT_TRUE(posix_files().remove_folder(dump_).ok());
  }
  void TearDown() override { posix_files().remove_folder(dump_).IgnoreError(); }

  Attempt::Options options(int world = 1, int attempt = 1, Split split = Split::kRows) {
    return {.dump = dump_, .world = world, .split = split, .attempt = attempt};
  }
  std::vector<int64_t> steps() {
    std::vector<int64_t> found;
    const auto folders = list_steps(posix_files(), dump_ + "/checkpoint");
    for (const StepFolder& step : *folders) {
      if (step.has_manifest || step.has_hf_index) found.push_back(step.step);
    }
    return found;
  }
  std::vector<std::string> entries(int64_t step) { return *posix_files().list(step_path(dump_ + "/checkpoint", step)); }

  std::string dump_;
};

TEST_F(CheckpointTest, StartsFreshIfNothingCanBeLoaded) {
  const auto loaded = Attempt(options(2)).load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->source, Source::kFresh);
  EXPECT_TRUE(loaded->train_state.empty());
}

TEST_F(CheckpointTest, SavesAndLoadsTrainState) {
  Attempt first(options(2));
  ASSERT_TRUE(first.load().ok());
  ASSERT_TRUE(first.save(5).ok());
  EXPECT_THAT(entries(5), ElementsAre("a1-00000.safetensors", "a1-00001.safetensors", "manifest.json"));
  ASSERT_EQ(first.events(event::kCommitted).size(), 1u);
  EXPECT_EQ(first.events(event::kCommitted)[0].members["step"], 5);
  EXPECT_EQ(first.events(event::kCommitted)[0].members["full"], true);
  EXPECT_EQ(first.rank(1).last_committed_step(), 5);

  const auto loaded = Attempt(options(2, 2)).load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->source, Source::kCheckpoint);
  EXPECT_EQ(loaded->step, 5);
  EXPECT_EQ(loaded->train_state["ntokens_seen"], 500);
  ASSERT_EQ(loaded->per_rank.size(), 2u);
  EXPECT_EQ(loaded->per_rank[1]["rank"], 1);
}

// Any number of ranks and any split reads checkpoints of any other, bit for bit.
TEST_F(CheckpointTest, ReshardsBetweenWorldsAndSplits) {
  struct Mesh {
    int world;
    Split split;
  };
  const Mesh meshes[] = {{1, Split::kReplicated}, {2, Split::kRows},   {3, Split::kRows},   {5, Split::kRows},
                         {2, Split::kReplicated}, {4, Split::kHybrid}, {3, Split::kColumns}};
  int attempt = 0;
  for (const Mesh& from : meshes) {
    ASSERT_TRUE(posix_files().remove_folder(dump_).ok());
    const int64_t saved = ++attempt;
    ASSERT_TRUE(Attempt(options(from.world, attempt, from.split)).save(saved).ok());
    for (const Mesh& to : meshes) {
      const auto loaded = Attempt(options(to.world, ++attempt, to.split)).load(saved);
      ASSERT_TRUE(loaded.ok()) << from.world << " to " << to.world << ": " << loaded.status();
      EXPECT_EQ(loaded->step, saved);
    }
  }
}

// A rank reads only the chunks that hold its rows: a third of the ranks read about a third of the bytes.
TEST_F(CheckpointTest, ReadsOnlyWhatItNeeds) {
  output_rows = 3000;
  ASSERT_TRUE(Attempt(options(1)).save(1).ok());
  std::mutex mutex;
  std::map<int, int64_t> bytes;
  std::vector<std::unique_ptr<storage::FaultyFiles>> counting;
  for (int rank = 0; rank < 3; ++rank) {
    counting.push_back(std::make_unique<storage::FaultyFiles>([&, rank](const storage::FileOperation& operation) {
      std::lock_guard lock(mutex);
      if (operation.kind == storage::FileOperation::Kind::kRead) bytes[rank] += operation.bytes;
      return storage::Fault{};
    }));
  }
  Attempt::Options reader = options(3, 2);
  reader.committed_step = 1;  // The step is known to be committed, so it is read once.
  reader.rank_files = [&](int rank) { return counting[static_cast<size_t>(rank)].get(); };
  ASSERT_TRUE(Attempt(std::move(reader)).load(1).ok());
  // output.weight is 12 MB, twice (exp_avg). In addition to a third of it a rank reads the rest of the chunks at both
  // ends and the chunks of the small tensors.
  const int64_t third = 2 * (output_rows * 1024 * 4 / 3), chunks = 8 * kChunkBytes;
  output_rows = 650;
  EXPECT_LT(bytes[1], third + chunks);
  EXPECT_LT(bytes[2], third + chunks);
  EXPECT_GT(bytes[1], third);
}

TEST_F(CheckpointTest, ReplicatedPiecesAreWrittenOnce) {
  ASSERT_TRUE(Attempt(options(2, 1, Split::kReplicated)).save(1).ok());
  EXPECT_THAT(entries(1), ElementsAre("a1-00000.safetensors", "manifest.json"));
}

// While the writer thread waits for a slow disk, training continues and changes its tensors; the later commit holds the
// state at the moment of the save.
TEST_F(CheckpointTest, TrainingAdvancesWhileTheWriterIsBlocked) {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false, blocked = false;
  storage::FaultyFiles slow([&](const storage::FileOperation& operation) {
    if (operation.kind == storage::FileOperation::Kind::kAppend &&
        operation.path.find("safetensors") != std::string::npos) {
      std::unique_lock lock(mutex);
      blocked = true;
      changed.notify_all();
      changed.wait(lock, [&] { return open; });
    }
    return storage::Fault{};
  });
  Attempt::Options async = options(1);
  async.config.async_mode = "async";
  async.files = &slow;
  Attempt job(std::move(async));
  std::vector<Slice> live = make_slices(Split::kRows, 0, 1, 5);
  ASSERT_TRUE(job.rank(0).save(5, live, {.shared = {{"step", 5}}}).ok());
  EXPECT_EQ(job.events(event::kStaged).size(), 1u);
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return blocked; });
  }
  for (int i = 0; i < 100; ++i) {  // "Training".
    for (Slice& slice : live) slice.local.add_(1);
  }
  EXPECT_TRUE(job.rank(0).save_in_flight());
  EXPECT_TRUE(job.events(event::kCommitted).empty());
  EXPECT_THAT(steps(), ElementsAre());
  {
    std::lock_guard lock(mutex);
    open = true;
  }
  changed.notify_all();
  ASSERT_TRUE(job.wait().ok());
  EXPECT_EQ(job.events(event::kCommitted).size(), 1u);
  EXPECT_EQ(Attempt(options(1, 2)).load()->step, 5) << "with the values of step 5";
}

TEST_F(CheckpointTest, ConsecutiveAsyncSavesAllCommit) {
  Attempt::Options async = options(3);
  async.config.async_mode = "async_with_pinned_mem";
  async.config.keep_latest_k = 2;
  Attempt job(std::move(async));
  for (int64_t step = 1; step <= 6; ++step) ASSERT_TRUE(job.save(step).ok());
  ASSERT_TRUE(job.wait().ok());
  EXPECT_EQ(job.events(event::kCommitted).size(), 6u);
  EXPECT_THAT(steps(), ElementsAre(5, 6));
  EXPECT_LT(job.store_keys(), 8) << "a long job must not fill the store";
  ASSERT_EQ(job.events(event::kWarning).size(), 1u) << "reported once: there is no GPU memory";
  EXPECT_THAT(job.events(event::kWarning)[0].members["message"].get<std::string>(), HasSubstr("async_with_pinned_mem"));
  EXPECT_EQ(Attempt(options(1, 2)).load()->step, 6);
}

// A full disk on one rank fails the save on every rank, keeps what was committed, and frees the space. Training
// continues.
TEST_F(CheckpointTest, FullDiskFailsTheSaveButNotTheJob) {
  std::atomic<bool> full{false};
  storage::FaultyFiles disk([&](const storage::FileOperation& operation) {
    const bool hit = full && operation.kind == storage::FileOperation::Kind::kAppend && operation.bytes > 1000;
    return hit ? storage::Fault{absl::ResourceExhaustedError("write: No space left on device"), 500} : storage::Fault{};
  });
  Attempt::Options some = options(2);
  some.rank_files = [&](int rank) -> storage::Files* { return rank == 1 ? &disk : nullptr; };
  Attempt job(std::move(some));
  ASSERT_TRUE(job.save(1).ok());
  full = true;
  EXPECT_TRUE(job.save(2).ok());
  EXPECT_TRUE(job.save(3).ok());
  full = false;
  ASSERT_EQ(job.events(event::kCheckpointFailed).size(), 2u) << "once a save, from rank 0";
  EXPECT_THAT(job.events(event::kCheckpointFailed)[0].members["reason"].get<std::string>(),
              HasSubstr("rank 1: write: No space left"));
  EXPECT_FALSE(posix_files().exists(dump_ + "/checkpoint/step-2")) << "a failed save leaves nothing";
  EXPECT_THAT(steps(), ElementsAre(1));
  ASSERT_TRUE(job.save(4).ok());
  EXPECT_EQ(Attempt(options(2, 2)).load()->step, 4);
}

// Makes the next fsyncs on rank 1's disk fail, as many as fail() says.
class BadDisk {
 public:
  explicit BadDisk(Attempt::Options& options) {
    options.rank_files = [this](int rank) -> storage::Files* { return rank == 1 ? &files_ : nullptr; };
  }
  void fail(int times) { left_ = times; }

 private:
  std::atomic<int> left_{0};
  storage::FaultyFiles files_{[this](const storage::FileOperation& operation) {
    const bool hit = operation.kind == storage::FileOperation::Kind::kSync && left_ > 0;
    if (hit) --left_;
    return hit ? storage::Fault{absl::InternalError("fsync: Input/output error")} : storage::Fault{};
  }};
};

TEST_F(CheckpointTest, ConsecutiveFailedSavesEndTheJob) {
  Attempt::Options strict = options(2);
  BadDisk disk(strict);
  strict.failed_saves_allowed = 2;
  Attempt job(std::move(strict));
  disk.fail(1000);
  EXPECT_TRUE(job.save(1).ok());
  const absl::Status second = job.save(2);
  EXPECT_EQ(second.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(second.message()), HasSubstr("failed saves in a row: 2 (checkpoint.max_failed_saves = 2)"));
  EXPECT_FALSE(job.save_last(3).ok()) << "the last save always reports its failure";
  // A successful save resets the count of failures.
  disk.fail(0);
  ASSERT_TRUE(job.save(4).ok());
  disk.fail(1);
  EXPECT_TRUE(job.save(5).ok());
}

// If a failed save would lose state that exists only in memory, all ranks stay, report the failure and try again until
// the save succeeds.
TEST_F(CheckpointTest, RetriesSavesWhoseStateWouldBeLost) {
  Attempt::Options patient = options(2);
  BadDisk disk(patient);
  patient.failed_saves_allowed = 2;
  patient.config.last_save_retry_seconds = 600;
  patient.config.last_save_model_only = false;
  Attempt job(std::move(patient));
  disk.fail(2);
  ASSERT_TRUE(job.save_last(1).ok());
  EXPECT_TRUE(job.events(event::kCheckpointFailed).empty());
  ASSERT_EQ(job.events(event::kWarning).size(), 2u);
  EXPECT_THAT(job.events(event::kWarning)[0].members["message"].get<std::string>(),
              AllOf(HasSubstr("step 1 could not be saved: rank 1: "),
                    HasSubstr("fsync: Input/output error; try 2 in 1ms"), HasSubstr("giving up in 10m")));
  EXPECT_EQ(job.tries(), 2 * 2) << "each rank reports that it is still trying";

  // The last failure that max_failed_saves allows: the first is an event, the second would end the attempt.
  disk.fail(3);
  ASSERT_TRUE(job.save(2).ok());
  EXPECT_EQ(job.events(event::kCheckpointFailed).size(), 1u);
  ASSERT_TRUE(job.save(3).ok());
  EXPECT_EQ(job.events(event::kCheckpointFailed).size(), 1u);

  // Before a stop the ranks retry during its grace period: rank 0's value counts, not that of another rank.
  const auto stop = [&](int64_t step, absl::Duration timeout) {
    return job.run([&](int rank, Checkpointer& checkpointer) {
      return checkpointer.save_before_stop(step, make_slices(Split::kRows, rank, 2, step), {.shared = {{"step", step}}},
                                           rank == 0 ? timeout : absl::ZeroDuration());
    });
  };
  disk.fail(2);
  ASSERT_TRUE(stop(4, absl::Minutes(1)).ok());
  disk.fail(1);
  EXPECT_EQ(stop(5, absl::ZeroDuration()).code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(posix_files().exists(dump_ + "/checkpoint/step-5"));
  EXPECT_THAT(steps(), ElementsAre(1, 3, 4));
  EXPECT_LT(job.store_keys(), 12) << "tries must not fill the store";
}

TEST_F(CheckpointTest, RetriesEndAtTheirTimeLimit) {
  Attempt::Options patient = options(2);
  BadDisk disk(patient);
  patient.config.last_save_retry_seconds = 0.1;
  Attempt job(patient);
  disk.fail(1'000'000);
  EXPECT_EQ(job.save_last(1).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(job.events(event::kCheckpointFailed).size(), 1u) << "one event when the retries end";
  EXPECT_GE(job.events(event::kWarning).size(), 1u);  // The number of tries depends on the machine.
  // An error that cannot go away is not retried.
  patient.config.last_save_retry_seconds = 600;
  patient.rank_files = nullptr;
  Attempt old(patient);
  ASSERT_TRUE(storage::Fence(dump_).raise("job", 2).ok());
  EXPECT_TRUE(storage::is_fenced(old.save_last(2)));
  EXPECT_EQ(old.tries(), 0);
}

// A stop that is requested between two tries takes effect at once, even in a long pause: one more try, within the
// stop's grace period.
TEST_F(CheckpointTest, StopRequestInterruptsTheRetryPause) {
  Attempt::Options patient = options(2);
  BadDisk disk(patient);
  patient.config.last_save_retry_seconds = 36'000;
  patient.retry_pause = absl::Hours(1);
  std::atomic<bool> stop = false;
  absl::Duration grace = absl::Minutes(1);
  patient.time_left_after_stop = [&] { return stop ? std::optional(grace) : std::nullopt; };
  Attempt job(patient);
  const auto save_and_stop = [&](int64_t step) {
    stop = false;
    const int before = job.tries();
    std::thread stopper([&, before] {
      while (job.tries() < before + 2) std::this_thread::yield();  // Both ranks wait for their second try.
      stop = true;
    });
    absl::Status saved = job.save_last(step);
    stopper.join();
    return saved;
  };
  disk.fail(1);
  EXPECT_EQ(save_and_stop(1), absl::OkStatus()) << "the disk had space again";
  disk.fail(1'000'000);
  grace = absl::ZeroDuration();
  EXPECT_EQ(save_and_stop(2).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(job.events(event::kCheckpointFailed).size(), 1u);
  EXPECT_THAT(steps(), ElementsAre(1));

  // A stop from before the save is not new: the ranks wait for the rest of the pause instead of retrying at once.
  grace = absl::Seconds(1);
  const int before = job.tries();
  EXPECT_EQ(job.save_last(3).code(), absl::StatusCode::kInternal);
  EXPECT_LE(job.tries() - before, 6);
  patient.retry_pause = absl::Milliseconds(1);
  grace = absl::Minutes(1);
  Attempt quick(patient);
  disk.fail(2);
  EXPECT_EQ(quick.save_last(4), absl::OkStatus());
  ASSERT_EQ(quick.events(event::kWarning).size(), 2u);
  EXPECT_THAT(quick.events(event::kWarning)[0].members["message"].get<std::string>(),
              HasSubstr("because a stop was requested"));
}

TEST_F(CheckpointTest, PurgeKeepsLatestStepsAndStepsBeingRead) {
  Attempt::Options two = options(1);
  two.config.keep_latest_k = 2;
  Attempt job(std::move(two));
  ASSERT_TRUE(job.save(1).ok());
  {
    const auto reader = StepReader::open(posix_files(), step_path(dump_ + "/checkpoint", 1));
    ASSERT_TRUE(reader.ok());
    ASSERT_TRUE(job.save(2).ok());
    ASSERT_TRUE(job.save(3).ok());
    EXPECT_THAT(steps(), ElementsAre(1, 2, 3)) << "an export reads step 1";
    EXPECT_TRUE((*reader)->verify().empty());
  }
  ASSERT_TRUE(job.save(4).ok());
  EXPECT_THAT(steps(), ElementsAre(3, 4));
}

TEST_F(CheckpointTest, DoesNotResumeFromModelOnlyStep) {
  Attempt::Options bf16 = options(2);
  bf16.config.export_dtype = "bfloat16";
  Attempt job(std::move(bf16));
  ASSERT_TRUE(job.save(5).ok());
  ASSERT_TRUE(job.save_last(8).ok());
  const auto reader = StepReader::open(posix_files(), step_path(dump_ + "/checkpoint", 8));
  ASSERT_TRUE(reader.ok());
  EXPECT_FALSE((*reader)->manifest().full);
  EXPECT_EQ((*reader)->manifest().find("model.output.weight")->dtype, at::kBFloat16);
  EXPECT_EQ((*reader)->manifest().find("optim.step"), nullptr);

  Attempt next(options(2, 2));
  EXPECT_EQ(next.load()->step, 5);
  EXPECT_TRUE(next.events(event::kRejected).empty()) << "an export is not a damaged checkpoint";
  Attempt::Options named = options(2, 3);
  named.config.load_step = 8;
  const auto refused = Attempt(std::move(named)).load();
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("model-only"));
}

// The last save must not turn the newest full step into an export.
TEST_F(CheckpointTest, AFullStepIsNotReplacedByAnExport) {
  Attempt job(options(2));
  ASSERT_TRUE(job.save(5).ok());
  ASSERT_TRUE(job.save_last(5).ok());
  EXPECT_EQ(job.events(event::kWarning).size(), 1u);
  EXPECT_EQ(Attempt(options(2, 2)).load()->step, 5);
}

TEST_F(CheckpointTest, ALaterAttemptReplacesAStepAndCleansUp) {
  ASSERT_TRUE(Attempt(options(3)).save(5).ok());
  Attempt second(options(2, 2));
  ASSERT_TRUE(second.load().ok());
  ASSERT_TRUE(second.save(5).ok());
  EXPECT_THAT(entries(5), ElementsAre("a2-00000.safetensors", "a2-00001.safetensors", "manifest.json"));
  EXPECT_EQ(Attempt(options(1, 3)).load()->step, 5);
}

// Only files with the marks of an attempt are deleted: neither a start nor keep_latest_k touches foreign files among
// the steps.
TEST_F(CheckpointTest, ForeignFilesAmongStepsAreKept) {
  const std::string folder = dump_ + "/checkpoint";
  const auto put = [&](int64_t step, const std::string& name) {
    ASSERT_TRUE(posix_files().make_folders(step_path(folder, step)).ok());
    ASSERT_TRUE(storage::atomic_write(posix_files(), step_path(folder, step) + "/" + name, "bytes").ok());
  };
  put(0, "model.safetensors");           // Weights in one file, without an index.
  put(3, "model.pt");                    // An export for torch.load.
  put(4, "model.safetensors.part.tmp");  // A download.
  put(6, "a1-00000.safetensors");        // A step that is being copied, with a note of its owner.
  put(6, "README");
  put(7, "a1-00000.safetensors");  // Only files of a dead attempt.
  put(7, "manifest.json.12.0.tmp");
  put(8, "model.safetensors.index.json");  // A hub's folder.
  put(9, ".metadata");                     // torch.distributed.checkpoint's.
  Attempt::Options two = options(1);
  two.config.keep_latest_k = 2;
  Attempt job(std::move(two));
  ASSERT_TRUE(job.load().ok());
  std::string warnings;
  for (const auto& warning : job.events(event::kWarning)) {
    absl::StrAppend(&warnings, warning.members.at("message").get<std::string>(), "\n");
  }
  for (const char* step : {"step-0", "step-3", "step-4", "step-6"}) EXPECT_THAT(warnings, HasSubstr(step));
  EXPECT_THAT(warnings, HasSubstr("left as it is and not loaded"));
  EXPECT_THAT(warnings, HasSubstr("step-8 holds Hugging Face weights, which are not loaded"));
  EXPECT_THAT(warnings, HasSubstr("step-9 holds a DCP checkpoint"));
  EXPECT_THAT(warnings, Not(HasSubstr("step-7")));

  for (const int64_t step : {3, 10, 11, 12}) ASSERT_TRUE(job.save(step).ok());
  EXPECT_THAT(entries(0), ElementsAre("model.safetensors"));
  EXPECT_THAT(entries(3), ElementsAre("model.pt")) << "a step was saved next to it, and purged";
  EXPECT_THAT(entries(4), ElementsAre("model.safetensors.part.tmp"));
  EXPECT_THAT(entries(6), ElementsAre("README", "a1-00000.safetensors"));
  EXPECT_THAT(entries(8), ElementsAre("model.safetensors.index.json"));
  EXPECT_THAT(entries(9), ElementsAre(".metadata"));
  EXPECT_FALSE(posix_files().is_folder(step_path(folder, 7)));
  EXPECT_FALSE(posix_files().is_folder(step_path(folder, 10)));
  EXPECT_THAT(entries(12), ElementsAre("a1-00000.safetensors", "manifest.json"));
}

// A new job starts at attempt 1 on a folder where another job's attempt 1 left shards: neither touches the other's
// files.
TEST_F(CheckpointTest, ShardNamesNeverCollide) {
  ASSERT_TRUE(posix_files().make_folders(step_path(dump_ + "/checkpoint", 5)).ok());
  const std::string leftover = step_path(dump_ + "/checkpoint", 5) + "/a1-00000.safetensors";
  ASSERT_TRUE(storage::atomic_write(posix_files(), leftover, "somebody else's").ok());
  ASSERT_TRUE(Attempt(options(1)).save(5).ok());
  EXPECT_THAT(entries(5), ElementsAre("a1-00000.1.safetensors", "manifest.json"));
  EXPECT_EQ(Attempt(options(1, 2)).load()->step, 5);
}

// If a committed step cannot be found, loading fails: the job must not restart from initial weights.
TEST_F(CheckpointTest, LoadFailsIfCommittedStepsAreMissing) {
  Attempt::Options resumed = options(2, 2);
  resumed.committed_step = 20;
  const absl::Status gone = Attempt(resumed).load().status();
  EXPECT_TRUE(checkpoints_are_gone(gone)) << gone;
  EXPECT_THAT(std::string(gone.message()), HasSubstr("step 20 was committed in " + dump_ + "/checkpoint"));

  // A seed or other initial weights are not a substitute.
  ASSERT_TRUE(Attempt(options(2, 3)).save(0, CheckpointKind::kModel).ok());
  resumed.attempt = 4;
  resumed.config.initial_load_path = dump_;
  EXPECT_TRUE(checkpoints_are_gone(Attempt(resumed).load().status()));
  ASSERT_TRUE(Attempt(options(2, 5)).save(10).ok());
  resumed.attempt = 6;
  EXPECT_EQ(storage::Fence(dump_).holder()->committed.at("checkpoint").step, 10);
  Attempt older(resumed);
  const auto loaded = older.load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->step, 10);
  ASSERT_EQ(older.events(event::kWarning).size(), 1u);
  EXPECT_THAT(
      older.events(event::kWarning)[0].members["message"].get<std::string>(),
      HasSubstr("step 20 was committed in " + dump_ + "/checkpoint, but the newest that can be read is step 10"));
  resumed.committed_step = 10;
  Attempt current(resumed);
  ASSERT_TRUE(current.load().ok());
  EXPECT_TRUE(current.events(event::kWarning).empty());
}

// A user who deletes another job's steps and submits again wants a new start, if nothing else is left there.
TEST_F(CheckpointTest, EmptiedFolderOfAnotherJobStartsFromScratch) {
  Attempt::Options resumed = options(1);
  resumed.committed_step = 20;
  resumed.committed_by_another_job = true;
  Attempt next(resumed);
  const auto loaded = next.load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->source, Source::kFresh);
  ASSERT_EQ(next.events(event::kWarning).size(), 1u);
  EXPECT_THAT(next.events(event::kWarning)[0].members["message"].get<std::string>(),
              HasSubstr("training starts from scratch"));
  ASSERT_TRUE(next.save(20, CheckpointKind::kModel).ok());
  EXPECT_TRUE(checkpoints_are_gone(Attempt(resumed).load().status())) << "an export is left: the folder is not empty";
}

TEST_F(CheckpointTest, NamedStepWinsAndMustExist) {
  {
    Attempt job(options(2));
    for (int64_t step : {5, 10, 15}) ASSERT_TRUE(job.save(step).ok());
  }
  Attempt::Options named = options(2, 1);
  named.job_uid = "second job";
  named.config.load_step = 10;
  Attempt job(named);
  EXPECT_EQ(job.load()->step, 10);
  ASSERT_TRUE(job.save(12).ok());
  // After a failure the same configuration resumes from this job's own save, not from step 10 again, nor from the other
  // job's 15.
  named.attempt = 2;
  EXPECT_EQ(Attempt(named).load()->step, 12);

  named.config.load_step = 7;
  named.job_uid = "third job";
  const auto missing = Attempt(std::move(named)).load();
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("checkpoint.load_step = 7"));
}

TEST_F(CheckpointTest, ExcludedStatesStayAsTheyAre) {
  ASSERT_TRUE(Attempt(options(2)).save(5).ok());
  Attempt::Options excluding = options(2, 2);
  excluding.config.exclude_from_loading = {"lr_scheduler", "dataloader"};
  auto loaded = Attempt(excluding).load();
  EXPECT_FALSE(loaded->train_state.contains("lr_scheduler"));
  EXPECT_FALSE(loaded->train_state.contains("dataloader"));
  EXPECT_EQ(loaded->train_state["step"], 5);
  EXPECT_TRUE(loaded->per_rank.empty());

  excluding.config.exclude_from_loading = {"optimizer", "train_state"};
  excluding.attempt = 3;
  Attempt job(excluding);
  ASSERT_TRUE(job.run([&](int rank, Checkpointer& checkpointer) -> absl::Status {
                   std::vector<Slice> slices = make_slices(Split::kRows, rank, 2, -1);
                   auto result = checkpointer.load(slices);
                   if (!result.ok()) return result.status();
                   EXPECT_EQ(difference(slices, Split::kRows, rank, 2, 5, /*model_only=*/true), "");
                   EXPECT_FALSE(result->train_state.contains("step"));
                   EXPECT_TRUE(result->train_state.contains("dataloader"));
                   return absl::OkStatus();
                 })
                  .ok());
}

// The result reports that the model was not loaded, because the caller must then initialize the weights.
TEST_F(CheckpointTest, AnExcludedModelIsNotLoaded) {
  ASSERT_TRUE(Attempt(options(1)).save(5).ok());
  Attempt::Options excluding = options(1, 2);
  excluding.config.exclude_from_loading = {"model"};
  Attempt job(excluding);
  std::vector<Slice> slices = make_slices(Split::kRows, 0, 1, -1);
  const auto loaded = job.rank(0).load(slices);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_FALSE(loaded->model_loaded);
  EXPECT_EQ(loaded->step, 5);
  const std::vector<Slice> saved = make_slices(Split::kRows, 0, 1, 5);
  for (size_t i = 0; i < slices.size(); ++i) {
    const bool model = slices[i].key.rfind("model.", 0) == 0;
    EXPECT_TRUE(at::equal(slices[i].local, model ? at::full_like(saved[i].local, -77.0f) : saved[i].local))
        << slices[i].key;
  }
}

// Initial weights hold only a model; if it is excluded, nothing is loaded.
TEST_F(CheckpointTest, AnExcludedModelIsNotLoadedFromInitialWeights) {
  Attempt::Options elsewhere = options(1);
  elsewhere.dump = dump_ + "/pretrained";
  ASSERT_TRUE(Attempt(elsewhere).save(20).ok());
  Attempt::Options excluding = options(1);
  excluding.config.initial_load_path = elsewhere.dump + "/checkpoint/step-20";
  excluding.config.exclude_from_loading = {"model"};
  Attempt job(excluding);
  std::vector<Slice> slices = make_slices(Split::kRows, 0, 1, -1);
  const auto loaded = job.rank(0).load(slices);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_FALSE(loaded->model_loaded);
  EXPECT_EQ(Attempt::untouched(slices), "");
}

TEST_F(CheckpointTest, BadOptionsNameTheirKey) {
  const auto refused = [&](auto change) {
    checkpoint::Setup setup{.dump_folder = dump_};
    change(setup.config);
    return std::string(Checkpointer::create(setup).status().message());
  };
  EXPECT_THAT(refused([](auto& c) { c.keep_latest_k = 1; }), HasSubstr("checkpoint.keep_latest_k = 1"));
  EXPECT_THAT(refused([](auto& c) { c.exclude_from_loading = {"optimiser"}; }), HasSubstr("no state \"optimiser\""));
  EXPECT_THAT(refused([](auto& c) { c.export_dtype = "int8"; }), HasSubstr("checkpoint.export_dtype"));
  EXPECT_THAT(refused([](auto& c) { c.interval = 0; }), HasSubstr("checkpoint.interval"));
  EXPECT_THAT(refused([](auto& c) { c.initial_load_in_hf = true, c.initial_load_model_only = false; }),
              HasSubstr("checkpoint.initial_load_model_only"));
}

// A seed is a model-only step 0, which is used until a better checkpoint exists.
TEST_F(CheckpointTest, SeedStepProvidesInitialWeights) {
  ASSERT_TRUE(Attempt(options(1)).save(0, CheckpointKind::kModel).ok());
  Attempt job(options(2, 2));
  auto seeded = job.load(0);
  ASSERT_TRUE(seeded.ok()) << seeded.status();
  EXPECT_EQ(seeded->source, Source::kInitial);
  EXPECT_EQ(seeded->step, 0);
  EXPECT_TRUE(seeded->model_only);
  ASSERT_TRUE(job.save(3).ok());
  EXPECT_EQ(Attempt(options(2, 3)).load()->source, Source::kCheckpoint);
}

TEST_F(CheckpointTest, InitialLoadPathAcceptsStepOrFolderOfSteps) {
  Attempt::Options elsewhere = options(2);
  elsewhere.dump = dump_ + "/pretrained";
  {
    Attempt pretrained(elsewhere);
    ASSERT_TRUE(pretrained.save(20).ok());
    ASSERT_TRUE(pretrained.save_last(30).ok());
  }
  Attempt::Options job = options(3);
  job.config.initial_load_path = elsewhere.dump + "/checkpoint/step-20";
  auto loaded = Attempt(job).load(20);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->source, Source::kInitial);
  EXPECT_EQ(loaded->step, 0);

  job.attempt = 2;
  job.config.initial_load_path = elsewhere.dump + "/checkpoint";
  EXPECT_EQ(Attempt(job).load(30)->path, elsewhere.dump + "/checkpoint/step-30") << "weights: the newest of any kind";

  job.attempt = 3;
  job.config.initial_load_model_only = false;
  EXPECT_EQ(Attempt(job).load(20)->step, 20) << "with optimizer and train state: the newest full one";

  // A kill before the first commit leaves an empty step folder; the next attempt must still load the initial weights.
  job.attempt = 4;
  ASSERT_TRUE(posix_files().make_folders(dump_ + "/checkpoint/step-1").ok());
  EXPECT_EQ(Attempt(job).load(20)->source, Source::kInitial);

  job.attempt = 5;
  job.config.initial_load_path = dump_ + "/nowhere";
  EXPECT_EQ(Attempt(job).load().status().code(), absl::StatusCode::kNotFound);
  job.attempt = 6;
  job.config.initial_load_path = elsewhere.dump;
  const auto wrong = Attempt(job).load();
  EXPECT_EQ(wrong.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(wrong.status().message()), HasSubstr("initial_load_path"));
}

// Another model's checkpoint in the folder is an error, not a reason to start over.
TEST_F(CheckpointTest, AModelThatDoesNotFitIsAnError) {
  ASSERT_TRUE(Attempt(options(2)).save(5).ok());
  const auto attempt_with = [&](int attempt, auto change) {
    Attempt job(options(2, attempt));
    return job.run([&](int rank, Checkpointer& checkpointer) {
      std::vector<Slice> slices = make_slices(Split::kRows, rank, 2, -1);
      change(slices);
      return checkpointer.load(slices).status();
    });
  };
  const absl::Status wider = attempt_with(2, [](std::vector<Slice>& slices) { slices[1].shape = {16, 17}; });
  EXPECT_EQ(wider.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(wider.message()),
              HasSubstr("wq.weight is [16, 16] in the checkpoint, but [16, 17] in the configuration"));
  const absl::Status more =
      attempt_with(3, [](std::vector<Slice>& slices) { slices[1].key = "model.layers.9.weight"; });
  EXPECT_THAT(std::string(more.message()), HasSubstr("it has no model.layers.9.weight"));
  const absl::Status fewer = attempt_with(4, [](std::vector<Slice>& slices) { slices.erase(slices.begin() + 1); });
  EXPECT_THAT(std::string(fewer.message()), HasSubstr("that this model lacks"));
}

models::ModelSpec named_model() {
  models::ModelSpec spec;
  spec.name = "llama3";
  spec.flavor = "small";
  spec.dim = 256;
  return spec;
}

// Shapes that happen to fit do not make it the same model: the manifest decides, and no older step is tried.
TEST_F(CheckpointTest, RefusesStepOfAnotherModelSpec) {
  Attempt::Options some = options(2);
  some.model = named_model();
  {
    Attempt job(some);
    ASSERT_TRUE(job.save(5).ok());
    ASSERT_TRUE(job.save(10).ok());
  }
  const auto reader = StepReader::open(posix_files(), step_path(dump_ + "/checkpoint", 10));
  EXPECT_EQ((*reader)->manifest().titan_version, TITAN_VERSION);
  EXPECT_EQ((*reader)->manifest().config["training"]["seq_len"], 64);

  const auto load_as = [&](auto change, std::vector<std::string> exclude = {}) {
    ++some.attempt;
    Attempt::Options other = some;
    change(*other.model);
    other.config.exclude_from_loading = std::move(exclude);
    return Attempt(std::move(other)).load().status();
  };
  const absl::Status theta = load_as([](auto& spec) { spec.rope_theta = 500000; });
  EXPECT_EQ(theta.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(theta.message()),
      AllOf(HasSubstr("MODEL_MISMATCH: "),
            HasSubstr("step-10 holds llama3 small (rope_theta 10000.0), this is llama3 small (rope_theta 500000.0)")));
  EXPECT_EQ(load_as([](auto& spec) { spec.dim = 512; }).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(load_as([](auto& spec) { spec.name = "qwen3"; }).code(), absl::StatusCode::kFailedPrecondition);
  // Training options do not make it another model.
  EXPECT_TRUE(load_as([](auto& spec) {
                spec.flavor = "small_flex";
                spec.max_seq_len = 77;
                spec.mask = models::Mask::kBlockCausal;
              }).ok());
}

// No part of the model is loaded, so the models may differ.
TEST_F(CheckpointTest, TrainStateAloneLoadsIntoAnyModel) {
  Attempt::Options some = options(1);
  some.model = named_model();
  ASSERT_TRUE(Attempt(some).save(5).ok());
  some.attempt = 2;
  some.model->dim = 512;
  some.config.exclude_from_loading = {"model", "optimizer"};
  Attempt job(some);
  std::vector<Slice> slices = make_slices(Split::kRows, 0, 1, -1);
  const auto loaded = job.rank(0).load(slices);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->step, 5);
  EXPECT_EQ(Attempt::untouched(slices), "");
}

// To train on longer texts a user may change rope_theta of initial weights, which gives a warning. Other numbers of the
// model must match.
TEST_F(CheckpointTest, InitialWeightsMayUseAnotherRopeTheta) {
  Attempt::Options elsewhere = options(1);
  elsewhere.dump = dump_ + "/pretrained";
  elsewhere.model = named_model();
  ASSERT_TRUE(Attempt(elsewhere).save(20).ok());
  Attempt::Options some = options(2);
  some.model = named_model();
  some.model->rope_theta = 500000;
  some.config.initial_load_path = elsewhere.dump + "/checkpoint";
  Attempt job(some);
  const auto loaded = job.load(20);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ASSERT_EQ(job.events(event::kWarning).size(), 1u);
  EXPECT_THAT(job.events(event::kWarning)[0].members["message"].get<std::string>(),
              HasSubstr("rope_theta is 10000.0 in the checkpoint, but 500000.0 in the configuration"));
  some.attempt = 2;
  some.model->norm_eps = 1e-6;
  const absl::Status refused = Attempt(some).load().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("norm_eps"));
}

// Steps of an older Titan do not name their model; the shapes of their tensors decide.
TEST_F(CheckpointTest, LoadsStepWithoutModelSpec) {
  ASSERT_TRUE(Attempt(options(1)).save(5).ok());
  Attempt::Options some = options(2, 2);
  some.model = named_model();
  EXPECT_EQ(Attempt(some).load()->step, 5);
}

TEST_F(CheckpointTest, AFencedAttemptChangesNothing) {
  Attempt old(options(2));
  ASSERT_TRUE(old.save(5).ok());
  Attempt successor(options(2, 2));
  ASSERT_TRUE(successor.load().ok());
  ASSERT_TRUE(successor.save(10).ok());
  const std::string before = *storage::read_file(posix_files(), dump_ + "/checkpoint/step-10/manifest.json");
  // The old attempt wakes up and saves the same step, and a later one.
  EXPECT_TRUE(storage::is_fenced(old.save(10)));
  EXPECT_TRUE(storage::is_fenced(old.save(15)));
  EXPECT_EQ(*storage::read_file(posix_files(), dump_ + "/checkpoint/step-10/manifest.json"), before);
  EXPECT_THAT(steps(), ElementsAre(5, 10));
  EXPECT_EQ(Attempt(options(2, 3)).load()->step, 10);
}

// The attempt pauses between its shards and its manifest, and resumes after the successor published the same step.
TEST_F(CheckpointTest, FencedAttemptCannotPublishAPausedSave) {
  std::mutex mutex;
  std::condition_variable changed;
  bool paused = false, resume = false;
  storage::FaultyFiles pausing([&](const storage::FileOperation& operation) {
    // The fence's lock is the last operation before the manifest.
    if (operation.kind == storage::FileOperation::Kind::kLock &&
        operation.path.find(".fence.lock") != std::string::npos) {
      std::unique_lock lock(mutex);
      paused = true;
      changed.notify_all();
      changed.wait(lock, [&] { return resume; });
    }
    return storage::Fault{};
  });
  Attempt::Options slow = options(1);
  slow.files = &pausing;
  Attempt old(std::move(slow));
  absl::Status late;
  std::thread thread([&] { late = old.save(10); });
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return paused; });
  }
  Attempt successor(options(1, 2));
  ASSERT_TRUE(successor.load().ok());
  ASSERT_TRUE(successor.save(10).ok());
  {
    std::lock_guard lock(mutex);
    resume = true;
  }
  changed.notify_all();
  thread.join();
  EXPECT_TRUE(storage::is_fenced(late)) << late;
  EXPECT_THAT(entries(10), ElementsAre("a2-00000.safetensors", "manifest.json"));
  EXPECT_EQ(Attempt(options(1, 3)).load()->step, 10);
}

TEST_F(CheckpointTest, SaveNamesLostRankAfterTimeout) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  ASSERT_TRUE(storage::Fence(dump_).raise("job", 1).ok());
  checkpoint::Setup setup{.dump_folder = dump_};
  setup.config.enable = true;
  setup.world = 2;
  setup.job_uid = "job";
  setup.store = store;
  setup.peer_timeout = absl::Milliseconds(50);
  std::vector<Event> events;
  setup.events = [&](const char* kind, nlohmann::json members) { events.push_back({kind, std::move(members)}); };
  auto alone = Checkpointer::create(std::move(setup));
  ASSERT_TRUE((*alone)->save(1, make_slices(Split::kRows, 0, 2, 1), {}).ok());
  ASSERT_EQ(events.size(), 1u);
  EXPECT_THAT(events[0].members["reason"].get<std::string>(), HasSubstr("rank-1"));
}

// A load names a rank that died before its first beat.
TEST_F(CheckpointTest, LoadReportsRankThatNeverStarted) {
  ASSERT_TRUE(storage::Fence(dump_).raise("job", 1).ok());
  checkpoint::Setup setup{.dump_folder = dump_};
  setup.config.enable = true;
  setup.world = 2;
  setup.job_uid = "job";
  setup.store = c10::make_intrusive<c10d::HashStore>();
  setup.peer_timeout = absl::Seconds(20);
  setup.peer_silence = absl::Milliseconds(100);
  setup.peer_start = absl::Milliseconds(300);
  auto alone = Checkpointer::create(std::move(setup));
  std::vector<Slice> slices = make_slices(Split::kRows, 0, 2, 1);
  const absl::Status status = (*alone)->load(slices).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 has shown no sign of life for"));
}

// A process that is killed in the middle of a save must not delay the others for as long as a slow disk may take.
TEST_F(CheckpointTest, DeadRankIsReportedAfterItsSilenceLimit) {
  constexpr absl::Duration kSilence = absl::Seconds(4);  // 15 beats.
  std::promise<void> writing, dead;
  std::atomic<bool> slow{false};
  storage::FaultyFiles disk([&](const storage::FileOperation& operation) {
    if (slow && operation.kind == storage::FileOperation::Kind::kAppend) {
      slow = false;
      writing.set_value();
      dead.get_future().wait();
    }
    return storage::Fault{};
  });
  Attempt::Options some = options(3);
  some.rank_files = [&](int rank) -> storage::Files* { return rank == 1 ? &disk : nullptr; };
  some.peer_silence = kSilence;
  Attempt job(std::move(some));
  ASSERT_TRUE(job.save(1).ok());

  // Rank 1 writes for longer than the allowed silence, but it beats, so no rank reports it.
  slow = true;
  std::thread release([&] {
    writing.get_future().wait();
    absl::SleepFor(1.25 * kSilence);
    dead.set_value();
  });
  const absl::Status slow_save = job.save(2);
  release.join();
  EXPECT_TRUE(slow_save.ok()) << slow_save;

  // Rank 2 ends before its report. Destroying a Checkpointer stops its beats, as the death of its process does.
  job.end(2);
  std::vector<absl::Status> statuses(2);
  std::thread other([&] { statuses[1] = job.rank(1).save(3, make_slices(Split::kRows, 1, 3, 3), {}); });
  statuses[0] = job.rank(0).save(3, make_slices(Split::kRows, 0, 3, 3), {});
  other.join();
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2 has shown no sign of life"));
  }
  EXPECT_THAT(steps(), ElementsAre(1, 2));
}

}  // namespace
}  // namespace titan::checkpoint::testing

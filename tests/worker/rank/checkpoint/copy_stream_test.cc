// Tests saves with tensors that a device copies by itself (checkpoint.async_mode = "async_with_pinned_mem"), on a
// device of two streams that advances only when the test runs it: a wait without the right order would never end.

#include "worker/rank/checkpoint/shards/copy_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <functional>
#include <mutex>

#include "common/rank_protocol/launch.h"
#include "tests/worker/rank/checkpoint/fake_job.h"
#include "worker/rank/checkpoint/shards/shard.h"

namespace titan::checkpoint::testing {
namespace {

using storage::posix_files;
using ::testing::HasSubstr;
namespace event = rank_protocol::event;

class FakeDevice final : public CopyStream {
 public:
  enum class Prefers { kTraining, kCopies };

  bool takes(const at::Tensor&) const override { return true; }
  at::Tensor make_buffer(at::IntArrayRef sizes, at::ScalarType type) override {
    if (no_memory) throw std::runtime_error("CUDA error: out of page-locked memory");
    ++buffers;
    return at::full(sizes, -1, type);
  }
  void follow() override {
    const std::lock_guard lock(mutex_);
    copies_.gate = training_.tasks.size();
  }
  void copy(const at::Tensor& to, const at::Tensor& from) override {
    const std::lock_guard lock(mutex_);
    copies_.tasks.push_back({[to, from] { to.copy_(from); }, copies_.gate});
    targets.push_back(to.data_ptr());
  }
  void mark() override {
    const std::lock_guard lock(mutex_);
    marked_ = copies_.tasks.size();
  }
  void block_current_stream() override {
    const std::lock_guard lock(mutex_);
    training_.gate = marked_;
  }
  void wait() override {
    std::unique_lock lock(mutex_);
    moved_.wait(lock, [this] { return copies_.done >= marked_; });
    if (broken) throw std::runtime_error("CUDA error: an illegal memory access was encountered");
  }

  // Queues work on the training stream.
  void train(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    training_.tasks.push_back({std::move(work), training_.gate});
  }
  // Runs all work whose dependencies are met, preferring one stream.
  void run(Prefers first) {
    const std::lock_guard lock(mutex_);
    Stream& one = first == Prefers::kTraining ? training_ : copies_;
    Stream& other = first == Prefers::kTraining ? copies_ : training_;
    while (advance(one, other) || advance(other, one)) {
    }
    moved_.notify_all();
  }
  // Runs the training stream as far as the order allows, without the copies.
  void run_training_alone() {
    const std::lock_guard lock(mutex_);
    while (advance(training_, copies_)) {
    }
  }

  bool no_memory = false, broken = false;
  int buffers = 0;
  std::vector<void*> targets;

 private:
  struct Task {
    std::function<void()> work;
    size_t after = 0;  // Number of the other stream's tasks that must run first.
  };
  struct Stream {
    std::vector<Task> tasks;
    size_t done = 0, gate = 0;
  };
  static bool advance(Stream& stream, const Stream& other) {
    if (stream.done == stream.tasks.size() || other.done < stream.tasks[stream.done].after) return false;
    stream.tasks[stream.done++].work();
    return true;
  }

  std::mutex mutex_;
  std::condition_variable moved_;
  Stream training_, copies_;
  size_t marked_ = 0;
};

class CopyStreamTest : public ::testing::TestWithParam<FakeDevice::Prefers> {
 protected:
  void SetUp() override {
    dump_ = storage::join_path(::testing::TempDir(), "copy_stream." + std::to_string(::getpid()));
    ASSERT_TRUE(posix_files().remove_folder(dump_).ok());
  }
  void TearDown() override { posix_files().remove_folder(dump_).IgnoreError(); }

  Attempt::Options options(int attempt = 1, int world = 1) {
    Attempt::Options options{.dump = dump_, .world = world, .attempt = attempt};
    options.config.async_mode = "async_with_pinned_mem";
    options.copies = [this](int rank) { return rank == 0 ? &device_ : &other_; };
    return options;
  }
  // Queues the optimizer's writes of a step.
  void write(std::vector<Slice>& slices, int64_t step) {
    device_.train([&slices, step] {
      const std::vector<Slice> values = make_slices(Split::kRows, 0, 1, step);
      for (size_t i = 0; i < slices.size(); ++i) slices[i].local.copy_(values[i].local);
    });
  }
  static absl::Status save(Attempt& job, std::vector<Slice>& slices, int64_t step) {
    return job.rank(0).save(step, slices, {.shared = {{"step", step}}});
  }

  std::string dump_;
  FakeDevice device_, other_;
};

// The training thread continues before the device has done anything. The next step's forward and backward pass run
// without waiting for the copies, and its optimizer waits for them. The copies wait for the step that is saved. All
// this holds whichever stream the device prefers.
TEST_P(CopyStreamTest, CopiesRunDuringTheNextStep) {
  Attempt job(options());
  std::vector<Slice> live = make_slices(Split::kRows, 0, 1, 0);
  for (int64_t step = 1; step <= 3; ++step) {
    job.rank(0).before_update();
    write(live, step);
    ASSERT_TRUE(save(job, live, step).ok());
    bool forward = false;
    device_.train([&forward] { forward = true; });
    device_.run_training_alone();
    EXPECT_TRUE(forward);
    job.rank(0).before_update();
    write(live, step + 100);
    device_.run_training_alone();
    EXPECT_EQ(difference(live, Split::kRows, 0, 1, step), "") << "the update overtook the copies";
    EXPECT_TRUE(job.rank(0).save_in_flight());
    device_.run(GetParam());
    ASSERT_TRUE(job.wait().ok());
    EXPECT_EQ(difference(live, Split::kRows, 0, 1, step + 100), "");
    Attempt reader(options(1));
    EXPECT_EQ(reader.load()->step, step) << "with that step's values";
  }
  EXPECT_TRUE(job.events(event::kWarning).empty()) << "there is a device to copy from";
}

INSTANTIATE_TEST_SUITE_P(Any, CopyStreamTest,
                         ::testing::Values(FakeDevice::Prefers::kTraining, FakeDevice::Prefers::kCopies));

using CopyFailureTest = CopyStreamTest;
INSTANTIATE_TEST_SUITE_P(Any, CopyFailureTest, ::testing::Values(FakeDevice::Prefers::kCopies));

TEST_P(CopyFailureTest, SavesUseTheSameBuffers) {
  Attempt job(options());
  std::vector<Slice> live = make_slices(Split::kRows, 0, 1, 1);
  ASSERT_TRUE(save(job, live, 1).ok());
  const int made = device_.buffers;
  const std::vector<void*> first = device_.targets;
  EXPECT_EQ(static_cast<size_t>(made), live.size());
  device_.targets.clear();
  device_.run(GetParam());
  ASSERT_TRUE(save(job, live, 2).ok());
  device_.run(GetParam());
  ASSERT_TRUE(job.wait().ok());
  EXPECT_EQ(device_.buffers, made);
  EXPECT_EQ(device_.targets, first);
}

// A failed copy costs one save, on every rank, and training continues; the next save is complete.
TEST_P(CopyFailureTest, FailedCopyFailsOneSave) {
  Attempt job(options(1, /*world=*/2));
  const auto let_run = [&] {
    device_.run(GetParam());
    other_.run(GetParam());
  };
  ASSERT_TRUE(job.save(1).ok());
  let_run();
  ASSERT_TRUE(job.wait().ok());
  other_.broken = true;
  ASSERT_TRUE(job.save(2).ok());
  let_run();
  EXPECT_TRUE(job.wait().ok());
  other_.broken = false;
  ASSERT_EQ(job.events(event::kCheckpointFailed).size(), 1U);
  EXPECT_THAT(job.events(event::kCheckpointFailed)[0].members["reason"].get<std::string>(),
              HasSubstr("the tensors could not be copied: CUDA error: an illegal memory access"));
  EXPECT_EQ(Attempt(options(1, 2)).load()->step, 1);
  ASSERT_TRUE(job.save(3).ok());
  let_run();
  ASSERT_TRUE(job.wait().ok());
  EXPECT_EQ(Attempt(options(1, 2)).load()->step, 3);
}

// A lack of page-locked memory fails a save like any other error, but the save is not retried, even if its failure ends
// the job.
TEST_P(CopyFailureTest, LackOfPageLockedMemoryIsNotRetried) {
  Attempt::Options strict = options();
  strict.failed_saves_allowed = 2;
  strict.config.last_save_retry_seconds = 60;
  Attempt job(std::move(strict));
  std::vector<Slice> live = make_slices(Split::kRows, 0, 1, 1);
  device_.no_memory = true;
  ASSERT_TRUE(save(job, live, 1).ok());
  EXPECT_TRUE(job.wait().ok());
  EXPECT_THAT(job.events(event::kCheckpointFailed).at(0).members["reason"].get<std::string>(),
              HasSubstr("out of page-locked memory"));
  ASSERT_TRUE(save(job, live, 2).ok());
  EXPECT_EQ(job.wait().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(job.tries(), 0);
}

TEST_P(CopyFailureTest, UpdatesDoNotWaitWithoutASave) {
  Attempt job(options());
  bool updated = false;
  job.rank(0).before_update();
  device_.train([&updated] { updated = true; });
  device_.run_training_alone();
  EXPECT_TRUE(updated);
}

}  // namespace
}  // namespace titan::checkpoint::testing

// Tests that a load reads directly into the live tensors with little additional memory, reads each byte once if it can,
// and never leaves them partly filled.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "common/io/storage/faulty_files.h"
#include "common/rank_protocol/launch.h"
#include "tests/worker/rank/checkpoint/fake_job.h"
#include "worker/rank/checkpoint/shards/in_parallel.h"
#include "worker/rank/checkpoint/shards/manifest.h"
#include "worker/rank/checkpoint/shards/step_reader.h"

namespace titan::checkpoint::testing {
namespace {

namespace event = rank_protocol::event;
namespace fs = std::filesystem;
using storage::FileOperation;
using ::testing::HasSubstr;

class LoadingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dump_ = fs::path(::testing::TempDir()) / ("loading." + std::to_string(::getpid()));
    fs::remove_all(dump_);
  }
  void TearDown() override { fs::remove_all(dump_); }

  // Flips the last byte of a shard's data, which is in its last chunk.
  void damage(int64_t step, const std::string& shard) const {
    const fs::path path = dump_ / "checkpoint" / ("step-" + std::to_string(step)) / shard;
    std::string bytes = storage::read_file(storage::posix_files(), path.string()).value();
    const Manifest manifest =
        manifest_from_text(
            storage::read_file(storage::posix_files(), (path.parent_path() / kManifestName).string()).value())
            .value();
    for (const FileRecord& file : manifest.files) {
      if (file.name == shard) bytes[bytes.size() - static_cast<size_t>(file.index_bytes) - 1] ^= 1;
    }
    std::ofstream(path, std::ios::binary) << bytes;
  }

  fs::path dump_;
};

// Counts memory of at::empty() on the CPU, on all threads.
class CountingAllocator : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* base) : base_(base) {}
  c10::DataPtr allocate(size_t bytes) override {
    held += static_cast<int64_t>(bytes);
    int64_t seen = peak;
    while (seen < held && !peak.compare_exchange_weak(seen, held)) {
    }
    auto* block = new Block{this, base_->allocate(bytes), static_cast<int64_t>(bytes)};
    return {block->memory.get(), block, &release, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  std::atomic<int64_t> held{0}, peak{0};

 private:
  struct Block {
    CountingAllocator* owner;
    c10::DataPtr memory;
    int64_t bytes;
  };
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    block->owner->held -= block->bytes;
    delete block;
  }
  c10::Allocator* base_;
};

// Becomes the allocator of all later tensors and outlives them.
CountingAllocator& counted_memory() {
  static auto* counting = [] {
    auto* made = new CountingAllocator(c10::GetAllocator(c10::DeviceType::CPU));
    c10::SetAllocator(c10::DeviceType::CPU, made, /*priority=*/100);
    return made;
  }();
  return *counting;
}

// Each element's value follows from its index.
at::Tensor numbered(int64_t rows) {
  return at::arange(rows * 4096, at::kInt).remainder_(251).view({rows, 4096}).to(at::kFloat);
}

// A load of more than the memory limit stays within the limit: into tensors of the step's type, which are filled
// directly, into tensors of another type, which are converted, and into other pieces than were saved.
TEST_F(LoadingTest, LoadTakesLittleExtraMemory) {
  CountingAllocator& memory = counted_memory();
  const int64_t rows = 4096;  // 64 MiB.
  ASSERT_GT(rows * 4096 * 4, 3 * kReadMemory / 2);
  const at::Tensor all = numbered(rows);
  {
    Attempt writer({.dump = dump_.string()});
    const std::vector<Slice> slices = {{"model.large", {rows, 4096}, {0, 0}, all}};
    ASSERT_TRUE(writer.run([&](int, Checkpointer& one) { return one.save(1, slices, {}); }).ok());
    ASSERT_TRUE(writer.wait().ok());
  }
  for (const auto& [type, columns] : {std::pair(at::kFloat, 4096), {at::kBFloat16, 4096}, {at::kFloat, 1024}}) {
    const at::Tensor expected = all.narrow(1, 4096 - columns, columns).to(type).contiguous();
    std::vector<Slice> slices = {{"model.large", {rows, 4096}, {0, 4096 - columns}, at::full_like(expected, -1)}};
    Attempt reader({.dump = dump_.string(), .attempt = 2, .committed_step = 1});
    const int64_t before = memory.held;
    memory.peak = before;
    ASSERT_TRUE(reader.run([&](int, Checkpointer& one) { return one.load(slices).status(); }).ok());
    EXPECT_LE(memory.peak - before, kReadMemory) << type << ", columns " << columns;
    EXPECT_TRUE(at::equal(slices[0].local, expected)) << type << ", columns " << columns;
  }
}

// If only an older step or an error can follow a failure, the ranks read their part in a single pass.
TEST_F(LoadingTest, ReadsTwiceOnlyIfInitialWeightsMayFollow) {
  ASSERT_TRUE(Attempt({.dump = dump_.string(), .world = 2}).save(10).ok());
  int64_t state = 0;
  for (const Slice& slice : make_slices(Split::kReplicated, 0, 1, 10))
    state += static_cast<int64_t>(slice.local.nbytes());
  const auto bytes_read = [&](int64_t committed) {
    std::atomic<int64_t> bytes{0};
    storage::FaultyFiles files([&](const FileOperation& operation) {
      if (operation.kind == FileOperation::Kind::kRead && operation.path.ends_with(".safetensors"))
        bytes += operation.bytes;
      return storage::Fault{};
    });
    Attempt job({.dump = dump_.string(), .world = 2, .attempt = 2, .files = &files, .committed_step = committed});
    EXPECT_EQ(job.load()->step, 10);
    return bytes.load();
  };
  const int64_t once = bytes_read(10), twice = bytes_read(-1);
  EXPECT_GE(once, state);
  EXPECT_LT(once, state * 5 / 4);  // Headers, indexes, and chunks at the edges of what a rank holds.
  EXPECT_GE(twice, 2 * state);
}

// The damage is found after most of the step is in the tensors; the older step replaces all of it.
TEST_F(LoadingTest, OlderStepReplacesDamagedStepCompletely) {
  {
    Attempt writer({.dump = dump_.string(), .world = 2});
    ASSERT_TRUE(writer.save(5).ok());
    ASSERT_TRUE(writer.save(10).ok());
  }
  damage(10, "a1-00001.safetensors");
  for (const int world : {1, 2, 3}) {
    Attempt job({.dump = dump_.string(), .world = world, .attempt = 2 + world, .committed_step = 10});
    const auto loaded = job.load();  // Compares every element.
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->step, 5);
    ASSERT_EQ(job.events(event::kRejected).size(), 1u);
    EXPECT_THAT(job.events(event::kRejected)[0].members["reason"].get<std::string>(), HasSubstr("checksum mismatch"));
  }
  damage(5, "a1-00000.safetensors");
  Attempt job({.dump = dump_.string(), .world = 2, .attempt = 9, .committed_step = 10});
  EXPECT_TRUE(checkpoints_are_gone(job.load().status())) << "a mixture of two steps is never used";
}

// If no step is known as committed, initial weights may follow, so the tensors must stay untouched.
TEST_F(LoadingTest, DamagedStepLeavesInitialWeightsUntouched) {
  ASSERT_TRUE(Attempt({.dump = dump_.string(), .world = 2}).save(10).ok());
  damage(10, "a1-00001.safetensors");
  Attempt job({.dump = dump_.string(), .world = 2, .attempt = 2});
  const auto loaded = job.load();  // Compares every element.
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->source, Source::kFresh);
}

// If a step was verified but cannot be read a second time into the tensors, the load fails instead of starting fresh.
TEST_F(LoadingTest, StepThatBreaksBetweenPassesFailsTheLoad) {
  ASSERT_TRUE(Attempt({.dump = dump_.string(), .world = 2}).save(10).ok());
  std::atomic<int> opened{0};
  storage::FaultyFiles breaking([&](const FileOperation& operation) {
    if (operation.kind == FileOperation::Kind::kOpen && operation.path.ends_with("a1-00001.safetensors")) ++opened;
    const bool breaks = operation.kind == FileOperation::Kind::kRead && opened == 2;
    return storage::Fault{breaks ? absl::InternalError("read " + operation.path + ": broken") : absl::OkStatus()};
  });
  Attempt job({.dump = dump_.string(), .world = 2, .attempt = 2, .rank_files = [&](int rank) {
                 return rank == 1 ? static_cast<storage::Files*>(&breaking) : &storage::posix_files();
               }});
  const auto loaded = job.load();
  ASSERT_FALSE(loaded.ok());
  EXPECT_THAT(std::string(loaded.status().message()),
              ::testing::AllOf(HasSubstr("rank 1"), HasSubstr("cannot be read again")));
}

TEST(InParallelTest, ReturnsTheFirstOfSeveralFailures) {
  std::atomic<int> started{0};
  const absl::Status status = in_parallel(1000, 4, [&](size_t number) {
    ++started;
    return number >= 7 ? absl::InternalError(std::to_string(number)) : absl::OkStatus();
  });
  EXPECT_EQ(status.message(), "7");
  EXPECT_LT(started, 1000) << "no call starts after a failure";
  EXPECT_THROW(in_parallel(3, 2, [](size_t) -> absl::Status { throw std::bad_alloc(); }).IgnoreError(), std::bad_alloc);
  EXPECT_TRUE(in_parallel(0, 4, [](size_t) { return absl::InternalError("never"); }).ok());
}

}  // namespace
}  // namespace titan::checkpoint::testing

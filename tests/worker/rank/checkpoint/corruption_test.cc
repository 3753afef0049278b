// Tests damage of every kind, from seeds: data that differs from what was saved is never loaded silently.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "common/rank_protocol/launch.h"
#include "tests/worker/rank/checkpoint/fake_job.h"
#include "worker/rank/checkpoint/steps/step_folders.h"

namespace titan::checkpoint::testing {
namespace {

namespace fs = std::filesystem;
namespace event = rank_protocol::event;
using storage::posix_files;

std::string read(const fs::path& path) { return *storage::read_file(posix_files(), path.string()); }
void write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// Makes step 5 (attempt 1) and step 10 (attempt 2, over leftovers of attempt 1) of a 2-rank job, and a fresh copy of
// them for each mutation.
class CorruptionTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    root_ = new fs::path(fs::path(::testing::TempDir()) / ("corruption." + std::to_string(::getpid())));
    fs::remove_all(*root_);
    output_rows = 300;  // Two chunks keep the files small: hundreds of copies are made.
    const fs::path original = *root_ / "original";
    {
      Attempt first({.dump = original.string(), .world = 2});
      ASSERT_TRUE(first.save(5).ok());
      ASSERT_TRUE(first.save(10).ok());
    }
    // Attempt 1's files of step 10, kept for the stale-shard mutation.
    fs::copy(original / "checkpoint/step-10", *root_ / "stale");
    Attempt second({.dump = original.string(), .world = 2, .attempt = 2});
    ASSERT_TRUE(second.load().ok());
    ASSERT_TRUE(second
                    .run([&](int rank, Checkpointer& checkpointer) {
                      // The replay differs a little, so that a stale shard is wrong and not merely old.
                      std::vector<Slice> slices = make_slices(Split::kRows, rank, 2, 10);
                      return checkpointer.save(10, slices, {.shared = {{"step", 10}, {"attempt", 2}}});
                    })
                    .ok());
  }
  static void TearDownTestSuite() {
    fs::remove_all(*root_);
    delete root_;
  }

  void fresh_copy() {
    fs::remove_all(dump());
    fs::copy(*root_ / "original", dump(), fs::copy_options::recursive);
  }
  static fs::path dump() { return *root_ / "copy"; }
  static fs::path newest() { return dump() / "checkpoint/step-10"; }

  // Loads after damage to step 10. Returns true if the load fell back to step 5, which it must report; otherwise no
  // byte that matters has changed, and Attempt::load compares every element with step 10's values.
  bool falls_back(int world) {
    // Alternates between reading into the live tensors at once and verifying first.
    const int64_t committed = ++loads_ % 2 == 0 ? 10 : -1;
    Attempt job({.dump = dump().string(), .world = world, .attempt = 3, .committed_step = committed});
    const auto loaded = job.load();
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    if (!loaded.ok()) return false;
    if (loaded->step == 10) return false;
    EXPECT_EQ(loaded->step, 5);
    const auto rejected = job.events(event::kRejected);
    EXPECT_EQ(rejected.size(), 1u);
    if (rejected.size() == 1) {
      EXPECT_EQ(rejected[0].members["step"], 10);
      EXPECT_THAT(rejected[0].members["reason"].get<std::string>(), ::testing::HasSubstr("step-10"))
          << "names the file";
    }
    return true;
  }

  static fs::path* root_;
  int loads_ = 0;
};
fs::path* CorruptionTest::root_ = nullptr;

TEST_F(CorruptionTest, LoadsTheUndamagedOriginal) {
  fresh_copy();
  Attempt job({.dump = dump().string(), .world = 2, .attempt = 3});
  EXPECT_EQ(job.load()->step, 10);
  EXPECT_TRUE(job.events(event::kRejected).empty());
}

enum Mutation {
  kFlipBit,
  kTruncate,
  kDelete,
  kDuplicateChunk,
  kSwapFiles,
  kEditNumber,
  kZeroRange,
  kStaleShard,
  kAppend,
  kEmpty,
  kMutations,
};

// Applies one mutation to step 10; returns false if it happened to change nothing.
bool mutate(Mutation mutation, std::mt19937_64& random, const fs::path& step, const fs::path& stale) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(step)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  const auto pick = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const fs::path file = files[pick(files.size())];
  const fs::path shard = step / (pick(2) == 0 ? "a2-00000.safetensors" : "a2-00001.safetensors");
  std::string bytes = read(file);
  switch (mutation) {
    case kFlipBit: {
      // Headers and manifests are short: half of the flips go to the first kilobyte.
      const size_t at = pick(pick(2) == 0 ? std::min<size_t>(bytes.size(), 1024) : bytes.size());
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << pick(8)));
      write(file, bytes);
      return true;
    }
    case kTruncate:
      write(file, bytes.substr(0, pick(bytes.size())));
      return true;
    case kDelete:
      fs::remove(file);
      return true;
    case kDuplicateChunk: {
      bytes = read(shard);
      const std::string before = bytes;
      const size_t size = std::min<size_t>(bytes.size() / 4, 1 + pick(kChunkBytes));
      bytes.replace(pick(bytes.size() - size), size, bytes, pick(bytes.size() - size), size);
      write(shard, bytes);
      return bytes != before;
    }
    case kSwapFiles: {
      const fs::path other = files[pick(files.size())];
      const std::string theirs = read(other);
      write(other, bytes);
      write(file, theirs);
      return bytes != theirs;
    }
    case kEditNumber: {
      // Changes one digit of the manifest.
      const fs::path manifest = step / kManifestName;
      bytes = read(manifest);
      std::vector<size_t> digits;
      for (size_t i = 0; i < bytes.size(); ++i) {
        if (bytes[i] >= '0' && bytes[i] <= '9') digits.push_back(i);
      }
      char& digit = bytes[digits[pick(digits.size())]];
      digit = static_cast<char>('0' + (digit - '0' + 1 + static_cast<int>(pick(9))) % 10);
      write(manifest, bytes);
      return true;
    }
    case kZeroRange: {
      const std::string before = bytes;
      const size_t begin = pick(bytes.size());
      const size_t size = std::min(bytes.size() - begin, 1 + pick(8192));
      bytes.replace(begin, size, size, '\0');
      write(file, bytes);
      return bytes != before;
    }
    case kStaleShard: {
      const std::string theirs = read(stale / ("a1" + shard.filename().string().substr(2)));
      const bool differs = theirs != read(shard);
      write(shard, theirs);
      return differs;
    }
    case kAppend:
      write(file, bytes + std::string(1 + pick(100), 'x'));
      return true;
    case kEmpty:
      write(file, "");
      return true;
    case kMutations:
      break;
  }
  return false;
}

// 250 seeded mutations (or TITAN_MUTATIONS of them), read by the mesh that wrote the step and by others.
TEST_F(CorruptionTest, NoMutationIsLoadedSilently) {
  const char* wanted = std::getenv("TITAN_MUTATIONS");
  const int mutations = wanted == nullptr ? 250 : std::atoi(wanted);
  int changed = 0, missed = 0;
  std::map<int, int> by_kind;
  for (uint64_t seed = 0; seed < static_cast<uint64_t>(mutations); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    fresh_copy();
    const auto mutation = static_cast<Mutation>(seed % kMutations);
    if (!mutate(mutation, random, newest(), *root_ / "stale")) continue;
    ++changed;
    ++by_kind[mutation];
    const bool manifest_gone = !fs::exists(newest() / kManifestName);
    if (manifest_gone) {
      // A step without a manifest was never committed: it is ignored and deleted.
      Attempt job({.dump = dump().string(), .world = 2, .attempt = 3});
      EXPECT_EQ(job.load()->step, 5);
      continue;
    }
    const int world = std::array{2, 1, 3}[seed / kMutations % 3];
    if (!falls_back(world)) {
      ++missed;
      ADD_FAILURE() << "mutation " << mutation << " was loaded by " << world << " ranks";
    }
  }
  std::printf("%d mutations, %d loaded silently\n", changed, missed);
  EXPECT_GE(changed, mutations * 4 / 5);
  EXPECT_GE(by_kind.size(), 9u);
  EXPECT_EQ(missed, 0);
}

// If only one rank reads the damage, all ranks fall back together.
TEST_F(CorruptionTest, AllRanksFallBackTogether) {
  fresh_copy();
  std::string bytes = read(newest() / "a2-00001.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write(newest() / "a2-00001.safetensors", bytes);
  Attempt job({.dump = dump().string(), .world = 2, .attempt = 3});
  EXPECT_EQ(job.load()->step, 5);
  EXPECT_THAT(job.events(event::kRejected)[0].members["reason"].get<std::string>(),
              ::testing::AllOf(::testing::HasSubstr("rank 1"), ::testing::HasSubstr("a2-00001.safetensors"),
                               ::testing::HasSubstr("checksum mismatch")));
}

TEST_F(CorruptionTest, DamagedNamedStepIsAnError) {
  fresh_copy();
  fs::resize_file(newest() / "a2-00000.safetensors", 1000);
  Attempt::Options named{.dump = dump().string(), .world = 2, .job_uid = "another", .attempt = 1};
  named.config.load_step = 10;
  EXPECT_EQ(Attempt(named).load().status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(CorruptionTest, UsesInitialWeightsIfAllStepsAreDamaged) {
  fresh_copy();
  for (const char* step : {"step-5", "step-10"}) write(dump() / "checkpoint" / step / kManifestName, "{}");
  Attempt job({.dump = dump().string(), .world = 2, .attempt = 3});
  EXPECT_EQ(job.load()->source, Source::kFresh);
  EXPECT_EQ(job.events(event::kRejected).size(), 2u);
}

}  // namespace
}  // namespace titan::checkpoint::testing

// Tests the versions of a step's format: steps of an older Titan stay valid, and nothing in a shard's index is trusted
// unchecked.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "common/io/storage/faulty_files.h"
#include "common/rank_protocol/launch.h"
#include "tests/worker/rank/checkpoint/fake_job.h"
#include "tests/worker/rank/checkpoint/first_version.h"
#include "worker/rank/checkpoint/shards/shard.h"
#include "worker/rank/checkpoint/shards/step_reader.h"
#include "worker/rank/checkpoint/steps/step_folders.h"

namespace titan::checkpoint::testing {
namespace {

namespace fs = std::filesystem;
using storage::posix_files;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class VersionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dump_ = ::testing::TempDir() + "/versions." + std::to_string(::getpid());
    ASSERT_TRUE(posix_files().remove_folder(dump_).ok());
  }
  void TearDown() override { posix_files().remove_folder(dump_).IgnoreError(); }

  Attempt::Options options(int world, int attempt = 1, Split split = Split::kRows) {
    return {.dump = dump_, .world = world, .split = split, .attempt = attempt};
  }
  fs::path step(int64_t number) { return step_path(dump_ + "/checkpoint", number); }
  std::string read(const fs::path& path) { return *storage::read_file(posix_files(), path.string()); }
  void write(const fs::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  std::vector<std::string> problems(int64_t number) {
    std::vector<std::string> messages;
    const auto reader = StepReader::open(posix_files(), step(number).string());
    EXPECT_TRUE(reader.ok()) << reader.status();
    if (!reader.ok()) return messages;
    for (const absl::Status& one : (*reader)->verify()) messages.emplace_back(one.message());
    return messages;
  }

  std::string dump_;
};

TEST_F(VersionsTest, AnyMeshLoadsFirstVersionSteps) {
  int attempt = 0;
  for (const Split from : {Split::kRows, Split::kHybrid, Split::kColumns}) {
    ASSERT_TRUE(posix_files().remove_folder(dump_).ok());
    const int64_t saved = ++attempt;
    ASSERT_TRUE(Attempt(options(4, attempt, from)).save(saved).ok());
    make_first_version(step(saved).string());
    EXPECT_THAT(problems(saved), ElementsAre());
    for (const int world : {1, 3, 4}) {
      const auto loaded = Attempt(options(world, ++attempt)).load();
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      EXPECT_EQ(loaded->step, saved);
    }
  }
}

// A step of the old version among newer ones serves as fallback, and damage to it is detected, too.
TEST_F(VersionsTest, BothVersionsCoexistInOneFolder) {
  Attempt job(options(2));
  for (const int64_t number : {5, 10, 15}) ASSERT_TRUE(job.save(number).ok());
  make_first_version(step(5).string());
  make_first_version(step(10).string());
  fs::resize_file(step(15) / "a1-00001.safetensors", 1000);
  std::string bytes = read(step(10) / "a1-00000.safetensors");
  bytes[bytes.size() / 2] ^= 1;
  write(step(10) / "a1-00000.safetensors", bytes);
  EXPECT_THAT(problems(10), ElementsAre(HasSubstr("a1-00000.safetensors: checksum mismatch in model.")));
  Attempt next(options(3, 2));
  EXPECT_EQ(next.load()->step, 5);
  EXPECT_EQ(next.events(rank_protocol::event::kRejected).size(), 2u);
  ASSERT_TRUE(next.save(20).ok());
  EXPECT_EQ(Attempt(options(1, 3)).load()->step, 20);
}

// A shard whose index is damaged or of another save, and one that is cut short or missing, is named, and the previous
// step is used.
TEST_F(VersionsTest, IndexFaultsAreNamedAndFallBack) {
  {
    Attempt job(options(2));
    ASSERT_TRUE(job.save(5).ok());
    ASSERT_TRUE(job.save(10).ok());
  }
  const fs::path shard = step(10) / "a1-00001.safetensors";
  const std::string whole = read(shard);
  int attempt = 1;
  const auto named = [&](const std::string& bytes, const std::string& expected) {
    write(shard, bytes);
    EXPECT_THAT(problems(10), ElementsAre(AllOf(HasSubstr(shard.string()), HasSubstr(expected))));
    Attempt next(options(2, ++attempt));
    EXPECT_EQ(next.load()->step, 5);
    const auto rejected = next.events(rank_protocol::event::kRejected);
    ASSERT_EQ(rejected.size(), 1u);
    EXPECT_THAT(rejected[0].members["reason"].get<std::string>(), AllOf(HasSubstr("rank 1"), HasSubstr(expected)));
  };
  std::string damaged = whole;
  damaged[whole.size() - 10] ^= 4;
  named(damaged, "its last bytes: checksum mismatch: the index is damaged");
  damaged = whole;
  damaged.replace(whole.size() - index_bytes(0), 8, "XXXXXXXX");
  named(damaged, "its last bytes: ");
  named(whole.substr(0, whole.size() - 4), "bytes, the manifest says");
  // Step 5's shard of the same rank: valid by itself, of the same size.
  const std::string older = read(step(5) / "a1-00001.safetensors");
  ASSERT_EQ(older.size(), whole.size());
  named(older, "its index is not the one that the manifest names");
  // This save's index follows another save's data.
  const auto reader = StepReader::open(posix_files(), step(5).string());
  const auto index = static_cast<size_t>((*reader)->manifest().files[1].index_bytes);
  write(shard, older.substr(0, older.size() - index) + whole.substr(whole.size() - index));
  EXPECT_FALSE(problems(10).empty());
  EXPECT_THAT(problems(10)[0], HasSubstr("checksum mismatch in "));
  fs::remove(shard);
  EXPECT_THAT(problems(10), ElementsAre(HasSubstr(shard.string())));
  EXPECT_EQ(Attempt(options(2, ++attempt)).load()->step, 5);
}

// A rank opens only the shards that it needs.
TEST_F(VersionsTest, RanksOpenOnlyTheShardsTheyNeed) {
  ASSERT_TRUE(Attempt(options(8)).save(1).ok());
  std::mutex mutex;
  std::map<int, std::set<std::string>> opened;
  std::vector<std::unique_ptr<storage::FaultyFiles>> counting;
  for (int rank = 0; rank < 8; ++rank) {
    counting.push_back(std::make_unique<storage::FaultyFiles>([&, rank](const storage::FileOperation& operation) {
      std::lock_guard lock(mutex);
      const std::string name = fs::path(operation.path).filename().string();
      if (name.ends_with(".safetensors")) opened[rank].insert(name);
      return storage::Fault{};
    }));
  }
  Attempt::Options reader = options(8, 2);
  reader.rank_files = [&](int rank) { return counting[static_cast<size_t>(rank)].get(); };
  ASSERT_TRUE(Attempt(std::move(reader)).load().ok());
  for (int rank = 1; rank < 8; ++rank) {  // All ranks load optim.step, which is in rank 0's shard.
    EXPECT_LE(opened[rank].size(), 2u) << rank;
    EXPECT_TRUE(opened[rank].contains("a1-0000" + std::to_string(rank) + ".safetensors"));
  }
}

// Written by hand: pieces of one tensor in any order, several of them in a shard, and more shards than are kept open.
TEST_F(VersionsTest, ReadsAnyPiecesFromAnyShards) {
  const at::Tensor many = at::arange(300 * 4, at::kFloat).reshape({300, 4});
  const at::Tensor few = at::arange(6 * 3, at::kLong).reshape({6, 3});
  const std::string folder = dump_ + "/by-hand";
  ASSERT_TRUE(posix_files().make_folders(folder).ok());
  const auto rows = [](const char* key, const at::Tensor& full, int64_t first, int64_t count) {
    return Staged{key, full.sizes().vec(), {first, 0}, full.narrow(0, first, count).contiguous()};
  };
  std::vector<WrittenShard> shards;
  for (int i = 0; i < 300; ++i) {
    std::vector<Staged> parts = {rows("model.many", many, i, 1)};
    if (i == 7) {
      for (const int64_t first : {3, 0, 5}) parts.push_back(rows("model.few", few, first, 1));
      parts.push_back(rows("model.few", few, 1, 2));
    }
    if (i == 299) parts.push_back(rows("model.few", few, 4, 1));
    auto shard = write_shard(posix_files(), folder, {1, i}, parts);
    ASSERT_TRUE(shard.ok()) << shard.status();
    shards.push_back(*std::move(shard));
  }
  Manifest manifest{.step = 1, .job_uid = "job"};
  ASSERT_EQ(complete(shards, manifest), absl::OkStatus());
  ASSERT_TRUE(storage::atomic_write(posix_files(), folder + "/" + kManifestName, to_text(manifest)).ok());
  const auto reader = StepReader::open(posix_files(), folder);
  ASSERT_TRUE(reader.ok()) << reader.status();
  at::Tensor all = at::empty_like(many), some = at::empty({4, 2}, at::kLong);
  const Box part{{1, 1}, {4, 2}};
  EXPECT_EQ((*reader)->read({{(*reader)->manifest().find("model.many"), whole({300, 4}), &all},
                             {(*reader)->manifest().find("model.few"), part, &some}}),
            absl::OkStatus());
  EXPECT_TRUE(at::equal(all, many));
  EXPECT_TRUE(at::equal(some, few.narrow(0, 1, 4).narrow(1, 1, 2)));
  EXPECT_THAT((*reader)->verify(), ElementsAre());
  EXPECT_THAT((*reader)->manifest().piece_counts(), ElementsAre(5, 300));
}

}  // namespace
}  // namespace titan::checkpoint::testing

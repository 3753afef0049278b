#include <filesystem>
#include <fstream>

#include "controller/cli/profile.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/rank_protocol/temp_folder.h"

namespace titan::cli {
namespace {

namespace fs = std::filesystem;
using rank_protocol::TempFolder;

v1::TraceChunk piece(int rank, int64_t offset, const std::string& data, int64_t total) {
  v1::TraceChunk chunk;
  chunk.set_state(v1::TraceChunk::WRITTEN);
  chunk.set_rank(rank);
  chunk.set_node("n1");
  chunk.set_first_step(4);
  chunk.set_last_step(6);
  chunk.set_offset(offset);
  chunk.set_data(data);
  chunk.set_total_bytes(total);
  return chunk;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Data that a controller sends again after a break is written once.
TEST(TraceFilesTest, FileGetsItsNameOnceComplete) {
  const TempFolder folder;
  TraceFiles files("job", folder.file("out"), {0, 7});
  ASSERT_TRUE(files.prepare().ok());
  EXPECT_FALSE(*files.take(piece(7, 0, "abc", 8)));
  EXPECT_FALSE(fs::exists(folder.file("out/rank7_trace.json")));
  EXPECT_FALSE(*files.take(piece(7, 0, "abcde", 8)));
  EXPECT_TRUE(*files.take(piece(7, 5, "fgh", 8)));
  EXPECT_FALSE(*files.take(piece(7, 0, "abcdefgh", 8)));
  EXPECT_EQ(text_of(folder.file("out/rank7_trace.json")), "abcdefgh");
  EXPECT_EQ(files.of(7).first_step, 4);
  EXPECT_EQ(files.of(7).last_step, 6);
  EXPECT_FALSE(files.of(0).whole);
}

TEST(TraceFilesTest, IncompleteFilesAreDeleted) {
  const TempFolder folder;
  {
    TraceFiles files("job", folder.file("out"), {0});
    EXPECT_FALSE(*files.take(piece(0, 0, "abc", 8)));
  }
  EXPECT_TRUE(fs::is_empty(folder.file("out")));
}

TEST(TraceFilesTest, TheFolderIsNamedAfterTheJobAndItsStep) {
  const TempFolder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  {
    TraceFiles files("my-job", "", {0});
    EXPECT_TRUE(*files.take(piece(0, 0, "abc", 3)));
    EXPECT_EQ(files.folder(), "my-job_iteration_6");
  }
  fs::current_path(before);
  EXPECT_EQ(text_of(folder.file("my-job_iteration_6/rank0_trace.json")), "abc");
}

// A malicious controller cannot write to other files.
TEST(TraceFilesTest, UnrequestedDataIsRefused) {
  const TempFolder folder;
  TraceFiles files("job", folder.file("out"), {0});
  EXPECT_EQ(files.take(piece(1, 0, "abc", 3)).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(files.take(piece(0, 2, "c", 3)).status().code(), absl::StatusCode::kDataLoss) << "two bytes are missing";
}

TEST(TraceFilesTest, FolderThatCannotBeCreatedFailsInPrepare) {
  const TempFolder folder;
  std::ofstream(folder.file("file")) << "a file";
  const TraceFiles files("job", folder.file("file/out"), {0});
  EXPECT_FALSE(files.prepare().ok());
}

}  // namespace
}  // namespace titan::cli

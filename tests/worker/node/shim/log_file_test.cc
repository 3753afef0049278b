#include "worker/node/shim/log_file.h"

#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/common/rank_protocol/temp_folder.h"

namespace titan::shim {
namespace {

using rank_protocol::TempFolder;

// Offsets are stable: after any rotation each remaining byte is at the offset at which it was written.
TEST(LogFileTest, OffsetsStayGlobal) {
  const TempFolder folder;
  const std::string path = folder.file("rank-0.log");
  std::string written;
  std::mt19937 random(7);
  auto writer = LogWriter::open(path, 64 << 10);
  ASSERT_TRUE(writer.ok());
  for (int i = 0; i < 5000; ++i) {
    const std::string line = absl::StrCat("line ", i, std::string(random() % 100, 'x'), "\n");
    writer->append(line.data(), line.size());
    written += line;
    if (i % 500 == 0) {  // A new writer continues where the old one ended.
      writer = LogWriter::open(path, 64 << 10);
      ASSERT_TRUE(writer.ok());
    }
  }
  const auto all = read_log(path, 0, 0, 1 << 20);
  ASSERT_TRUE(all.ok());
  EXPECT_GT(all->dropped_bytes, 0);
  EXPECT_LE(all->data.size(), 64 << 10);
  EXPECT_TRUE(all->end);
  EXPECT_EQ(all->data, written.substr(all->offset));
  EXPECT_EQ(all->offset, all->dropped_bytes);
  // A follower reads in pieces and gets the same bytes.
  std::string pieces;
  for (int64_t offset = all->offset;;) {
    const auto piece = read_log(path, offset, 0, 777);
    ASSERT_TRUE(piece.ok());
    ASSERT_EQ(piece->offset, offset);
    pieces += piece->data;
    offset += static_cast<int64_t>(piece->data.size());
    if (piece->end) break;
  }
  EXPECT_EQ(pieces, all->data);
}

TEST(LogFileTest, TailCountsLines) {
  const TempFolder folder;
  const std::string path = folder.file("rank-0.log");
  auto writer = LogWriter::open(path, 1 << 20);
  ASSERT_TRUE(writer.ok());
  const std::string text = "one\ntwo\nthree\n";
  writer->append(text.data(), text.size());
  EXPECT_EQ(read_log(path, -1, 2, 1000)->data, "two\nthree\n");
  EXPECT_EQ(read_log(path, -1, 2, 1000)->offset, 4);
  EXPECT_EQ(read_log(path, -1, 9, 1000)->data, text);
  EXPECT_EQ(read_log(path, -1, 0, 1000)->data, "");
  writer->append("four", 4);
  EXPECT_EQ(read_log(path, -1, 1, 1000)->data, "four");
  EXPECT_EQ(read_log(path, 999, 0, 1000)->data, "");
  EXPECT_EQ(read_log(folder.file("none"), 0, 0, 10).status().code(), absl::StatusCode::kNotFound);
}

// A reader next to a rotating writer sees no byte twice or at a wrong offset.
TEST(LogFileTest, ReadersRaceWithRotation) {
  const TempFolder folder;
  const std::string path = folder.file("rank-0.log");
  auto writer = LogWriter::open(path, 16 << 10);
  ASSERT_TRUE(writer.ok());
  constexpr int kNumbers = 60'000;
  std::thread thread([&] {
    for (int i = 0; i < kNumbers; ++i) {
      char line[16];
      std::snprintf(line, sizeof(line), "%09d\n", i);
      writer->append(line, 10);
    }
  });
  int64_t offset = 0;
  for (int64_t last = -1; last < kNumbers - 1;) {
    const auto piece = read_log(path, offset, 0, 1000);
    ASSERT_TRUE(piece.ok()) << piece.status();
    ASSERT_GE(piece->offset, offset);
    for (size_t at = (10 - piece->offset % 10) % 10; at + 10 <= piece->data.size(); at += 10) {
      const int64_t number = std::atoll(piece->data.c_str() + at);
      ASSERT_EQ(number, (piece->offset + static_cast<int64_t>(at)) / 10);
      last = number;
    }
    offset = piece->offset + static_cast<int64_t>(piece->data.size());
  }
  thread.join();
}

}  // namespace
}  // namespace titan::shim

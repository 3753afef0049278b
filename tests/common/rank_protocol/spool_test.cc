#include "common/rank_protocol/spool.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/rank_protocol/temp_folder.h"

namespace titan::rank_protocol {
namespace {

using nlohmann::json;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// Appends events of different lengths, with characters that JSON escapes.
void append_some(const std::string& path, int count) {
  absl::StatusOr<SpoolWriter> writer = SpoolWriter::open(path);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (int i = 0; i < count; ++i) {
    ASSERT_TRUE(writer->append("step", {{"step", i}, {"text", std::string(i * 3, 'x') + "\n\"\xc3\xa4"}}).ok());
  }
}

TEST(SpoolTest, NumbersLinesAndAddsTimeAndKind) {
  const TempFolder folder;
  const std::string path = folder.file("s");
  absl::StatusOr<SpoolWriter> writer = SpoolWriter::open(path);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->append("started", {{"pid", 7}}).ok());
  ASSERT_TRUE(writer->append("finished").ok());
  const absl::StatusOr<SpoolBatch> batch = read_spool(path, 0, 1 << 20);
  ASSERT_TRUE(batch.ok());
  ASSERT_EQ(batch->lines.size(), 2);
  const json first = json::parse(batch->lines[0].json);
  EXPECT_EQ(first["seq"], 1);
  EXPECT_EQ(first["kind"], "started");
  EXPECT_EQ(first["pid"], 7);
  EXPECT_GT(first["time"].get<int64_t>(), 1'600'000'000'000'000'000);
  EXPECT_EQ(json::parse(batch->lines[1].json)["seq"], 2);
  EXPECT_EQ(batch->lines[1].sequence, 2);
  EXPECT_EQ(batch->next_offset, static_cast<int64_t>(read_file(path).size()));
}

// A writer that is killed at any byte of a write loses at most that line, and the next writer continues with the right
// number.
TEST(SpoolTest, SurvivesTruncationAtEveryByte) {
  const TempFolder folder;
  const std::string whole_path = folder.file("whole");
  append_some(whole_path, 12);
  const std::string whole = read_file(whole_path);
  const std::string path = folder.file("cut");
  for (size_t size = 0; size <= whole.size(); ++size) {
    write_file(path, whole.substr(0, size));
    const auto lines = static_cast<int64_t>(std::count(whole.begin(), whole.begin() + size, '\n'));
    const absl::StatusOr<SpoolBatch> torn = read_spool(path, 0, 1 << 20);
    ASSERT_TRUE(torn.ok()) << torn.status();
    ASSERT_EQ(torn->lines.size(), lines) << size;
    absl::StatusOr<SpoolWriter> writer = SpoolWriter::open(path);
    ASSERT_TRUE(writer.ok()) << size << writer.status();
    ASSERT_TRUE(writer->append("finished").ok());
    const absl::StatusOr<SpoolBatch> rest = read_spool(path, torn->next_offset, 1 << 20);
    ASSERT_TRUE(rest.ok()) << rest.status();
    ASSERT_EQ(rest->lines.size(), 1);
    ASSERT_EQ(rest->lines[0].sequence, lines + 1) << size;
    ASSERT_TRUE(json::accept(rest->lines[0].json));
  }
}

// Reads of any size give every line once, in order.
TEST(SpoolTest, ReadsInPiecesOfAnySize) {
  const TempFolder folder;
  const std::string path = folder.file("s");
  append_some(path, 20);
  for (const int64_t piece : {1, 7, 64, 100, 1000, 100000}) {
    int64_t offset = 0;
    int64_t expected = 1;
    for (;;) {
      const absl::StatusOr<SpoolBatch> batch = read_spool(path, offset, piece);
      ASSERT_TRUE(batch.ok());
      if (batch->lines.empty()) break;
      for (const SpoolLine& line : batch->lines) ASSERT_EQ(line.sequence, expected++);
      ASSERT_EQ(batch->lines.back().end_offset, batch->next_offset);
      offset = batch->next_offset;
    }
    EXPECT_EQ(expected, 21);
  }
}

TEST(SpoolTest, LongLinesDoNotHideTheLastNumber) {
  const TempFolder folder;
  const std::string path = folder.file("s");
  absl::StatusOr<SpoolWriter> writer = SpoolWriter::open(path);
  ASSERT_TRUE(writer.ok());
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(writer->append("warning", {{"message", std::string(300'000, 'm')}}).ok());
  writer = SpoolWriter::open(path);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(writer->append("finished").ok());
  const absl::StatusOr<SpoolBatch> batch = read_spool(path, 0, 10);
  ASSERT_TRUE(batch.ok());
  ASSERT_FALSE(batch->lines.empty());
  EXPECT_EQ(batch->lines[0].sequence, 1);
  EXPECT_EQ(batch->lines[0].json.size() > 300'000, true);
  EXPECT_EQ(read_spool(path, 0, 1 << 20)->lines.back().sequence, 3);
}

// One event must not fill a reader's memory or a message.
TEST(SpoolTest, OversizedLineIsNumberedAndCut) {
  const TempFolder folder;
  const std::string path = folder.file("s");
  absl::StatusOr<SpoolWriter> writer = SpoolWriter::open(path);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->append("before").ok());
  ASSERT_TRUE(writer->append("warning", {{"message", std::string(9 << 20, 'm')}}).ok());
  const std::string torn = read_file(path).substr(0, 6 << 20);
  ASSERT_TRUE(writer->append("after").ok());
  for (const int64_t piece : {int64_t{10}, int64_t{256 << 10}, int64_t{64 << 20}}) {
    std::vector<SpoolLine> lines;
    for (int64_t offset = 0;;) {
      const absl::StatusOr<SpoolBatch> batch = read_spool(path, offset, piece);
      ASSERT_TRUE(batch.ok()) << batch.status();
      if (batch->lines.empty()) break;
      lines.insert(lines.end(), batch->lines.begin(), batch->lines.end());
      offset = batch->next_offset;
    }
    ASSERT_EQ(lines.size(), 3u) << piece;
    const json cut = json::parse(lines[1].json);
    EXPECT_EQ(cut["seq"], 2);
    EXPECT_EQ(cut["kind"], "event_too_long");
    EXPECT_EQ(cut["bytes"], lines[1].end_offset - lines[0].end_offset - 1);
    EXPECT_EQ(json::parse(lines[2].json)["kind"], "after");
  }
  // While it is being written, it looks torn like any other line.
  write_file(path, torn);
  const absl::StatusOr<SpoolBatch> first = read_spool(path, 0, 1 << 20);
  ASSERT_TRUE(first.ok());
  ASSERT_EQ(first->lines.size(), 1u);
  const absl::StatusOr<SpoolBatch> rest = read_spool(path, first->next_offset, 1 << 20);
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_TRUE(rest->lines.empty());
}

// All events of a file, read in batches of one size, and the damage in between.
struct Whole {
  std::vector<int64_t> numbers;
  std::vector<DamagedRange> damage;
  int64_t next_offset = 0;
};
Whole read_whole(const std::string& path, int64_t piece) {
  Whole whole;
  for (;;) {
    const absl::StatusOr<SpoolBatch> batch = read_spool(path, whole.next_offset, piece);
    EXPECT_TRUE(batch.ok()) << batch.status();
    if (!batch.ok() || batch->next_offset == whole.next_offset) return whole;
    for (const SpoolLine& line : batch->lines) {
      whole.numbers.push_back(line.sequence);
      EXPECT_TRUE(json::accept(line.json)) << line.json.substr(0, 200);
    }
    for (const DamagedRange& part : batch->damage) {
      const bool follows =
          !whole.damage.empty() && whole.damage.back().offset + whole.damage.back().bytes == part.offset;
      follows ? void(whole.damage.back().bytes += part.bytes) : whole.damage.push_back(part);
    }
    whole.next_offset = batch->next_offset;
  }
}

// Junk between events costs the events that it overwrote, and none after it.
TEST(SpoolTest, DamageIsSkippedUpToTheNextEvent) {
  const TempFolder folder;
  const std::string path = folder.file("s");
  append_some(path, 4);
  const std::string good = read_file(path);
  std::vector<size_t> begins = {0};
  for (size_t at = good.find('\n'); at != std::string::npos; at = good.find('\n', at + 1)) begins.push_back(at + 1);
  const std::string huge(5 << 20, 'x');
  struct Case {
    const char* what;
    size_t at;         // Offset of the junk.
    std::string junk;  // Inserted at `at`.
    size_t instead;    // Bytes at `at` that the junk overwrites.
    std::vector<int64_t> numbers;
    size_t damaged;  // Bytes that are reported as damaged.
  };
  const std::vector<Case> cases = {
      {"lines in the middle", begins[1], "junk\nmore junk\n\n", 0, {1, 2, 3, 4}, 16},
      {"lines at the end", good.size(), "junk\nmore\n", 0, {1, 2, 3, 4}, 10},
      {"lines at the start", 0, "junk\n", 0, {1, 2, 3, 4}, 5},
      {"bytes without a line end", begins[2], "junk", 0, {1, 2, 3, 4}, 4},
      {"a hole", begins[1], std::string(5000, '\0'), 0, {1, 2, 3, 4}, 5000},
      {"a hole in place of an event",
       begins[1],
       std::string(begins[2] - begins[1], '\0'),
       begins[2] - begins[1],
       {1, 3, 4},
       begins[2] - begins[1]},
      {"a torn line with another after it", begins[2] - 12, "", 12, {1, 3, 4}, begins[2] - begins[1] - 12},
      {"an empty line", begins[1], "\n", 0, {1, 2, 3, 4}, 1},
      {"a line longer than any event", begins[1], huge + "\n", 0, {1, 2, 3, 4}, huge.size() + 1},
      {"as much without a line end", begins[1], huge, 0, {1, 2, 3, 4}, huge.size()},
      {"JSON that is not an event", begins[3], "{\"seq\":-4,\"kind\":\"step\"}\n", 0, {1, 2, 3, 4}, 25},
      {"a number without its end", begins[3], "{\"seq\":77\n", 0, {1, 2, 3, 4}, 10},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    write_file(path, good.substr(0, one.at) + one.junk + good.substr(one.at + one.instead));
    for (const int64_t piece : {int64_t{1}, int64_t{100}, int64_t{64 << 10}, int64_t{64 << 20}}) {
      const Whole whole = read_whole(path, piece);
      EXPECT_EQ(whole.numbers, one.numbers) << piece;
      int64_t reported = 0;
      for (const DamagedRange& part : whole.damage) reported += part.bytes;
      EXPECT_EQ(reported, static_cast<int64_t>(one.damaged)) << piece;
      EXPECT_EQ(whole.next_offset, static_cast<int64_t>(read_file(path).size())) << piece;
    }
  }
  write_file(path, "not an event\n");
  EXPECT_EQ(SpoolWriter::open(path).status().code(), absl::StatusCode::kDataLoss);
}

// Events that a rank appends after the damage are read, even if its own last line was damaged.
TEST(SpoolTest, WriterContinuesAfterDamage) {
  const TempFolder folder;
  const std::string path = folder.file("s");
  absl::StatusOr<SpoolWriter> writer = SpoolWriter::open(path);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->append("before").ok());
  std::ofstream(path, std::ios::app) << "somebody's note";
  EXPECT_EQ(read_whole(path, 100).numbers, (std::vector<int64_t>{1})) << "it may be a line that is being written";
  ASSERT_TRUE(writer->append("after").ok());
  const Whole whole = read_whole(path, 100);
  EXPECT_EQ(whole.numbers, (std::vector<int64_t>{1, 2}));
  ASSERT_EQ(whole.damage.size(), 1u);
  EXPECT_EQ(whole.damage[0].bytes, 15);
}

// If the file was emptied, it is read from its start, and later events are not lost.
TEST(SpoolTest, TruncatedFileIsReadFromItsStart) {
  const TempFolder folder;
  const std::string path = folder.file("s");
  absl::StatusOr<SpoolWriter> writer = SpoolWriter::open(path);
  ASSERT_TRUE(writer.ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(writer->append("step").ok());
  const auto offset = static_cast<int64_t>(read_file(path).size());
  write_file(path, "");
  ASSERT_TRUE(writer->append("finished").ok());
  const absl::StatusOr<SpoolBatch> batch = read_spool(path, offset, 1 << 20);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_TRUE(batch->was_cut);
  ASSERT_EQ(batch->lines.size(), 1u);
  EXPECT_EQ(batch->lines[0].sequence, 4);
  EXPECT_EQ(batch->next_offset, batch->lines[0].end_offset);
}

TEST(SpoolTest, ErrorsAreExact) {
  const TempFolder folder;
  EXPECT_EQ(read_spool(folder.file("none"), 0, 10).status().code(), absl::StatusCode::kNotFound);
  append_some(folder.file("s"), 1);
  EXPECT_EQ(SpoolWriter::open(folder.file("none/s")).status().code(), absl::StatusCode::kNotFound);
  absl::StatusOr<SpoolWriter> writer = SpoolWriter::open(folder.file("s"));
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ(writer->append("step", {{"seq", 1}}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(writer->append("step", json::array()).code(), absl::StatusCode::kInvalidArgument);
}

// While the disk is full, events are lost with an error, and the numbers of the others have no gap.
TEST(SpoolTest, FullDiskLosesTheEventOnly) {
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full";
  absl::StatusOr<SpoolWriter> writer = SpoolWriter::open("/dev/full");
  if (!writer.ok()) GTEST_SKIP() << writer.status();
  EXPECT_EQ(writer->append("finished").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(writer->append("finished").code(), absl::StatusCode::kResourceExhausted);
}

TEST(SpoolTest, InvalidUtf8AndNanDoNotThrow) {
  const TempFolder folder;
  absl::StatusOr<SpoolWriter> writer = SpoolWriter::open(folder.file("s"));
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->append("error", {{"message", "bad \xff byte"}, {"loss", std::nan("")}}).ok());
  const json event = json::parse(read_spool(folder.file("s"), 0, 1000)->lines[0].json);
  EXPECT_TRUE(event["loss"].is_null());
}

TEST(SpoolTest, ThreadsShareOneWriter) {
  const TempFolder folder;
  absl::StatusOr<SpoolWriter> writer = SpoolWriter::open(folder.file("s"));
  ASSERT_TRUE(writer.ok());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) EXPECT_TRUE(writer->append("step", {{"step", i}}).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  const absl::StatusOr<SpoolBatch> batch = read_spool(folder.file("s"), 0, 1 << 20);
  ASSERT_TRUE(batch.ok());
  ASSERT_EQ(batch->lines.size(), 800);
  for (int i = 0; i < 800; ++i) ASSERT_EQ(batch->lines[i].sequence, i + 1);
}

}  // namespace
}  // namespace titan::rank_protocol

// Tests torch.save's archives: found inside a file, read without inflating, and refused if they are something else.

#include "worker/rank/checkpoint/formats/pickle/archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <random>

#include "worker/rank/checkpoint/formats/pickle/archive_stream.h"
#include "worker/rank/checkpoint/formats/pickle/archive_writer.h"
#include "worker/rank/checkpoint/formats/pickle/reader.h"

namespace titan::pickle {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class Memory : public storage::ReadableFile {
 public:
  explicit Memory(std::string bytes) : bytes_(std::move(bytes)) {}
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
  absl::Status read(int64_t offset, int64_t bytes, char* out) override {
    if (offset < 0 || bytes < 0 || offset > size() - bytes) return absl::DataLossError("outside of the file");
    std::memcpy(out, bytes_.data() + offset, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  std::string at(const FileRange& range) const {
    return bytes_.substr(static_cast<size_t>(range.begin), static_cast<size_t>(range.bytes));
  }

 private:
  std::string bytes_;
};

// Returns "tensor" if the range holds the archive of a tensor, otherwise the reason for its refusal.
std::string describe(Memory& file, const FileRange& range) {
  const auto archive = Archive::open(file, range, "f.distcp");
  if (!archive.ok()) return std::string(archive.status().message());
  const auto tensor = archive->tensor();
  return tensor.ok() ? "tensor" : std::string(tensor.status().message());
}

TEST(ArchiveTest, ReadsTensorInTheMiddleOfAFile) {
  const std::string numbers = "0123456789abcdef01234567", before(77, 'x');
  const std::string archive = save_tensor("float32", {2, 3}, numbers);
  Memory file(before + archive + before);
  const auto opened = Archive::open(file, {77, static_cast<int64_t>(archive.size())}, "f");
  ASSERT_TRUE(opened.ok()) << opened.status();
  const auto tensor = opened->tensor();
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_EQ(tensor->type, "float32");
  EXPECT_THAT(tensor->shape, ::testing::ElementsAre(2, 3));
  EXPECT_THAT(tensor->strides, ::testing::ElementsAre(3, 1));
  EXPECT_EQ(file.at(tensor->storage), numbers);
}

// A file of mostly zeros: large appends are only counted, not stored.
class Sparse : public storage::ReadableFile {
 public:
  absl::Status append(std::string_view bytes) {
    if (bytes.size() < 1 << 20) stored_[size_] = bytes;
    size_ += static_cast<int64_t>(bytes.size());
    return absl::OkStatus();
  }
  int64_t size() const override { return size_; }
  absl::Status read(int64_t offset, int64_t bytes, char* out) override {
    std::memset(out, 0, static_cast<size_t>(bytes));
    for (const auto& [begin, part] : stored_) {
      const int64_t from = std::max(begin, offset),
                    to = std::min(begin + static_cast<int64_t>(part.size()), offset + bytes);
      if (from < to) std::memcpy(out + (from - offset), part.data() + (from - begin), static_cast<size_t>(to - from));
    }
    return absl::OkStatus();
  }

 private:
  int64_t size_ = 0;
  std::map<int64_t, std::string> stored_;
};

// Streams in pieces, including an entry beyond the first 4 GiB, where sizes and offsets take 64 bits. Checksums of that
// much data take seconds.
TEST(ArchiveTest, StreamsTensorsOfAnySize) {
  const int64_t piece = 1 << 26, pieces = std::getenv("TITAN_LONG") != nullptr ? 65 : 2;
  Writer writer(2);
  writer.empty_dict().mark();
  tensor(writer.text("large"), "float32", {pieces * piece / 4}, "0");
  tensor(writer.text("small"), "float32", {2}, "1");
  Sparse file;
  ArchiveStream stream([&](std::string_view bytes) { return file.append(bytes); });
  const std::string zeros(static_cast<size_t>(piece), '\0'), numbers = "01234567";
  ASSERT_TRUE(stream.add("data.pkl", writer.set_items().finish()).ok());
  ASSERT_TRUE(stream.begin("data/0", pieces * piece).ok());
  for (int64_t i = 0; i < pieces; ++i) ASSERT_TRUE(stream.append(zeros).ok());
  ASSERT_TRUE(stream.add("data/1", numbers).ok());
  ASSERT_TRUE(stream.finish().ok());

  const auto archive = Archive::open(file, {0, file.size()}, "f");
  ASSERT_TRUE(archive.ok()) << archive.status();
  const auto document = archive->pickle();
  ASSERT_TRUE(document.ok()) << document.status();
  const auto large = archive->tensor(*document, *document->find(document->root(), "large"));
  const auto small = archive->tensor(*document, *document->find(document->root(), "small"));
  ASSERT_TRUE(large.ok() && small.ok()) << large.status() << small.status();
  EXPECT_EQ(large->storage.bytes, pieces * piece);
  EXPECT_EQ(large->storage.begin % 64, 0);
  std::string found(numbers.size(), '\0');
  ASSERT_TRUE(file.read(small->storage.begin, small->storage.bytes, found.data()).ok());
  EXPECT_EQ(found, numbers);
}

TEST(ArchiveTest, EntrySizeMustMatchTheAnnouncedSize) {
  ArchiveStream stream([](std::string_view) { return absl::OkStatus(); });
  ASSERT_TRUE(stream.begin("data/0", 5).ok());
  ASSERT_TRUE(stream.append("1234").ok());
  EXPECT_THAT(std::string(stream.finish().message()), HasSubstr("4 bytes were added, 5 were announced"));
}

TEST(ArchiveTest, ReadsPlainObjects) {
  const json value = {{"step", 10}, {"raw", json::binary({1, 0, 255})}};
  const std::string bytes = save_plain(value);
  Memory file(bytes);
  EXPECT_EQ(Archive::open(file, {0, file.size()}, "f")->plain().value(), value);
  EXPECT_THAT(describe(file, {0, file.size()}), HasSubstr("not a plain tensor: it holds a dict"));
}

TEST(ArchiveTest, RefusalsNameTheReason) {
  const std::string good = save_tensor("float32", {2}, "01234567");
  Memory short_file(good.substr(0, good.size() - 1));
  EXPECT_THAT(describe(short_file, {0, static_cast<int64_t>(good.size())}), HasSubstr("it is cut short"));
  EXPECT_THAT(describe(short_file, {0, short_file.size()}), HasSubstr("no end record"));
  Memory mislabeled(save_tensor("float32", {3}, "01234567"));
  EXPECT_THAT(describe(mislabeled, {0, mislabeled.size()}), HasSubstr("larger than its storage"));
  std::string inflated = good;
  inflated[inflated.find("PK\x01\x02") + 10] = 8;
  Memory compressed(inflated);
  EXPECT_THAT(describe(compressed, {0, compressed.size()}), HasSubstr("data.pkl is compressed"));
  std::string big = good;
  big.replace(big.find("little"), 6, "bigbig");
  Memory other(big);
  EXPECT_THAT(describe(other, {0, other.size()}), HasSubstr("byte order \"bigbig\""));
}

TEST(ArchiveTest, SurvivesMutations) {
  const std::string good = save_tensor("bfloat16", {4, 2}, "0123456789abcdef");
  std::mt19937 random(11);
  for (int i = 0; i < 3000; ++i) {
    std::string bad = good;
    for (int n = 0; n <= i % 3; ++n) bad[random() % bad.size()] = static_cast<char>(random());
    if (i % 5 == 0) bad.resize(random() % bad.size());
    Memory file(bad);
    const std::string got = describe(file, {0, file.size()});
    EXPECT_TRUE(got == "tensor" || got.find("f.distcp") != got.npos || got.find("outside") != got.npos) << got;
  }
}

}  // namespace
}  // namespace titan::pickle

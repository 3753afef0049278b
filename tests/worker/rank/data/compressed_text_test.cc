// Tests that the text of a compressed file can be read in pieces, in any order.
#include "worker/rank/data/documents/compressed_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/io/data_files/line_reader.h"
#include "tests/worker/rank/data/compress.h"
#include "tests/worker/rank/data/testing.h"
#include "worker/rank/data/documents/text_blocks.h"

namespace titan::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CompressedTextTest : public ::testing::TestWithParam<const char*> {
 protected:
  // Lines of words, empty lines, lines of spaces, and one line of many pieces.
  CompressedTextTest() {
    for (int i = 0; i < 4000; ++i) {
      const size_t length = i == 900 ? 30'000 : random_() % 4 == 0 ? 0 : random_() % 60;
      const bool spaces = random_() % 5 == 0;
      for (size_t j = 0; j < length; ++j)
        text_ += spaces ? " \t\r"[random_() % 3] : static_cast<char>('a' + random_() % 26);
      text_ += '\n';
    }
    text_ += "no end of line";
    name_ = absl::StrCat("text.", GetParam());
    bytes_ = testing::as_named(name_, text_, 1 + text_.size() / 3);
    path_ = folder_.write(name_, bytes_);
  }

  std::unique_ptr<CompressedText> open(const CompressedText::Options& options) const {
    return std::make_unique<CompressedText>(path_, *storage::posix_files().open(path_), options);
  }

  static constexpr CompressedText::Options kSmall{
      .piece_bytes = 300, .least_apart = 4000, .max_states = 8, .kept_text = 2000};
  std::mt19937 random_{3};
  std::string text_, name_, bytes_, path_;
  testing::Folder folder_;
};
INSTANTIATE_TEST_SUITE_P(Formats, CompressedTextTest, ::testing::Values("gz", "zst"),
                         [](const auto& of) { return std::string(of.param); });

// The pieces, joined in order, are the text, and what each piece reports about its beginning matches the text before
// it.
TEST_P(CompressedTextTest, PiecesJoinToTheText) {
  for (const int64_t piece_bytes : {7, 300, 5000, 10'000'000}) {
    const auto text = open({.piece_bytes = piece_bytes});
    ASSERT_EQ(text->pieces(), (static_cast<int64_t>(bytes_.size()) + 4 * piece_bytes - 1) / (4 * piece_bytes) * 4);
    std::string all;
    for (int64_t i = 0; i < text->pieces(); ++i) {
      const auto piece = text->piece(i);
      ASSERT_TRUE(piece.ok()) << piece.status();
      ASSERT_EQ((*piece)->begin, static_cast<int64_t>(all.size()));
      ASSERT_EQ((*piece)->in_line, !all.empty() && all.back() != '\n') << i;
      const std::string_view before = std::string_view(all).substr(0, all.size() - (all.ends_with('\n') ? 1 : 0));
      const bool words = !all.empty() && !data_files::blank(before.substr(before.rfind('\n') + 1));
      ASSERT_EQ((*piece)->words, words) << i;
      all += (*piece)->text;
    }
    EXPECT_EQ(all, text_);
    EXPECT_EQ(text->decompressed(), static_cast<int64_t>(text_.size()));
  }
}

// Pieces are the same whatever was read before, also when an offset selects them.
TEST_P(CompressedTextTest, PiecesDoNotDependOnReadOrder) {
  const auto text = open(kSmall), other = open(kSmall);
  std::vector<CompressedText::Piece> pieces;
  for (int64_t i = 0; i < text->pieces(); ++i) pieces.push_back(**other->piece(i));
  for (int round = 0; round < 300; ++round) {
    auto at = static_cast<size_t>(random_() % pieces.size());
    for (size_t step = random_() % 5 + 1; step > 0 && at < pieces.size(); --step, at += random_() % 3) {
      const auto piece = text->piece(static_cast<int64_t>(at));
      ASSERT_TRUE(piece.ok()) << piece.status();
      ASSERT_EQ((*piece)->text, pieces[at].text) << at;
      ASSERT_EQ((*piece)->begin, pieces[at].begin) << at;
      ASSERT_EQ((*piece)->in_line, pieces[at].in_line) << at;
      ASSERT_EQ((*piece)->words, pieces[at].words) << at;
    }
    const auto offset = static_cast<int64_t>(random_() % text_.size());
    const auto found = text->piece_of(offset);
    ASSERT_TRUE(found.ok()) << found.status();
    const CompressedText::Piece& reference = pieces[static_cast<size_t>(*found)];
    EXPECT_TRUE(reference.begin <= offset && offset < reference.end()) << offset;
  }
  const auto end = static_cast<int64_t>(text_.size());
  EXPECT_EQ(*text->piece_of(end), text->pieces());
  EXPECT_THAT(text->piece_of(end + 1).status().message(), AllOf(HasSubstr(name_), HasSubstr("no line starts at byte")));
}

// Two readers that advance in parallel cost two passes, however far apart they are; gzip decompresses only from the
// nearest saved state.
TEST_P(CompressedTextTest, SeeksDoNotDecompressFromTheStart) {
  const auto text = open(kSmall);
  const int64_t pieces = text->pieces(), size = static_cast<int64_t>(text_.size());
  for (int64_t i = 0; i < pieces; ++i) {
    ASSERT_TRUE(text->piece(i).ok());
    if (i >= pieces / 2) {
      ASSERT_TRUE(text->piece(i - pieces / 2).ok());
    }
  }
  EXPECT_LE(text->decompressed(), 2 * size);
  if (GetParam() != std::string("gz")) return;
  const int64_t before = text->decompressed();
  constexpr int kTimes = 50;
  for (int i = 0; i < kTimes; ++i) ASSERT_TRUE(text->piece(static_cast<int64_t>(random_()) % pieces).ok());
  EXPECT_LT(text->decompressed() - before, kTimes * size / 4) << "four to eight states are saved";
}

// Every read reports damage at its place, and the text before it stays readable.
TEST_P(CompressedTextTest, DamageIsNamedAndEarlierTextStaysReadable) {
  std::string flipped = bytes_;
  for (size_t i = bytes_.size() * 2 / 3; i < bytes_.size() * 2 / 3 + 60; ++i)
    flipped[i] = static_cast<char>(~flipped[i]);
  for (const std::string& bad :
       {flipped, bytes_.substr(0, bytes_.size() * 2 / 3), bytes_.substr(0, bytes_.size() - 1)}) {
    folder_.write(name_, bad);
    const auto text = open(kSmall);
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(text->piece(text->pieces() / 3).ok());
      const auto last = text->piece(text->pieces() - 1);
      EXPECT_EQ(last.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(last.status().message(),
                  AllOf(HasSubstr(name_), HasSubstr(bad == flipped ? "damaged" : "cut short")));
    }
  }
  EXPECT_THAT(compressed_text_blocks(path_, 12345, 300, nullptr).status().message(), HasSubstr("had 12345"));
  EXPECT_EQ(compressed_text_blocks(path_ + "x", 1, 300, nullptr).status().code(), absl::StatusCode::kNotFound);
}

// A piece with gigabytes of text is refused, and the text before it stays readable.
TEST_P(CompressedTextTest, PiecesOfTooMuchTextAreRefused) {
  const auto length = static_cast<int64_t>(text_.size());
  bytes_ += testing::as_named(name_, std::string(30'000'000, ' '));
  folder_.write(name_, bytes_);
  const auto text = open({.piece_bytes = 3000});
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(text->piece(0).ok());
    const absl::Status refused = text->piece(text->pieces() - 1).status();
    EXPECT_TRUE(is_too_dense(refused)) << refused;
    EXPECT_THAT(refused.message(), AllOf(HasSubstr(name_), HasSubstr("more than 8388608 bytes of text")));
    EXPECT_TRUE(is_too_dense(text->piece_of(length + 29'000'000).status()));
  }
}

// A file that arrives in short parts and, from `fails_at` on, not at all.
class SlowRemote final : public data_files::RemoteFiles {
 public:
  explicit SlowRemote(std::string bytes) : bytes_(std::move(bytes)) {}

  absl::StatusOr<std::unique_ptr<data_files::ByteSource>> open(const std::string&, int64_t offset) override {
    ++opened;
    return std::make_unique<Source>(this, offset);
  }
  void stop() override {}

  int opened = 0;
  int64_t fails_at = -1;

 private:
  class Source final : public data_files::ByteSource {
   public:
    Source(SlowRemote* from, int64_t at) : from_(from), at_(at) {}
    absl::StatusOr<size_t> read(char* buffer, size_t size) override {
      if (from_->fails_at >= 0 && at_ >= from_->fails_at) return absl::UnavailableError("the hub is unreachable");
      const std::string_view part = std::string_view(from_->bytes_).substr(at_, std::min<size_t>(size, 170));
      part.copy(buffer, part.size());
      at_ += static_cast<int64_t>(part.size());
      return part.size();
    }

   private:
    SlowRemote* const from_;
    int64_t at_;
  };

  const std::string bytes_;
};

// A file of a hub gives the same pieces with few streams, and a failed read is repeated.
TEST_P(CompressedTextTest, RemoteFilesGiveTheSamePieces) {
  const auto size = static_cast<int64_t>(bytes_.size());
  const auto reference = open(kSmall);
  const auto remote = std::make_shared<SlowRemote>(bytes_);
  CompressedText text(name_, remote_bytes(remote, name_, size), kSmall);
  const int64_t pieces = text.pieces();
  for (int64_t i = 0; i < pieces; ++i) {
    for (const int64_t number : {i, i / 2}) {
      const auto piece = text.piece(number);
      ASSERT_TRUE(piece.ok()) << piece.status();
      ASSERT_EQ((*piece)->text, (*reference->piece(number))->text);
    }
  }
  EXPECT_LE(remote->opened, GetParam() == std::string("gz") ? 10 : 2) << "two, plus one per saved state";
  remote->fails_at = size / 2;
  CompressedText again(name_, remote_bytes(remote, name_, size), kSmall);
  EXPECT_EQ(again.piece(pieces - 1).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(again.piece(pieces / 3).ok());
  remote->fails_at = -1;
  EXPECT_EQ((*again.piece(pieces - 1))->text, (*reference->piece(pieces - 1))->text);
  CompressedText longer(name_, remote_bytes(remote, name_, size + 1000), kSmall);
  EXPECT_EQ(longer.piece(longer.pieces() - 1).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace titan::data

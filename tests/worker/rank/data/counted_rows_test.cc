// Tests that ranks that share the counting of a stream get the rows and positions of a single reader of everything.
#include "worker/rank/data/rows/counted_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/worker/rank/data/compress.h"
#include "tests/worker/rank/data/testing.h"
#include "worker/rank/data/rows/open_rows.h"
#include "worker/rank/data/rows/row_stream.h"
#include "worker/rank/data/rows/stream_state.h"

namespace titan::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Rows = std::vector<std::vector<int32_t>>;

// How texts are stored on disk: file i has ending i.
struct Stored {
  FileKind kind = {};
  std::vector<std::string> endings = {""};
};

std::string describe(const Stored& stored) {
  std::string all = name(stored.kind.format);
  if (stored.kind.blank_lines) all += "_paragraphs";
  for (const std::string& ending : stored.endings) {
    if (!ending.empty()) absl::StrAppend(&all, "_", ending.substr(1));
  }
  return all;
}
void PrintTo(const Stored& stored, std::ostream* out) { *out << describe(stored); }

std::string letters(std::mt19937& random, size_t length) {
  std::string text;
  for (size_t i = 0; i < length; ++i) text += static_cast<char>('a' + random() % 26);
  return text;
}

class CountedRowsTest : public ::testing::Test {
 protected:
  explicit CountedRowsTest(const Stored& stored = {}) : kind_(stored.kind), endings_(stored.endings) {
    folder_.write_tokenizer(testing::byte_tokenizer());
    std::mt19937 random(11);
    if (kind_.format == data_files::DatasetFormat::kJsonLines) write_lines(random);
    if (kind_.format == data_files::DatasetFormat::kText && kind_.blank_lines) write_paragraphs(random);
    if (kind_.format == data_files::DatasetFormat::kText && !kind_.blank_lines) write_files(random);
  }

  // Compresses the text in several members or frames.
  void add_file(const char* ending, const std::string& text) {
    const size_t file = files_.size();
    const std::string name = absl::StrCat("part-", 100 + file, ending, endings_[file % endings_.size()]);
    files_.push_back(folder_.write(name, testing::as_named(name, text, 1 + text.size() / (1 + file))));
  }

  // Writes lines from empty to many blocks long to files, of which one is empty and one has no final newline.
  void write_lines(std::mt19937& random) {
    for (int file = 0; file < 4; ++file) {
      std::string text;
      for (int i = 0; file != 2 && i < 40; ++i) {
        const size_t length = i == 17 ? 3000 : random() % 90;
        text += nlohmann::json{{"text", letters(random, length)}}.dump() + "\n";
        if (i % 13 == 5) text += "\n{broken\n  \n";
      }
      if (file == 3) text.pop_back();
      add_file(".json", text);
    }
  }

  // Writes paragraphs of one or many lines, separated by one or many blank lines, some with spaces.
  void write_paragraphs(std::mt19937& random) {
    for (int file = 0; file < 4; ++file) {
      std::string text = file == 1 ? " \n\n" : "";
      for (int i = 0; file != 2 && i < 40; ++i) {
        for (int line = i == 17 ? 60 : static_cast<int>(random() % 4); line >= 0; --line) {
          text += letters(random, 1 + random() % 60) + (i % 5 == 0 ? "\r\n" : "\n");
        }
        if (i % 13 == 5) text += "\n\xff\xfe\nnot UTF-8\n";
        for (unsigned line = i == 18 ? 300 : random() % 4; line > 0; --line) text += i % 3 == 0 ? "\n" : " \t\r\n";
        text += "\n";
      }
      if (file == 3) text.resize(text.find_last_not_of(" \t\r\n") + 1);
      add_file(".txt", text);
    }
  }

  void write_files(std::mt19937& random) {
    for (int file = 0; file < 60; ++file) {
      add_file(".txt", file % 13 == 5 ? "\xff\xfe" : file % 13 == 6 ? " \n" : letters(random, random() % 190));
    }
  }

  std::unique_ptr<Tokenizer> tokenizer() const { return *Tokenizer::load(folder_.path()); }

  std::unique_ptr<RowStream> stream(int64_t row_tokens, bool loop = true) const {
    return std::make_unique<RowStream>(DocumentReader({.files = files_, .kind = kind_}), tokenizer(), row_tokens, loop);
  }

  std::unique_ptr<RowStream> stream_from(const StreamPosition& position, int64_t row_tokens) const {
    auto rows = stream(row_tokens);
    EXPECT_TRUE(rows->seek(position).ok());
    return rows;
  }

  // Makes a rank whose blocks have `block_bytes` bytes of text, or an eighth of that in a compressed file.
  std::unique_ptr<CountedRows> rank(int64_t block_bytes, const std::string& counts,
                                    CountedRows::Options options) const {
    options.counts_file = folder_.path() + "/" + counts;
    const BlockFiles::Sizes sizes{.text_bytes = block_bytes, .compressed_bytes = 1 + block_bytes / 8};
    return std::make_unique<CountedRows>(*DocumentBlocks::open({.files = files_, .kind = kind_, .sizes = sizes}),
                                         tokenizer(), options);
  }

  const FileKind kind_;
  const std::vector<std::string> endings_;
  testing::Folder folder_;
  std::vector<std::string> files_;
};

// Every kind that C++ can write; counted_kinds_test.py has Parquet.
class CountedKindsTest : public CountedRowsTest, public ::testing::WithParamInterface<Stored> {
 protected:
  CountedKindsTest() : CountedRowsTest(GetParam()) {}
};
const FileKind kParagraphs{.format = data_files::DatasetFormat::kText, .blank_lines = true},
    kWholeFiles{.format = data_files::DatasetFormat::kText};
INSTANTIATE_TEST_SUITE_P(Kinds, CountedKindsTest,
                         ::testing::Values(Stored{}, Stored{kParagraphs}, Stored{kWholeFiles}, Stored{{}, {".gz"}},
                                           Stored{{}, {".zst"}}, Stored{kParagraphs, {".gz"}},
                                           Stored{kParagraphs, {".zst", "", ".gz"}},
                                           Stored{kWholeFiles, {".gz", ".zst", ""}}),
                         [](const auto& of) { return describe(of.param); });

// This rank's row of each batch of `ranks` rows. Checks that every rank reports the same end position.
Rows deal(RowSource& source, int64_t row_tokens, int rank, int ranks, int batches) {
  Rows rows;
  for (int i = 0; i < batches; ++i) {
    if (*source.skip(rank) < rank) break;
    const auto row = source.next();
    EXPECT_TRUE(row.ok()) << row.status();
    if (!row.ok() || *row == nullptr) break;
    rows.emplace_back(*row, *row + row_tokens);
    if (*source.skip(ranks - rank - 1) < ranks - rank - 1) break;
  }
  return rows;
}

Rows all_rows(RowSource& source, int64_t row_tokens, int count) { return deal(source, row_tokens, 0, 1, count); }

// With threads as ranks, each counting its share, the rows are the same for any block size and number of ranks. A
// second run counts nothing.
TEST_P(CountedKindsTest, RanksTogetherReproduceTheStream) {
  constexpr int64_t kRow = 33;
  constexpr int kBatches = 60;
  for (const int64_t block_bytes : {50, 700, 100'000}) {
    for (const int ranks : {1, 2, 5}) {
      const Rows expected = all_rows(*stream(kRow), kRow, kBatches * ranks);
      for (int run = 0; run < 2; ++run) {
        std::vector<Rows> rows(ranks);
        std::vector<int64_t> counted(ranks);
        std::vector<StreamPosition> ends(ranks);
        std::vector<std::thread> threads;
        for (int i = 0; i < ranks; ++i) {
          threads.emplace_back([&, i] {
            auto mine = rank(block_bytes, absl::StrCat(block_bytes, "-", ranks),
                             {.row_tokens = kRow, .rank = i, .ranks = ranks});
            rows[i] = deal(*mine, kRow, i, ranks, kBatches);
            ends[i] = *mine->position();
            counted[i] = mine->blocks_counted();
          });
        }
        for (std::thread& thread : threads) thread.join();
        for (int i = 0; i < ranks; ++i) {
          ASSERT_EQ(rows[i].size(), kBatches);
          for (int batch = 0; batch < kBatches; ++batch) ASSERT_EQ(rows[i][batch], expected[batch * ranks + i]);
          EXPECT_EQ(ends[i], ends[0]);
          if (run == 1) {
            EXPECT_EQ(counted[i], 0) << "of " << ranks;
          }
        }
      }
    }
  }
}

// Cursors are interchangeable, at any position and row length.
TEST_P(CountedKindsTest, CursorsEqualThoseOfASingleReader) {
  std::mt19937 random(3);
  const bool compressed = endings_.back() != "" || endings_.size() > 1;
  const int rounds = !compressed ? 60 : kind_.format == data_files::DatasetFormat::kText && !kind_.blank_lines ? 5 : 15;
  for (int round = 0; round < rounds; ++round) {
    const int64_t row = 1 + static_cast<int64_t>(random() % 120), after = 1 + static_cast<int64_t>(random() % 120);
    const int rows = static_cast<int>(random() % 200);
    const int64_t block_bytes = 30 + static_cast<int64_t>(random() % 900);
    auto whole = stream(row);
    auto counted = rank(block_bytes, absl::StrCat("c", round), {.row_tokens = row});
    all_rows(*whole, row, rows);
    ASSERT_EQ(*counted->skip(rows), rows);
    const auto from_whole = position_from_json(to_json(*whole->position(), files_), files_);
    const auto from_counted = position_from_json(to_json(*counted->position(), files_), files_);
    ASSERT_TRUE(from_whole.ok() && from_counted.ok());
    Rows continued;
    for (const StreamPosition& cursor : {*from_whole, *from_counted}) {
      auto text = stream(after);
      auto again = rank(block_bytes, absl::StrCat("c", round), {.row_tokens = after});
      ASSERT_TRUE(text->seek(cursor).ok());
      const absl::Status sought = again->seek(cursor);
      ASSERT_TRUE(sought.ok()) << sought;
      const Rows a = all_rows(*text, after, 150), b = all_rows(*again, after, 150);
      ASSERT_EQ(a, b) << round;
      if (continued.empty()) continued = a;
      ASSERT_EQ(continued, a) << round;
      const StreamPosition end = *again->position(), end_of_text = *text->position();
      EXPECT_EQ(end.pass, end_of_text.pass);
      if (end.token > 0) {  // At a border the positions before and after are equal.
        EXPECT_EQ(end, end_of_text) << round;
      }
    }
  }
}

TEST_P(CountedKindsTest, WithoutLoopEndsWithTheStream) {
  const Rows expected = all_rows(*stream(50, /*loop=*/false), 50, 10'000);
  auto rows = rank(300, "end", {.row_tokens = 50, .loop = false});
  EXPECT_EQ(all_rows(*rows, 50, 10'000), expected);
  EXPECT_EQ(*rows->next(), nullptr);
  EXPECT_EQ(*rows->skip(4), 0);
}

// Every rank reports each malformed line once, in the words of a single reader.
TEST_P(CountedKindsTest, MalformedDocumentsAreNamedAndLimited) {
  auto whole = stream(64);
  all_rows(*whole, 64, 500);
  const std::vector<std::string> expected = whole->take_warnings();
  auto rows = rank(256, "bad", {.row_tokens = 64});
  ASSERT_EQ(*rows->skip(500), 500);
  EXPECT_EQ(rows->take_warnings(), expected);
  EXPECT_FALSE(expected.empty());
  auto strict = rank(256, "bad", {.row_tokens = 64, .max_bad_lines = 2});
  const auto failed = strict->skip(500);
  EXPECT_EQ(failed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(failed.status().message(), HasSubstr(absl::StrCat("malformed ", document_word(kind_),
                                                                " 3, more than dataloader.max_bad_lines = 2")));
}

// Damaged counts are counted again, so the rows stay the same.
TEST_F(CountedRowsTest, DamagedCountsAreCountedAgain) {
  const Rows expected = all_rows(*stream(40), 40, 300);
  auto first = rank(400, "counts", {.row_tokens = 40});
  ASSERT_EQ(all_rows(*first, 40, 300), expected);
  const std::string path = folder_.path() + "/counts";
  std::ifstream file(path, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(file), {}};
  ASSERT_FALSE(good.empty());
  std::mt19937 random(9);
  int again = 0;
  for (int i = 0; i < 200; ++i) {
    std::string bad = good;
    if (i % 4 == 0) bad.resize(random() % bad.size());
    for (int flips = 0; i % 4 != 0 && flips < 3; ++flips) bad[random() % bad.size()] = static_cast<char>(random());
    folder_.write("counts", bad);
    auto rows = rank(400, "counts", {.row_tokens = 40});
    ASSERT_EQ(all_rows(*rows, 40, 300), expected) << i;
    again += rows->blocks_counted() > 0;
  }
  EXPECT_GT(again, 150);
}

// If the other ranks never come, a rank counts for them after a while and does not wait again; likewise for a counts
// file that cannot be written.
TEST_P(CountedKindsTest, RankCountsAloneIfOthersNeverStart) {
  const Rows expected = all_rows(*stream(40), 40, 100);
  auto alone = rank(400, "alone", {.row_tokens = 40, .rank = 1, .ranks = 8, .timeout = absl::Milliseconds(20)});
  EXPECT_EQ(all_rows(*alone, 40, 100), expected);
  auto nowhere =
      rank(400, "no/such/folder", {.row_tokens = 40, .rank = 1, .ranks = 8, .timeout = absl::Milliseconds(20)});
  EXPECT_EQ(all_rows(*nowhere, 40, 100), expected);
}

TEST_F(CountedRowsTest, ChangedDataIsDetected) {
  auto rows = rank(400, "changed", {.row_tokens = 40});
  const StreamPosition start = *rows->position();
  ASSERT_EQ(*rows->skip(60), 60);
  const StreamPosition middle = *rows->position();
  folder_.write("part-100.json", "{\"text\": \"other\"}\n" + std::string(8000, ' '));
  auto again = rank(400, "changed", {.row_tokens = 40});
  ASSERT_TRUE(again->seek(start).ok());
  const auto read = again->next();
  EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(read.status().message(), HasSubstr("the dataset has changed"));
  EXPECT_THAT(again->seek({.document = {.file = 9}}).message(), HasSubstr("has 4 files"));
  StreamPosition between = middle;
  between.document.offset += 1;
  EXPECT_THAT(again->seek(between).message(), HasSubstr("no line starts at byte"));
}

class CountedCompressedTest : public CountedRowsTest, public ::testing::WithParamInterface<Stored> {
 protected:
  CountedCompressedTest() : CountedRowsTest(GetParam()) {}

  static std::string bytes_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, CountedCompressedTest, ::testing::Values(Stored{{}, {".gz"}}, Stored{{}, {".zst"}}),
                         [](const auto& of) { return of.param.endings[0].substr(1); });

// Rows before the damage equal those of a single reader; then both report the damage at every read.
TEST_P(CountedCompressedTest, DamageFailsLikeASingleReader) {
  const std::string path = files_[3], good = bytes_of(path), name = path.substr(path.rfind('/') + 1);
  std::string flipped = good;
  for (size_t i = good.size() / 2; i < good.size() / 2 + 40; ++i) flipped[i] = static_cast<char>(~flipped[i]);
  for (const std::string& bad : {good.substr(0, good.size() * 2 / 5), good.substr(0, good.size() - 1), flipped,
                                 good + "trailing", std::string("no such data")}) {
    SCOPED_TRACE(bad.size());
    const std::string why = bad == "no such data" ? "is not " : bad.size() < good.size() ? "cut short" : "damaged";
    folder_.write(name, bad);
    const auto counts = absl::StrCat("damaged-", bad.size(), bad == flipped);
    auto whole = stream(40, false);
    auto counted = rank(400, counts, {.row_tokens = 40, .loop = false, .max_bad_lines = 1000});
    std::vector<Rows> given;
    for (RowSource* rows : {static_cast<RowSource*>(whole.get()), static_cast<RowSource*>(counted.get())}) {
      Rows& own = given.emplace_back();
      absl::StatusOr<const int32_t*> row = rows->next();
      for (; row.ok() && *row != nullptr; row = rows->next()) own.emplace_back(*row, *row + 40);
      EXPECT_EQ(row.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(row.status().message(), AllOf(HasSubstr(name), HasSubstr(why)));
    }
    EXPECT_EQ(counted->next().status().code(), absl::StatusCode::kInvalidArgument);
    const size_t both = std::min(given[0].size(), given[1].size());
    EXPECT_GT(both, 100u) << "the two previous files are intact";
    EXPECT_TRUE(std::equal(given[0].begin(), given[0].begin() + both, given[1].begin()));
  }
}

// Text with gigabytes per block is read as a stream from that block: rows, positions and warnings are the same,
// whatever positions were known before.
TEST_P(CountedCompressedTest, TooDenseTextIsReadAsAStream) {
  constexpr int64_t kRow = 4097;
  constexpr int kRanks = 4, kBatches = 30;
  std::mt19937 random(4);
  std::string text = "{broken\n";
  const auto add_lines = [&] {
    for (int i = 0; i < 900; ++i) text += nlohmann::json{{"text", letters(random, random() % 500)}}.dump() + "\n";
  };
  add_lines();
  text += "{broken\n";
  const std::string line = nlohmann::json{{"text", std::string(1000, 'a')}}.dump() + "\n";
  while (text.size() < 30'000'000) text += line;
  add_lines();
  files_ = {folder_.write("dense.json" + endings_[0], testing::as_named("dense.json" + endings_[0], text))};
  const auto whole = stream(kRow);
  const Rows expected = all_rows(*whole, kRow, kRanks * kBatches);
  ASSERT_GT(kRow * kRanks * kBatches, 400'000) << "beyond the first lines";
  const StreamPosition end = *whole->position();
  for (int i = 0; i < kRanks; ++i) {
    const RowsWanted wanted{.files = files_,
                            .kind = kind_,
                            .tokenizer_folder = folder_.path(),
                            .row_tokens = kRow,
                            .dp_rank = i,
                            .dp_size = kRanks,
                            .counts_folder = folder_.path() + "/dense",
                            .timeout = absl::ZeroDuration()};
    auto opened = open_rows(wanted, tokenizer());
    ASSERT_TRUE(opened.ok()) << opened.status();
    for (int batch = 0; batch < kBatches; ++batch) {
      const Rows own = deal(*opened->rows, kRow, i, kRanks, 1);
      ASSERT_EQ(own.size(), 1);
      ASSERT_EQ(own[0], expected[batch * kRanks + i]) << batch;
      if (i % 2 == 1) {
        ASSERT_TRUE(opened->rows->position().ok());
      }
    }
    EXPECT_EQ(*opened->rows->position(), end);
    EXPECT_THAT(opened->rows->take_warnings(),
                ::testing::UnorderedElementsAre(HasSubstr(":1: not JSON"), HasSubstr(":902: not JSON"),
                                                AllOf(HasSubstr("more than 8388608 bytes of text"),
                                                      HasSubstr("reads and tokenises all text from here on"))));
    auto again = open_rows(wanted, tokenizer());
    ASSERT_TRUE(again->rows->seek(end).ok());
    EXPECT_EQ(all_rows(*again->rows, kRow, 3), all_rows(*stream_from(end, kRow), kRow, 3));
  }
}

// A file is replaced by another of the same name, while counts of the old one exist or after a reader has started.
TEST_P(CountedCompressedTest, ChangedFileIsDetected) {
  const std::string name = files_[0].substr(files_[0].rfind('/') + 1);
  auto rows = rank(400, "changed", {.row_tokens = 40});
  ASSERT_EQ(*rows->skip(60), 60);
  StreamPosition between = *rows->position();
  auto late = rank(400, "late", {.row_tokens = 40});
  std::mt19937 random(5);
  const std::string other = nlohmann::json{{"text", letters(random, 8000)}}.dump() + "\n";
  folder_.write(name, testing::as_named(name, other));
  EXPECT_THAT(late->next().status().message(), HasSubstr("when it was first looked at: the dataset has changed"));
  auto again = rank(400, "changed", {.row_tokens = 40});
  EXPECT_THAT(again->next().status().message(), HasSubstr("the dataset has changed since"));
  between.document.offset = 77;
  between.document.file = 0;
  EXPECT_THAT(again->seek(between).message(), HasSubstr("no line starts at byte 77"));
  between.document.offset = 1'000'000;
  EXPECT_THAT(again->seek(between).message(), HasSubstr("no line starts at byte 1000000"));
}

TEST_F(CountedRowsTest, DataWithoutDocumentsIsAnError) {
  for (const char* text : {"", "\n\n\n", "broken\n", "{\"other\": 1}\n"}) {
    files_ = {folder_.write("empty.json", text)};
    const std::string counts = absl::StrCat("none-", std::string(text).size());
    const auto row = rank(400, counts, {.row_tokens = 40})->next();
    const bool blank = std::string(text).find_first_not_of('\n') == std::string::npos;
    EXPECT_THAT(row.status().message(), HasSubstr("no document with text"));
    EXPECT_THAT(row.status().message(), HasSubstr(blank ? "every line is blank" : "empty.json:1: no"));
  }
  files_ = {folder_.write("few.json", "{\"text\": \"two words\"}\n")};
  auto few = rank(400, "few", {.row_tokens = 5});
  all_rows(*few, 5, 20);
  EXPECT_THAT(few->take_warnings(), ElementsAre(HasSubstr("only 11 tokens, fewer than 8 rows of 4")));
  all_rows(*few, 5, 20);
  EXPECT_THAT(few->take_warnings(), IsEmpty());
}

}  // namespace
}  // namespace titan::data

// Measures how much text one rank of many reads to start, for a batch, and to resume from a cursor. Counts in the
// counts file simulate the other ranks. docs/scale.md has the table of TITAN_LONG=1.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/base/clock/clock.h"
#include "tests/worker/rank/data/byte_tokenizer.h"
#include "tests/worker/rank/data/compress.h"
#include "tests/worker/rank/data/testing.h"
#include "worker/rank/data/documents/counted_documents.h"
#include "worker/rank/data/documents/document_places.h"
#include "worker/rank/data/rows/counted_rows.h"
#include "worker/rank/data/rows/document_rows.h"
#include "worker/rank/data/rows/packed_rows.h"

namespace titan::data {
namespace {

constexpr int64_t kRow = 65, kBlockBytes = 256, kMaxLength = 130;
constexpr int64_t kRows = 6;  // Rows that the data has for each rank.

// Counts its documents and bytes.
class CountingTokenizer final : public testing::ByteTokenizer {
 public:
  int64_t documents = 0, bytes_seen = 0;

  absl::Status encode_document(std::string_view text, std::vector<int32_t>& tokens) override {
    ++documents;
    bytes_seen += static_cast<int64_t>(text.size());
    tokens.push_back(kSpecial);
    return encode(text, tokens);
  }
  std::optional<int32_t> bos_id() const override { return kSpecial; }
};

struct Request {
  int rank = 0, ranks = 1;
  std::string counts_file;
  std::shared_ptr<Tokenizer> tokenizer;
};

// A kind of rows with distributed counting, and the size of a record of its counts.
struct Kind {
  const char* name;
  const char* file;
  int64_t record_bytes;
  int64_t max_documents;  // The most documents that a rank tokenizes for a batch, whatever the number of ranks.
  int64_t rows_counted;   // Rows per rank: two windows of counts.
  std::function<std::unique_ptr<RowSource>(const std::string& file, const std::string& folder, const Request&)> open;
};

// The compressed size of a block is half of its text: random letters compress to about 60 %, and the rest to almost
// nothing.
std::unique_ptr<RowSource> in_order(const std::string& file, const std::string&, const Request& request) {
  constexpr BlockFiles::Sizes kSizes{.text_bytes = kBlockBytes, .compressed_bytes = kBlockBytes / 2};
  return std::make_unique<CountedRows>(
      *DocumentBlocks::open({.files = {file}, .sizes = kSizes}), request.tokenizer,
      CountedRows::Options{
          .row_tokens = kRow, .rank = request.rank, .ranks = request.ranks, .counts_file = request.counts_file});
}

std::unique_ptr<TokenDocuments> documents(const std::string& file, const std::string& folder, const Request& request,
                                          Shuffle shuffle) {
  const auto finder = [&] {
    return find_by_places({file}, {}, *DocumentPlaces::get({file}, {}, folder),
                          {.seed = 3, .in_order = shuffle == Shuffle::kNone});
  };
  return counted_documents(finder(), finder(), request.tokenizer,
                           {.rank = request.rank, .ranks = request.ranks, .counts_file = request.counts_file},
                           {.arrangement = {.shuffle = shuffle, .seed = 3}, .row_tokens = kRow});
}

std::unique_ptr<RowSource> shuffled(const std::string& file, const std::string& folder, const Request& request) {
  return std::make_unique<DocumentRows>(documents(file, folder, request, Shuffle::kDocuments), kRow, false);
}

std::unique_ptr<RowSource> packed(const std::string& file, const std::string& folder, const Request& request) {
  return std::make_unique<PackedRows>(documents(file, folder, request, Shuffle::kNone),
                                      PackedRows::Options{.row_tokens = kRow, .window = 128});
}

// Bounds of max_documents. A row holds at most kRow / 2 documents that begin in it, with two tokens or more each, and
// one that continues into it. A rank also counts its share of this window of counts and of the next one. In order it
// tokenizes whole blocks: those of the row, of the cursor and of the two shares.
constexpr int64_t kOfBlock = kBlockBytes / 20 + 1, kOfChunk = DocumentLengths::kDocuments;
const Kind kKinds[] = {
    {"in order", "a.jsonl", CountsFile<BlockCount>::kRecordBytes, 6 * kOfBlock, kRows + 1, in_order},
    {"compressed", "a.jsonl.gz", CountsFile<BlockCount>::kRecordBytes, 6 * kOfBlock, kRows + 1, in_order},
    {"shuffled", "a.jsonl", CountsFile<DocumentLengths>::kRecordBytes, 2 * kOfChunk + kRow / 2 + 1, 140, shuffled},
    {"packed", "a.jsonl", CountsFile<DocumentLengths>::kRecordBytes, 2 * kOfChunk + kRow / 2 + 1, 140, packed}};

struct Cost {
  int64_t ranks = 0, start = 0, step = 0, restore = 0;  // Tokenized documents; `step` is the maximum per batch.
  double step_us = 0;
};

class LoaderScale {
 public:
  LoaderScale(const Kind& kind, int ranks) : kind_(kind), ranks_(ranks) {
    std::mt19937 random(7);
    std::string text;
    const int64_t wanted = ranks * kRow * kRows;
    for (int64_t tokens = 0; tokens < wanted;) {
      const auto length = static_cast<int64_t>(random() % (kMaxLength - 20));
      std::string letters;
      for (int64_t i = 0; i < length; ++i) letters += static_cast<char>('a' + random() % 26);
      text += absl::StrCat("{\"text\":\"", letters, "\"}\n");
      tokens += length + 1;
    }
    file_ = folder_.write(kind.file, testing::as_named(kind.file, text));
    counts_ = folder_.path() + "/counts";
    auto single_reader = kind.open(file_, folder_.path(), {.counts_file = counts_, .tokenizer = tokenizer_});
    EXPECT_EQ(*single_reader->skip(ranks * kind.rows_counted), ranks * kind.rows_counted);
  }

  Cost run() {
    Cost cost{.ranks = ranks_};
    erase_own_counts();
    auto rows = open();
    cost.start = batch(*rows);
    const absl::Duration begin = system_clock().monotonic();
    constexpr int kSteps = 3;
    for (int i = 0; i < kSteps; ++i) {
      cost.step = std::max(cost.step, batch(*rows));
    }
    cost.step_us = absl::ToDoubleMicroseconds(system_clock().monotonic() - begin) / kSteps;
    const StreamPosition reached = *rows->position();
    erase_own_counts();
    rows = open();
    const int64_t before = tokenizer_->documents;
    EXPECT_TRUE(rows->seek(reached).ok());
    batch(*rows);
    cost.restore = tokenizer_->documents - before;
    return cost;
  }

 private:
  std::unique_ptr<RowSource> open() {
    return kind_.open(file_, folder_.path(),
                      {.rank = ranks_ / 2, .ranks = ranks_, .counts_file = counts_, .tokenizer = tokenizer_});
  }

  // Reads one row of each rank. Returns the documents that this rank tokenized.
  int64_t batch(RowSource& rows) {
    const int64_t before = tokenizer_->documents, rank = ranks_ / 2;
    EXPECT_EQ(*rows.skip(rank), rank);
    EXPECT_NE(*rows.next(), nullptr);
    EXPECT_EQ(*rows.skip(ranks_ - rank - 1), ranks_ - rank - 1);
    EXPECT_TRUE(rows.position().ok());
    return tokenizer_->documents - before;
  }

  // Erases the counts that this rank must make.
  void erase_own_counts() {
    const auto records = static_cast<int64_t>(std::filesystem::file_size(counts_)) / kind_.record_bytes;
    std::fstream file(counts_, std::ios::binary | std::ios::in | std::ios::out);
    const std::string nothing(static_cast<size_t>(kind_.record_bytes), '\0');
    for (int64_t record = ranks_ / 2; record < records; record += ranks_) {
      file.seekp(record * kind_.record_bytes).write(nothing.data(), kind_.record_bytes);
    }
  }

  const Kind& kind_;
  const int ranks_;
  const std::shared_ptr<CountingTokenizer> tokenizer_ = std::make_shared<CountingTokenizer>();
  testing::Folder folder_;
  std::string file_, counts_;
};

void print(const Kind& kind, const std::vector<Cost>& costs) {
  const auto line = [&](const char* what, const char* format, auto of) {
    std::printf("| %-10s | %-34s |", kind.name, what);
    for (const Cost& cost : costs) {
      char figure[32];
      std::snprintf(figure, sizeof figure, format, static_cast<double>(of(cost)));
      std::printf(" %8s |", figure);
    }
    const Cost &from = costs[costs.size() - 2], &to = costs.back();
    std::printf(" %5.2f |\n", std::log(static_cast<double>(of(to)) / static_cast<double>(of(from))) /
                                  std::log(static_cast<double>(to.ranks) / static_cast<double>(from.ranks)));
  };
  line("ranks", "%.0f", [](const Cost& c) { return c.ranks; });
  line("documents tokenised, start", "%.0f", [](const Cost& c) { return c.start; });
  line("documents tokenised, max per batch", "%.0f", [](const Cost& c) { return c.step; });
  line("documents tokenised, resuming", "%.0f", [](const Cost& c) { return c.restore; });
  line("a batch, us", "%.0f", [](const Cost& c) { return c.step_us; });
}

TEST(LoaderScaleTest, TokenizedDocumentsDoNotGrowWithWorldSize) {
  const bool all = std::getenv("TITAN_LONG") != nullptr;
  for (const Kind& kind : kKinds) {
    std::vector<Cost> costs;
    for (const int ranks : all ? std::vector<int>{100, 1000, 10000} : std::vector<int>{16, 160}) {
      costs.push_back(LoaderScale(kind, ranks).run());
      if (HasFailure()) return;
      const Cost& cost = costs.back();
      EXPECT_LE(cost.start, kind.max_documents) << kind.name << " of " << ranks;
      EXPECT_LE(cost.step, kind.max_documents) << kind.name << " of " << ranks;
      EXPECT_LE(cost.restore, kind.max_documents + kOfBlock) << kind.name << " of " << ranks;
    }
    print(kind, costs);
  }
}

}  // namespace
}  // namespace titan::data

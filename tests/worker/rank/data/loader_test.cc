#include "worker/rank/data/loader/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/io/storage/file.h"
#include "tests/worker/rank/data/compress.h"
#include "tests/worker/rank/data/testing.h"

namespace titan::data {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Rows = std::vector<std::vector<int64_t>>;

std::string line(const std::string& text) { return nlohmann::json{{"text", text}}.dump() + "\n"; }

class LoaderTest : public ::testing::Test {
 protected:
  LoaderTest() {
    folder_.write_tokenizer(testing::byte_tokenizer());
    std::mt19937 random(5);
    // Writes documents from empty to several rows long to three files, with blank and malformed lines between them.
    std::string text;
    for (int i = 0; i < 60; ++i) {
      text += line(std::string(random() % 90, static_cast<char>('a' + i % 26)));
      if (i % 13 == 5) text += "\n{broken\n";
      if (i % 20 == 19) {
        files_.push_back(folder_.write(absl::StrCat("part-", i / 20, ".json"), text));
        text.clear();
      }
    }
  }

  LoaderOptions options(Order order = Order::kGlobal, int rank = 0, int size = 1, int64_t batch = 2) const {
    LoaderOptions options;
    options.files = files_;
    options.tokenizer_folder = folder_.path();
    options.batch = batch;
    options.seq_len = 32;
    options.order = order;
    options.dp_rank = rank;
    options.dp_size = size;
    return options;
  }

  testing::Folder folder_;
  std::vector<std::string> files_;
};

// A hub that serves one file and never answers for the next: its reader waits until it is stopped.
class HangingHub final : public data_files::RemoteFiles {
 public:
  explicit HangingHub(std::string file) : file_(std::move(file)) {}

  absl::StatusOr<std::unique_ptr<data_files::ByteSource>> open(const std::string& path, int64_t offset) override {
    if (path == "first.json") return data_files::ByteSource::open(file_, offset);
    std::unique_lock lock(mutex_);
    requested_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return stopped_; });
    return absl::CancelledError("interrupted");
  }
  void stop() override {
    const std::scoped_lock lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  void wait_until_requested() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return requested_; });
  }

 private:
  const std::string file_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool requested_ = false, stopped_ = false;
};

std::unique_ptr<DataLoader> open(const LoaderOptions& options) {
  auto loader = open_loader(options);
  EXPECT_TRUE(loader.ok()) << loader.status();
  return std::move(loader).value();
}

void append_rows(const Batch& batch, Rows& rows) {
  const int64_t width = batch.at(kTokens).size(1);
  for (int64_t row = 0; row < batch.at(kTokens).size(0); ++row) {
    const int64_t *tokens = batch.at(kTokens)[row].data_ptr<int64_t>(),
                  *labels = batch.at(kLabels)[row].data_ptr<int64_t>();
    std::vector<int64_t> all(tokens, tokens + width);
    // Each label is the next token.
    EXPECT_EQ(std::vector<int64_t>(tokens + 1, tokens + width), std::vector<int64_t>(labels, labels + width - 1));
    all.push_back(labels[width - 1]);
    rows.push_back(std::move(all));
  }
}

Rows read(DataLoader& loader, int batches) {
  Rows rows;
  for (int i = 0; i < batches; ++i) {
    const auto batch = loader.next();
    EXPECT_TRUE(batch.ok()) << batch.status();
    if (!batch.ok()) break;
    append_rows(*batch, rows);
  }
  return rows;
}

// Returns every rank's rows of each microbatch in order of the ranks, which is the global batch.
Rows read_global(const LoaderOptions& base, int size, int64_t batch, int batches,
                 const nlohmann::json& from = nullptr) {
  std::vector<Rows> ranks;
  for (int rank = 0; rank < size; ++rank) {
    LoaderOptions options = base;
    options.dp_rank = rank;
    options.dp_size = size;
    options.batch = batch;
    auto loader = open(options);
    if (!from.is_null()) {
      EXPECT_TRUE(loader->restore(from).ok());
    }
    ranks.push_back(read(*loader, batches));
  }
  Rows rows;
  for (int i = 0; i < batches; ++i) {
    for (const Rows& rank : ranks) rows.insert(rows.end(), rank.begin() + i * batch, rank.begin() + (i + 1) * batch);
  }
  return rows;
}

// The weights of sources follow the job's step, even if its data starts again in the middle of the job.
TEST_F(LoaderTest, RestartedDataUsesTheWeightsOfTheStep) {
  LoaderOptions mixed = options();
  for (const char* name : {"part-0", "part-1"}) {
    mixed.sources.push_back({name, {absl::StrCat(folder_.path(), "/", name, ".json")}, {}});
  }
  mixed.weights = {{0, {1, 0}}, {40, {0, 1}}};
  auto loader = open(mixed);
  read(*loader, 1);
  EXPECT_EQ(loader->progress()[0].rows, 2);
  ASSERT_TRUE(loader->begin_at(40).ok());
  read(*loader, 1);
  EXPECT_EQ(loader->progress()[0].rows, 0);
  EXPECT_EQ(loader->progress()[1].rows, 2);
  EXPECT_EQ(loader->state()["row"], 42);
}

// In rows of packed documents no label belongs to another document or to padding, and the batch says to which document
// each token belongs.
TEST_F(LoaderTest, PackedDocumentsStaySeparate) {
  LoaderOptions packed = options(Order::kGlobal, 0, 1, 4);
  packed.packing_window = 16;
  packed.loop = false;
  auto loader = open(packed);
  int64_t padding = 0, predicted = 0;
  for (auto batch = loader->next(); batch.ok(); batch = loader->next()) {
    for (int64_t row = 0; row < 4; ++row) {
      const auto tokens = batch->at(kTokens)[row].data_ptr<int64_t>(),
                 labels = batch->at(kLabels)[row].data_ptr<int64_t>(),
                 documents = batch->at(kDocuments)[row].data_ptr<int64_t>();
      for (int64_t i = 0; i < 32; ++i) {
        const bool last = tokens[i] == 257;  // <eos>, of a document or for padding.
        predicted += labels[i] >= 0;
        padding += labels[i] < 0 && last && i > 0 && tokens[i - 1] == 257;
        ASSERT_EQ(labels[i] < 0, last || tokens[i] == 0) << i;
        if (i == 31) continue;
        if (labels[i] >= 0) {
          ASSERT_EQ(labels[i], tokens[i + 1]);
        }
        if (tokens[i] != 0) {
          ASSERT_EQ(documents[i + 1], documents[i] + (last ? 1 : 0));
        }
      }
    }
  }
  EXPECT_GT(padding, 0);
  int64_t tokens = 0;  // Every byte of text and <eos> of each document; all tokens except <bos> are labels.
  std::mt19937 random(5);
  for (int i = 0; i < 60; ++i) tokens += static_cast<int64_t>(random() % 90) + 1;
  EXPECT_EQ(predicted, tokens);
}

// With several sources, too, a job resumes at any microbatch on another number of ranks, and knows what each source has
// given.
TEST_F(LoaderTest, SourcesResumeOnAnotherNumberOfRanks) {
  LoaderOptions mixed = options();
  mixed.files.clear();
  for (const char* name : {"part-0", "part-1", "part-2"}) {
    mixed.sources.push_back({name, {absl::StrCat(folder_.path(), "/", name, ".json")}, {}, name[5] != '2'});
  }
  mixed.weights = {{0, {5, 3, 2}}, {40, {1, 0, 1}}};
  const Rows expected = read_global(mixed, 1, 4, 30);
  nlohmann::json state;
  for (int batch = 0; batch < 30; ++batch) {
    const int size = 1 << batch % 3;
    const Rows rows = read_global(mixed, size, 4 / size, 1, state);
    ASSERT_EQ(rows, Rows(expected.begin() + 4 * batch, expected.begin() + 4 * batch + 4)) << batch;
    auto loader = open(mixed);
    if (!state.is_null()) {
      ASSERT_TRUE(loader->restore(state).ok());
    }
    read(*loader, 2);  // Two microbatches of two rows.
    state = loader->state();
    const std::vector<SourceProgress> progress = loader->progress();
    ASSERT_EQ(progress.size(), 3U);
    EXPECT_EQ(progress[0].rows + progress[1].rows + progress[2].rows, 4 * batch + 4);
    if (batch == 9) {
      EXPECT_EQ(progress[0].rows, 20);
    }
    EXPECT_LE(progress[2].rows, 30);
    EXPECT_EQ(progress[0].passes, state["sources"][0]["pass"]);
  }
}

TEST_F(LoaderTest, RowsAreConsecutiveTokensOfTheDocuments) {
  LoaderOptions options = this->options();
  options.files = {folder_.write("two.json", line("abc") + line("de"))};
  options.seq_len = 4;
  options.batch = 1;
  auto loader = open(options);
  // <bos> a b c <eos> | <bos> d e <eos> <bos> (again from the start) | a b c <eos> <bos>
  EXPECT_EQ(read(*loader, 3), (Rows{{256, 'a', 'b', 'c', 257}, {256, 'd', 'e', 257, 256}, {'a', 'b', 'c', 257, 256}}));
  EXPECT_EQ(loader->max_token_id(), 257);
  EXPECT_EQ(loader->end_of_document(), 257);
}

TEST_F(LoaderTest, GlobalBatchDoesNotDependOnTheMesh) {
  const Rows one = read_global(options(), 1, 12, 20);
  EXPECT_EQ(read_global(options(), 2, 6, 20), one);
  EXPECT_EQ(read_global(options(), 3, 4, 20), one);
  EXPECT_EQ(read_global(options(), 12, 1, 20), one);
  // It does not depend on the split of the global batch into microbatches, either.
  EXPECT_EQ(read_global(options(), 2, 2, 60), one);
}

// A loader that is restored at any point, with or without a thread, continues like the first one.
TEST_F(LoaderTest, RestoreContinuesFromAnyPoint) {
  std::mt19937 random(7);
  for (const Order order : {Order::kGlobal, Order::kPerRank}) {
    for (int round = 0; round < 25; ++round) {
      const int size = 1 + static_cast<int>(random() % 3);
      LoaderOptions options =
          this->options(order, static_cast<int>(random() % size), size, 1 + static_cast<int>(random() % 3));
      options.seq_len = 1 + static_cast<int64_t>(random() % 80);
      options.prefetch = static_cast<int>(random() % 4);
      auto loader = open(options);
      read(*loader, static_cast<int>(random() % 120));
      const nlohmann::json state = nlohmann::json::parse(loader->state().dump());
      const Rows expected = read(*loader, 40);

      auto restored = open(options);
      if (random() % 2 == 0) read(*restored, 3);  // A loader that has already run.
      ASSERT_TRUE(restored->restore(state).ok());
      EXPECT_EQ(restored->state(), state);
      ASSERT_EQ(read(*restored, 40), expected) << state;
      EXPECT_EQ(restored->state(), loader->state());
    }
  }
}

// If many ranks each count a share of the text and tokenize only their rows, every batch and cursor stays the same.
TEST_F(LoaderTest, DistributedCountingGivesTheSameBatches) {
  const Rows all = read_global(options(), 1, 12, 40);
  LoaderOptions shared = options();
  shared.counts_folder = folder_.path() + "/counts";
  EXPECT_EQ(read_global(shared, 6, 2, 17), Rows(all.begin(), all.begin() + 17 * 12));
  EXPECT_FALSE(std::filesystem::is_empty(shared.counts_folder));
  auto loader = open(options(Order::kGlobal, 1, 2, 6));
  read(*loader, 17);
  const nlohmann::json cursor = loader->state();
  for (const int size : {2, 4, 12}) {
    EXPECT_EQ(read_global(shared, size, 12 / size, 23, cursor), Rows(all.begin() + 17 * 12, all.end())) << size;
  }
}

TEST_F(LoaderTest, RestoreOnAnotherDegreeContinuesTheGlobalStream) {
  const Rows all = read_global(options(), 1, 12, 40);
  for (const int before : {1, 2, 3, 4}) {
    auto loader = open(options(Order::kGlobal, before - 1, before, 12 / before));
    read(*loader, 17);
    for (const int after : {1, 2, 3, 6}) {
      const Rows rest = read_global(options(), after, 12 / after, 23, loader->state());
      EXPECT_EQ(rest, Rows(all.begin() + 17 * 12, all.end())) << before << " to " << after;
    }
  }
}

// torchtitan's position (documents read, and their tokens that are not in a row yet) leads to the same next row. The
// test tries it after every row of a pass over documents that are shorter and longer than a row.
TEST_F(LoaderTest, ResumesFromTorchtitansPosition) {
  std::string text;
  std::vector<int64_t> tokens;
  std::mt19937 random(9);
  for (int i = 0; i < 40; ++i) {
    const size_t letters = random() % 5 == 0 ? 40 + random() % 40 : random() % 6;
    text += line(std::string(letters, static_cast<char>('a' + i % 26)));
    tokens.push_back(static_cast<int64_t>(letters) + 2);
  }
  LoaderOptions options = this->options(Order::kGlobal, 0, 1, 1);
  options.files = {folder_.write("docs.json", text)};
  options.seq_len = 11;
  auto first = open(options);
  int64_t documents = 0, left = 0;
  for (int row = 0; row < 200; ++row) {
    while (left < options.seq_len + 1 && documents < 40) left += tokens[documents++];
    if (left < options.seq_len + 1) break;
    left -= options.seq_len + 1;
    read(*first, 1);
    auto second = open(options);
    ASSERT_TRUE(second->restore({{"sample_idx", documents}, {"tokens_left", left}}).ok());
    auto third = open(options);
    ASSERT_TRUE(third->restore(first->state()).ok());
    ASSERT_EQ(read(*second, 4), read(*third, 4)) << documents << " " << left;
  }
  EXPECT_EQ(documents, 40);
  auto loader = open(options);
  // The position is valid for any number of ranks, also with distributed row counting.
  ASSERT_TRUE(loader->restore({{"sample_idx", 20}, {"tokens_left", 5}}).ok());
  LoaderOptions many = options;
  many.dp_rank = 3, many.dp_size = 6;
  many.counts_folder = folder_.path() + "/counts";
  auto one_of_many = open(many);
  ASSERT_TRUE(one_of_many->restore({{"sample_idx", 20}, {"tokens_left", 5}}).ok());
  EXPECT_EQ(one_of_many->state(), loader->state());
  EXPECT_THAT(std::string(loader->restore({{"sample_idx", 41}, {"tokens_left", 0}}).message()), HasSubstr("has 40"));
  EXPECT_THAT(std::string(loader->restore({{"sample_idx", 1}, {"tokens_left", 999}}).message()),
              HasSubstr("of the documents before it, which have fewer"));
}

// torchtitan's position counts documents in the order of the files, so it is refused for rows in another order.
TEST_F(LoaderTest, RefusesTorchtitansPositionForOtherOrders) {
  const auto refused = [&](const LoaderOptions& options) {
    return std::string(open(options)->restore({{"sample_idx", 3}, {"tokens_left", 1}}).message());
  };
  LoaderOptions shuffled = options(), packed = options(), mixed = options();
  shuffled.shuffle = Shuffle::kDocuments;
  shuffled.counts_folder = folder_.path() + "/places";
  EXPECT_THAT(refused(shuffled), AllOf(HasSubstr("shuffles or packs"), HasSubstr("checkpoint.exclude_from_loading")));
  packed.packing_window = 8;
  EXPECT_THAT(refused(packed), AllOf(HasSubstr("shuffles or packs"), HasSubstr("checkpoint.exclude_from_loading")));
  mixed.sources = {{"one", files_, {}}};
  EXPECT_THAT(refused(mixed), AllOf(HasSubstr("of one dataset"), HasSubstr("training.dataloader.sources")));
}

// Each rank counts the padding in the rows of all ranks.
TEST_F(LoaderTest, PaddingShareCoversAllRanks) {
  LoaderOptions plain = options(), packed = options(Order::kGlobal, 0, 1, 4);
  auto unpacked = open(plain);
  read(*unpacked, 1);
  EXPECT_EQ(unpacked->take_padding(), std::nullopt);
  packed.packing_window = 16;
  auto one = open(packed);
  EXPECT_EQ(one->take_padding(), std::nullopt);  // There were no batches.
  int64_t padding = 0;
  for (int i = 0; i < 3; ++i) {
    const Batch batch = one->next().value();
    // Each token of padding is a separate document; the last column has no label.
    for (int64_t row = 0; row < 4; ++row) {
      const at::Tensor text = batch.at(kTokens)[row];
      for (int64_t t = packed.seq_len - 1; t > 0 && text[t].item<int64_t>() == one->end_of_document() &&
                                           text[t - 1].item<int64_t>() == one->end_of_document();
           --t) {
        ++padding;
      }
    }
  }
  const double share = one->take_padding().value();
  EXPECT_GE(share, static_cast<double>(padding) / (12 * 33));
  EXPECT_LE(share, static_cast<double>(padding + 12) / (12 * 33));
  packed.batch = 1, packed.dp_size = 4;
  for (packed.dp_rank = 0; packed.dp_rank < 4; ++packed.dp_rank) {
    auto many = open(packed);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(many->next().ok());
    EXPECT_DOUBLE_EQ(many->take_padding().value(), share);
  }
  // If many ranks read compressed text, they get a warning, and the share is the same.
  packed.dp_rank = 3, packed.dp_size = 64;
  auto plain_text = open(packed);
  for (std::string& file : packed.files) {
    const std::string name = std::filesystem::path(file).filename().string() + ".gz";
    file = folder_.write(name, testing::as_named(name, *storage::read_file(storage::posix_files(), file)));
  }
  auto compressed = open(packed);
  ASSERT_TRUE(plain_text->next().ok());
  ASSERT_TRUE(compressed->next().ok());
  EXPECT_THAT(compressed->take_warnings(), Contains(HasSubstr("cannot be read from the middle")));
  const double of_many = plain_text->take_padding().value();
  EXPECT_GT(of_many, 0);
  EXPECT_EQ(compressed->take_padding(), of_many);
}

// state() describes the returned batches, however far the thread has read.
TEST_F(LoaderTest, StateIgnoresPrefetchedBatches) {
  LoaderOptions eager = options(), lazy = options();
  eager.prefetch = 50;
  lazy.prefetch = 0;
  auto a = open(eager), b = open(lazy);
  for (int i = 0; i < 30; ++i) {
    ASSERT_EQ(a->state(), b->state());
    ASSERT_EQ(read(*a, 1), read(*b, 1));
  }
}

// Prefetching changes no batch. Only with prefetching does a thread make batches ahead of their use.
TEST_F(LoaderTest, OnlyPrefetchingStartsAThread) {
  const auto threads = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  LoaderOptions options = this->options();
  options.prefetch = 0;
  auto lazy = open(options);
  read(*lazy, 1);
  const auto before = threads();
  read(*lazy, 1);
  EXPECT_EQ(threads(), before);
  options.prefetch = 1;
  auto eager = open(options);
  read(*eager, 1);
  EXPECT_EQ(threads(), before + 1);
}

TEST_F(LoaderTest, PerRankStateBelongsToItsRank) {
  auto loader = open(options(Order::kPerRank, 1, 2));
  read(*loader, 3);
  const nlohmann::json state = loader->state();
  const absl::Status other = open(options(Order::kPerRank, 0, 2))->restore(state);
  EXPECT_EQ(other.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(other.message(), AllOf(HasSubstr("rank 1 of 2"), HasSubstr("rank 0 of 2")));
  EXPECT_THAT(open(options(Order::kPerRank, 1, 3))->restore(state).message(), HasSubstr("rank 1 of 3"));
  EXPECT_THAT(open(options())->restore(state).message(), AllOf(HasSubstr("\"per_rank\""), HasSubstr("\"global\"")));
}

TEST_F(LoaderTest, RestoreRefusesMismatchedState) {
  auto loader = open(options());
  read(*loader, 20);
  const nlohmann::json state = loader->state();
  const auto refused = [&](const nlohmann::json& changed) {
    const absl::Status status = open(options())->restore(changed);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refused(nullptr), HasSubstr("not a JSON object"));
  EXPECT_THAT(refused({{"order", "global"}}), HasSubstr("is not a number of 0 or more"));
  nlohmann::json changed = state;
  changed["token"] = -1;
  EXPECT_THAT(refused(changed), HasSubstr("\"token\""));
  changed = state;
  changed["token"] = 1000;
  EXPECT_THAT(refused(changed), HasSubstr("token 1000 of a document that now has"));
  changed = state;
  changed["file_name"] = "other.json";
  EXPECT_THAT(refused(changed), AllOf(HasSubstr("\"other.json\""), HasSubstr("resume with the same dataset")));
  changed = state;
  changed["offset"] = changed["offset"].get<int64_t>() + 1;
  EXPECT_THAT(refused(changed), HasSubstr("the dataset has changed"));
}

TEST_F(LoaderTest, WithoutLoopAllRanksEndTogether) {
  LoaderOptions whole = options();
  whole.loop = false;
  whole.batch = 1;
  Rows rows;
  auto one = open(whole);
  while (true) {
    const auto batch = one->next();
    if (!batch.ok()) {
      EXPECT_EQ(batch.status().code(), absl::StatusCode::kOutOfRange);
      break;
    }
    append_rows(*batch, rows);
  }
  EXPECT_EQ(one->next().status().code(), absl::StatusCode::kOutOfRange);
  const int64_t batch = 3, size = 3;
  const int64_t batches = (static_cast<int64_t>(rows.size()) + batch * size - 1) / (batch * size);
  int64_t seen = 0;
  for (int rank = 0; rank < size; ++rank) {
    LoaderOptions mine = options(Order::kGlobal, rank, size, batch);
    mine.loop = false;
    auto loader = open(mine);
    for (int64_t i = 0; i < batches; ++i) {
      const auto got = loader->next();
      ASSERT_TRUE(got.ok()) << got.status();
      seen += got->at(kLabels).ne(-100).any(1).sum().item<int64_t>();
    }
    EXPECT_EQ(loader->next().status().code(), absl::StatusCode::kOutOfRange);
  }
  EXPECT_EQ(seen, static_cast<int64_t>(rows.size()));
}

// A wrong path or a strict filter may leave only a few words. The loss then falls to zero, and only this warning
// explains it.
TEST_F(LoaderTest, WarnsOnceOfATinyDataset) {
  LoaderOptions options = this->options();
  options.files = {folder_.write("few.json", line("two words"))};
  options.seq_len = 4;
  options.batch = 1;
  auto loader = open(options);
  std::vector<std::string> warnings;
  for (int i = 0; i < 20; ++i) {
    read(*loader, 1);
    for (std::string& warning : loader->take_warnings()) warnings.push_back(std::move(warning));
  }
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("only 11 tokens, fewer than 8 rows of 4")));
  options.files = {folder_.write("enough.json", line(std::string(100, 'x')))};
  loader = open(options);
  read(*loader, 60);
  EXPECT_THAT(loader->take_warnings(), IsEmpty());
}

TEST_F(LoaderTest, MalformedLinesAreReportedWithTheirBatch) {
  LoaderOptions options = this->options();
  options.files = {
      folder_.write("bad.json", line("one") + "oops\n" + line("two, which is longer than a row of the batch"))};
  options.seq_len = 4;
  options.batch = 1;
  options.prefetch = 8;
  auto loader = open(options);
  read(*loader, 1);  // <bos> o n e <eos>
  EXPECT_THAT(loader->take_warnings(), IsEmpty());
  read(*loader, 1);
  EXPECT_THAT(loader->take_warnings(), ElementsAre(HasSubstr("bad.json:2: not JSON, skipped")));
  options.max_bad_lines = 0;
  loader = open(options);
  read(*loader, 1);
  for (int i = 0; i < 2; ++i) {  // The error stays.
    const auto failed = loader->next();
    EXPECT_EQ(failed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(failed.status().message(), HasSubstr("bad.json:2"));
  }
}

// A dataset without a single document is an error, not an endless search.
TEST_F(LoaderTest, EmptyDatasets) {
  for (const char* text : {"", "\n\n\n", "broken\n", "{\"other\": 1}\n"}) {
    LoaderOptions options = this->options();
    options.files = {folder_.write("empty.json", text)};
    const auto batch = open(options)->next();
    EXPECT_EQ(batch.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(batch.status().message(), HasSubstr("no document with text"));
    const bool blank = std::string(text).find_first_not_of('\n') == std::string::npos;
    EXPECT_THAT(batch.status().message(), HasSubstr(blank ? "every line is blank" : "empty.json:1: no"));
  }
  LoaderOptions none = options();
  none.files.clear();
  EXPECT_EQ(open_loader(none).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(LoaderTest, BadOptionsAndFiles) {
  LoaderOptions bad = options();
  bad.dp_rank = 2;
  EXPECT_THAT(open_loader(bad).status().message(), HasSubstr("rank 2 of 1"));
  bad = options();
  bad.seq_len = 0;
  EXPECT_THAT(open_loader(bad).status().message(), HasSubstr("seq_len 0"));
  bad = options();
  bad.tokenizer_folder = "/nowhere";
  EXPECT_EQ(open_loader(bad).status().code(), absl::StatusCode::kNotFound);
  bad = options();
  bad.files.push_back(folder_.path() + "/gone.json");
  auto loader = open(bad);
  absl::Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) status = loader->next().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("gone.json"));
}

// Destruction and restore stop the thread wherever it is.
TEST_F(LoaderTest, StopsCleanly) {
  for (int round = 0; round < 50; ++round) {
    LoaderOptions options = this->options();
    options.prefetch = 1 + round % 3;
    auto loader = open(options);
    const nlohmann::json start = loader->state();
    const Rows first = read(*loader, round % 4);
    if (round % 2 == 0) {
      ASSERT_TRUE(loader->restore(start).ok());
      ASSERT_EQ(read(*loader, round % 4), first);
    }
  }
}

// The loader's thread may wait for a hub for minutes, but destroying the loader does not.
TEST_F(LoaderTest, EndsWhileAHubDoesNotAnswer) {
  const auto hub = std::make_shared<HangingHub>(files_[0]);
  LoaderOptions options = this->options(Order::kGlobal, 0, 1, 1);
  options.files = {"first.json", "second.json"};
  options.kind.remote = hub;
  options.prefetch = 1000;
  std::unique_ptr<DataLoader> loader = open(options);
  LoaderOptions on_disk = this->options(Order::kGlobal, 0, 1, 1);
  EXPECT_EQ(read(*loader, 3), read(*open(on_disk), 3));
  hub->wait_until_requested();
  loader.reset();
}

}  // namespace
}  // namespace titan::data

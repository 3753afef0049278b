#include "worker/rank/data/samples/sample_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/worker/rank/data/samples/testing.h"
#include "tests/worker/rank/data/testing.h"

namespace titan::data {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kSamples = 41;

struct Read {
  int64_t number = 0;
  std::string caption;
  bool skipped = false;
  bool operator==(const Read&) const = default;
};

// The sample of a row, as the decoding of a test returns it.
std::string caption_of_row(const SampleRow& row) { return std::any_cast<std::string>(row.value); }

class SampleRowsTest : public ::testing::Test {
 protected:
  SampleRowsTest() {
    SampleSet::Options options;
    for (int i = 0; i < 3; ++i) {
      const int64_t first = 15 * i, count = std::min<int64_t>(15, kSamples - first);
      options.files.push_back(folder_.write(absl::StrCat(i, ".tar"), testing::small_tar(count, first)));
    }
    set_ = *SampleSet::open(options);
  }

  SampleOrder order(bool shuffle = true) const {
    return SampleOrder({.samples = kSamples, .dataset = set_->facts(), .shuffle = shuffle, .shuffle_seed = 9});
  }

  // Every seventh sample cannot be used.
  static bool is_bad(const Sample& sample) { return std::stoll(sample.key) % 7 == 3; }
  static constexpr int64_t kBad = 6;  // 3, 10, 17, 24, 31, 38.
  static absl::StatusOr<std::any> decode(const Sample& sample, int64_t) {
    if (is_bad(sample)) return absl::InvalidArgumentError("too small");
    return std::any(*sample.caption());
  }

  std::unique_ptr<SampleRows> open(const SampleRows::Options& options, bool shuffle = true,
                                   DecodeSample decoding = decode) const {
    return std::make_unique<SampleRows>(set_, order(shuffle), std::move(decoding), options);
  }

  // Reads microbatches of all ranks, in the order of the stream.
  static std::vector<Read> read(const std::vector<std::unique_ptr<SampleRows>>& ranks, int64_t batch,
                                int64_t microbatches) {
    std::vector<Read> all;
    for (int64_t i = 0; i < microbatches; ++i) {
      for (const auto& rank : ranks) {
        for (int64_t row = 0; row < batch; ++row) {
          const auto next = rank->next();
          EXPECT_TRUE(next.ok() && next->has_value()) << next.status();
          if (!next.ok() || !next->has_value()) return all;
          all.push_back({(*next)->number, caption_of_row(**next), !(*next)->skipped.empty()});
        }
      }
    }
    return all;
  }

  std::vector<std::unique_ptr<SampleRows>> open_ranks(int ranks, int64_t batch, int threads = 3) const {
    std::vector<std::unique_ptr<SampleRows>> all;
    for (int rank = 0; rank < ranks; ++rank) {
      all.push_back(open({.batch = batch, .dp_rank = rank, .dp_size = ranks, .threads = threads}));
    }
    return all;
  }

  testing::Folder folder_;
  std::shared_ptr<SampleSet> set_;
};

// The rows of a step do not depend on the number of ranks or threads, although some samples are skipped.
TEST_F(SampleRowsTest, AnyNumberOfRanksReadsTheSameRows) {
  const std::vector<Read> alone = read(open_ranks(1, 12, 0), 12, 10);
  ASSERT_THAT(alone, SizeIs(120));
  for (int64_t i = 0; i < 120; ++i) EXPECT_EQ(alone[static_cast<size_t>(i)].number, i);
  for (const int ranks : {1, 2, 3, 4}) {
    const auto readers = open_ranks(ranks, 12 / ranks);
    EXPECT_EQ(read(readers, 12 / ranks, 10), alone) << ranks;
    int64_t bad = 0;
    for (const auto& reader : readers) {
      bad += reader->own_bad_samples();
      EXPECT_EQ(reader->cursor().next, (SamplePlace{2, 120 - 2 * kSamples}));
    }
    EXPECT_EQ(bad, std::count_if(alone.begin(), alone.end(),
                                 [](const Read& row) { return row.number >= 2 * kSamples && row.skipped; }))
        << "those of the third pass";
  }
}

// Each unusable sample is counted once in a pass, its row has a good sample, and all good samples are in the pass.
TEST_F(SampleRowsTest, UnusableSamplesAreReplaced) {
  for (const bool shuffle : {false, true}) {
    const auto rows = open({.threads = 4}, shuffle);
    for (int pass = 0; pass < 3; ++pass) {
      std::map<std::string, int> seen;
      int64_t skipped = 0;
      for (int64_t i = 0; i < kSamples; ++i) {
        const auto row = rows->next();
        ASSERT_TRUE(row.ok()) << row.status();
        EXPECT_EQ((*row)->place, (SamplePlace{pass, i}));
        ++seen[caption_of_row(**row)];
        const int64_t own = order(shuffle).sample((*row)->place);
        EXPECT_EQ((*row)->skipped.empty(), own % 7 != 3);
        if ((*row)->skipped.empty()) {
          EXPECT_EQ(caption_of_row(**row), absl::StrCat("caption ", own)) << "the row has not moved";
        } else {
          ++skipped;
          EXPECT_THAT((*row)->skipped,
                      AllOf(HasSubstr(absl::StrCat(own)), HasSubstr(".tar: "), HasSubstr("too small")));
        }
      }
      EXPECT_EQ(skipped, kBad);
      EXPECT_THAT(seen, SizeIs(kSamples - kBad));
      EXPECT_THAT(rows->take_warnings(), SizeIs(pass == 0 ? kBad : 0)) << "they are named once";
    }
  }
}

// A reader of another mesh resumes after any microbatch with the rows that would have followed.
TEST_F(SampleRowsTest, ResumesAtAnyRow) {
  const std::vector<Read> expected = read(open_ranks(1, 1), 1, 150);
  const auto first = open({});
  std::vector<int64_t> bad_of_pass(4);
  for (int64_t stop = 0; stop < 120; ++stop) {
    const nlohmann::json state = nlohmann::json::parse(first->state().dump());
    const auto place = order().place(stop);
    EXPECT_EQ(*order().cursor_from_json(state), (SampleCursor{place, bad_of_pass[static_cast<size_t>(place.pass)]}));
    const int ranks = 1 + static_cast<int>(stop % 4);
    auto resumed = open_ranks(ranks, 2, /*threads=*/static_cast<int>(stop % 3));
    for (const auto& rank : resumed) ASSERT_TRUE(rank->restore(state).ok());
    const std::vector<Read> rows = read(resumed, 2, 3);
    EXPECT_TRUE(std::equal(rows.begin(), rows.end(), expected.begin() + stop)) << stop;
    const auto row = first->next();
    bad_of_pass[static_cast<size_t>(place.pass)] += (*row)->skipped.empty() ? 0 : 1;
  }
  // The same reader moves back, too, and forgets what it read ahead.
  ASSERT_TRUE(first->restore(order().to_json({{0, 5}, 0})).ok());
  EXPECT_EQ((*first->next())->number, 5);
  EXPECT_EQ(first->restore({{"pass", 0}}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*first->next())->number, 6) << "an invalid state changes nothing";
}

TEST_F(SampleRowsTest, ACursorWithinAMicrobatchIsItsBeginning) {
  const auto rows = open({.batch = 4, .dp_rank = 1, .dp_size = 2});
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(rows->next().ok());
  EXPECT_EQ(rows->cursor().next, (SamplePlace{0, 8}));
}

// Without looping, all ranks see the same number of microbatches, and the missing rows of the last one.
TEST_F(SampleRowsTest, EndsAfterOnePass) {
  for (const int threads : {0, 3}) {
    for (const int ranks : {1, 2, 3, 4}) {
      std::set<int64_t> numbers;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto rows = open({.batch = 3, .dp_rank = rank, .dp_size = ranks, .loop = false, .threads = threads});
        int64_t returned = 0;
        while (true) {
          const auto row = rows->next();
          if (!row.ok()) {
            EXPECT_EQ(row.status().code(), absl::StatusCode::kOutOfRange) << row.status();
            break;
          }
          ++returned;
          if (row->has_value()) numbers.insert((*row)->number);
        }
        EXPECT_EQ(returned, (kSamples + 3 * ranks - 1) / (3 * ranks) * 3);
        EXPECT_EQ(rows->next().status().code(), absl::StatusCode::kOutOfRange) << "again";
      }
      EXPECT_THAT(numbers, SizeIs(kSamples));
    }
  }
}

// An error comes after all rows before it, and stays.
TEST_F(SampleRowsTest, ErrorsComeInTheOrderOfRows) {
  for (const int threads : {0, 1, 6}) {
    std::mutex mutex;
    std::condition_variable changed;
    bool failed = threads < 2;
    const auto decoding = [&](const Sample& sample, int64_t row) -> absl::StatusOr<std::any> {
      std::unique_lock lock(mutex);
      if (row == 5) {
        failed = true;
        changed.notify_all();
        return absl::InternalError("broken");
      }
      changed.wait(lock, [&] { return failed || row > 0; });  // Row 0 is decoded after row 5 has failed.
      return std::any(*sample.caption());
    };
    const auto rows = open({.threads = threads, .look_ahead = 16}, false, decoding);
    for (int64_t i = 0; i < 5; ++i) {
      const auto row = rows->next();
      ASSERT_TRUE(row.ok()) << row.status();
      EXPECT_EQ((*row)->number, i);
    }
    for (int i = 0; i < 2; ++i) {
      const absl::Status status = rows->next().status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
      EXPECT_THAT(status.message(), AllOf(HasSubstr("0.tar: 0005"), HasSubstr("broken")));
    }
    EXPECT_EQ(rows->cursor().next.row, 5);
    rows->seek({{0, 7}, 0});
    EXPECT_TRUE(rows->next().ok());
  }
}

TEST_F(SampleRowsTest, ExceptionsReachTheCaller) {
  for (const int threads : {0, 4}) {
    const auto rows =
        open({.threads = threads}, false, [](const Sample& sample, int64_t row) -> absl::StatusOr<std::any> {
          if (row == 2) throw std::runtime_error("broken invariant");
          return std::any(*sample.caption());
        });
    EXPECT_TRUE(rows->next().ok() && rows->next().ok());
    EXPECT_THROW(rows->next().IgnoreError(), std::runtime_error);
    EXPECT_EQ(rows->next().status().code(), absl::StatusCode::kInternal);
  }
}

// Damage that comes while a job reads costs the sample that it is in. A file that is gone ends the reading.
TEST_F(SampleRowsTest, DamageCostsASampleAndALostFileTheJob) {
  std::string tar = testing::small_tar(30);
  testing::MadeStore store;
  store.add("s3://b/1.tar", tar);
  const auto set = *SampleSet::open({.files = {"s3://b/1.tar"}, .kind = {.files = &store}, .open_files = 0});
  tar[512 * 4 * 20] = 'x';
  store.add("s3://b/1.tar", tar);
  SampleRows rows(set, SampleOrder({.samples = 30}), decode, {.threads = 0});
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(rows.next().ok()) << i;
  (void)rows.take_warnings();
  ASSERT_TRUE(rows.next().ok());
  EXPECT_THAT(rows.take_warnings(),
              ElementsAre(AllOf(HasSubstr("s3://b/1.tar: sample 20: byte 40960"), HasSubstr("checksum"))));
  store.objects.clear();
  EXPECT_FALSE(rows.next().ok());
}

// The sum over all ranks counts, also in the cursor; after a resume it is not counted again.
TEST_F(SampleRowsTest, LimitAppliesToTheSumOverRanks) {
  const auto rows = open({.max_bad_samples = 3}, false);
  for (int i = 0; i < 11; ++i) ASSERT_TRUE(rows->next().ok());
  EXPECT_EQ(rows->own_bad_samples(), 2) << "3 and 10";
  EXPECT_TRUE(rows->set_bad_samples(3).ok());
  const SampleCursor cursor = rows->cursor();
  EXPECT_EQ(cursor.bad_samples, 3);
  const absl::Status failed = rows->set_bad_samples(4);
  EXPECT_EQ(failed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(failed.message(), AllOf(HasSubstr("4 unusable samples of all ranks"), HasSubstr("max_bad_samples = 3"),
                                      HasSubstr("0010: too small")));
  rows->seek(cursor);
  EXPECT_EQ(rows->own_bad_samples(), 0);
  EXPECT_EQ(rows->cursor().bad_samples, 3);
  EXPECT_TRUE(rows->set_bad_samples(0).ok());
  EXPECT_FALSE(rows->set_bad_samples(1).ok());
}

TEST_F(SampleRowsTest, TooManyUnusableSamplesFail) {
  const auto rows = open({.max_bad_samples = 3}, false);
  int64_t returned = 0;
  absl::Status failed;
  while (failed.ok()) {
    failed = rows->next().status();
    if (failed.ok()) ++returned;
  }
  EXPECT_EQ(returned, 24) << "3, 10 and 17 are skipped";
  EXPECT_EQ(failed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(failed.message(), AllOf(HasSubstr("1.tar: 0024: too small"), HasSubstr("unusable sample 4 of the pass"),
                                      HasSubstr("max_bad_samples = 3")));
  EXPECT_THAT(rows->take_warnings(), AllOf(SizeIs(3), Each(HasSubstr(", skipped"))));
  // Samples that were skipped before a resume count, in their pass.
  rows->seek({{2, 11}, 3});
  for (int i = 11; i < 17; ++i) EXPECT_TRUE(rows->next().ok());
  EXPECT_THAT(rows->next().status().message(), HasSubstr("unusable sample 4"));
  rows->seek({{2, 39}, 3});
  for (int i = 39; i < kSamples + 17; ++i) EXPECT_TRUE(rows->next().ok());
  EXPECT_EQ(rows->cursor().bad_samples, 2);
  rows->seek({});
  EXPECT_THAT(rows->take_warnings(), IsEmpty());
}

TEST_F(SampleRowsTest, ADatasetWithoutUsableSamplesFails) {
  int calls = 0;
  const auto rows =
      open({.max_bad_samples = 1000, .threads = 0}, true, [&](const Sample&, int64_t) -> absl::StatusOr<std::any> {
        ++calls;
        return absl::InvalidArgumentError("too small");
      });
  EXPECT_THAT(rows->next().status().message(),
              AllOf(HasSubstr("no usable sample"), HasSubstr("too small"), HasSubstr("and 39 more")));
  EXPECT_EQ(calls, 1 + kSamples);
}

// At most look_ahead rows are under way or ready, and fewer if they are large.
TEST_F(SampleRowsTest, LookAheadIsBounded) {
  struct Case {
    int64_t rows, bytes, most;
  };
  for (const Case& bounds : {Case{5, 1 << 20, 5}, Case{1, 1 << 20, 1}, Case{40, 250, 3 + 3}, Case{40, 1, 1 + 3}}) {
    std::atomic<int64_t> begun = 0, returned = 0, most = 0;
    const auto rows = open({.threads = 4,
                            .look_ahead = bounds.rows,
                            .look_ahead_bytes = bounds.bytes,
                            .bytes_of = [](const std::any&) { return int64_t{100}; }},
                           true, [&](const Sample& sample, int64_t) -> absl::StatusOr<std::any> {
                             const int64_t ahead = ++begun - returned;
                             int64_t before = most;
                             while (before < ahead && !most.compare_exchange_weak(before, ahead)) continue;
                             return std::any(*sample.caption());
                           });
    for (int i = 0; i < 300; ++i) {
      ASSERT_TRUE(rows->next().ok());
      ++returned;
    }
    EXPECT_LE(most, bounds.most + 1) << "a row may begin before the caller counts the one that was returned";
    EXPECT_GE(begun, 300);
  }
}

// A reader ends while its threads decode, wait for a hub, or wait for its caller.
TEST_F(SampleRowsTest, EndsAtAnyTime) {
  for (int i = 0; i < 30; ++i) {
    const auto rows = open({.threads = 1 + i % 5, .look_ahead = 1 + i});
    for (int row = 0; row < i % 7; ++row) ASSERT_TRUE(rows->next().ok());
  }
  const auto hub = std::make_shared<testing::MadeHub>(testing::small_tar(20));
  const auto set = *SampleSet::open({.files = {"1.tar"}, .kind = {.remote = hub}});
  {
    SampleRows rows(set, SampleOrder({.samples = 20}), decode, {});
    EXPECT_TRUE(rows.next().ok());
  }
  EXPECT_TRUE(hub->stopped);
}

TEST_F(SampleRowsTest, ReportsWhatItCost) {
  const auto rows = open({.threads = 2});
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(rows->next().ok());
  const SampleProgress progress = rows->take_progress();
  EXPECT_EQ(progress.rows, 30);
  EXPECT_GE(progress.bytes_read, 30 * 2048);
  EXPECT_GT(progress.work_seconds, 0);
  EXPECT_GT(progress.samples_per_second(), 0);
  EXPECT_LE(progress.waited_seconds, progress.seconds);
  EXPECT_EQ(rows->take_progress().rows, 0);
}

// Random draws of a row depend on its number, which is that of the row and not of the rank.
TEST_F(SampleRowsTest, DecodingGetsTheRowsNumber) {
  const auto number = [](const Sample&, int64_t row) -> absl::StatusOr<std::any> { return std::any(row); };
  for (int rank = 0; rank < 3; ++rank) {
    const auto rows = open({.batch = 2, .dp_rank = rank, .dp_size = 3}, true, number);
    for (int64_t i = 0; i < 50; ++i) {
      const auto row = rows->next();
      EXPECT_EQ(std::any_cast<int64_t>((*row)->value), i / 2 * 6 + rank * 2 + i % 2);
      EXPECT_EQ((*row)->number, std::any_cast<int64_t>((*row)->value));
    }
  }
}

// All ranks together have each row of a step once if its rows are balanced, on any number of threads and after a
// restore. Rows of a step that holds the end of a pass stay as they come.
TEST_F(SampleRowsTest, BalancedRowsAreThoseOfTheStep) {
  constexpr int64_t kRanks = 2, kBatch = 2, kStep = 12;  // Rows of three microbatches.
  const auto cost = [](SampleSet&, int64_t sample) -> absl::StatusOr<int64_t> { return sample % 5 == 0 ? 100 : 1; };
  for (const int threads : {0, 3}) {
    std::vector<nlohmann::json> states(kRanks);
    int64_t moved_of_all = 0;
    for (int64_t step = 0; step < 8; ++step) {
      const nlohmann::json before = states[0];
      std::vector<int64_t> numbers;
      for (int rank = 0; rank < kRanks; ++rank) {
        const auto rows = open({.batch = kBatch,
                                .dp_rank = rank,
                                .dp_size = kRanks,
                                .threads = threads,
                                .cost_of = cost,
                                .microbatches = 3});
        if (step > 0) {
          ASSERT_TRUE(rows->restore(before).ok());
        }
        for (int64_t i = 0; i < kStep / kRanks; ++i) numbers.push_back((*rows->next())->number);
        states[static_cast<size_t>(rank)] = rows->state();
      }
      EXPECT_EQ(states[0]["next"], states[1]["next"]);
      const std::vector<int64_t> dealt = numbers;
      std::sort(numbers.begin(), numbers.end());
      for (int64_t i = 0; i < kStep; ++i) EXPECT_EQ(numbers[static_cast<size_t>(i)], step * kStep + i);
      const bool whole = step * kStep / kSamples == (step * kStep + kStep - 1) / kSamples;
      const std::vector<int64_t> plain = {0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11};
      int64_t moved = 0;
      for (size_t i = 0; i < dealt.size(); ++i) moved += dealt[i] != step * kStep + plain[i] ? 1 : 0;
      EXPECT_TRUE(whole || moved == 0) << step;
      moved_of_all += moved;
    }
    EXPECT_GT(moved_of_all, 20);
  }
  const auto failing = [](SampleSet&, int64_t sample) -> absl::StatusOr<int64_t> {
    return sample == 7 ? absl::UnavailableError("the disk is gone") : absl::StatusOr<int64_t>(1);
  };
  for (int rank = 0; rank < 2; ++rank) {  // Also on a rank that does not read this sample.
    const auto rows = open({.batch = 6, .dp_rank = rank, .dp_size = 2, .threads = 2, .cost_of = failing}, false);
    EXPECT_EQ(rows->next().status().code(), absl::StatusCode::kUnavailable);
  }
}

// The last microbatch of data that ends may have missing rows: skipped samples are still those of its only pass.
TEST_F(SampleRowsTest, CountsUnusableSamplesUpToTheEnd) {
  int64_t sum = 0;
  for (int rank = 0; rank < 2; ++rank) {
    const auto rows = open({.batch = 3, .dp_rank = rank, .dp_size = 2, .loop = false});
    absl::StatusOr<std::optional<SampleRow>> row = rows->next();
    while (row.ok()) row = rows->next();
    EXPECT_TRUE(absl::IsOutOfRange(row.status())) << row.status();
    sum += rows->own_bad_samples();
  }
  EXPECT_EQ(sum, kBad);
}

}  // namespace
}  // namespace titan::data

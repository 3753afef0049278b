#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "tests/worker/rank/data/samples/testing.h"
#include "tests/worker/rank/data/testing.h"
#include "worker/rank/data/samples/sample_order.h"
#include "worker/rank/model/vlm/image_deal.h"
#include "worker/rank/model/vlm/image_text_batches.h"
#include "worker/rank/model/vlm/row_dealer.h"

namespace titan::model::vlm {
namespace {

constexpr int64_t kSamples = 23, kSeqLen = 8;
constexpr int32_t kImage = 1, kPad = 2;

// Sample `number` has some tokens and images that follow from its number. Every seventh cannot be used.
absl::StatusOr<std::any> decode(const data::Sample& sample, int64_t) {
  const int64_t number = std::stoll(sample.key);
  if (number % 7 == 3) return absl::InvalidArgumentError("damaged");
  data::MultimodalSample made;
  made.tokens.assign(static_cast<size_t>(1 + number % 4), static_cast<int32_t>(100 + number));
  for (int64_t image = 0; image < number % 3; ++image) {
    made.images.push_back({.grid = {1, 1}, .patches = {static_cast<float>(number)}});
    made.tokens.push_back(kImage);
  }
  made.labels = made.tokens;
  return std::any(std::move(made));
}

// An archive whose images have only the header of a PNG file. A sixth of the images are large.
std::string tar_of_sizes() {
  std::string tar;
  for (int number = 0; number < kSamples; ++number) {
    const int side = number % 6 == 1 ? 9 : 1 + number % 3;
    const std::string header = std::string("\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0", 19) + static_cast<char>(side) +
                               std::string(3, '\0') + static_cast<char>(side);
    const std::string key = std::to_string(1000 + number).substr(1);
    tar += data::testing::tar_member(key + ".png", header) + data::testing::tar_member(key + ".txt", "caption");
  }
  return tar + data::testing::tar_end();
}

// A row as text: its tokens, then the pixels of its images.
std::vector<std::string> texts_of(const data::MultimodalBatch& batch) {
  std::vector<std::string> rows;
  auto image = batch.images.begin();
  for (int64_t row = 0; row < batch.rows; ++row) {
    std::string text;
    for (int64_t i = 0; i < batch.seq_len; ++i)
      absl::StrAppend(&text, batch.tokens[static_cast<size_t>(row * batch.seq_len + i)], " ");
    for (int64_t i = 0; i < batch.images_of_row[static_cast<size_t>(row)]; ++i)
      absl::StrAppend(&text, "| ", (image++)->patches.at(0), " ");
    rows.push_back(std::move(text));
  }
  return rows;
}

class RowDealerTest : public ::testing::Test {
 protected:
  RowDealerTest() { file_ = folder_.write("0.tar", tar_of_sizes()); }

  std::unique_ptr<RowDealer> open(int rank, int ranks, int64_t batch, int64_t window, int64_t max_images, bool loop) {
    const auto samples = *data::SampleSet::open({.files = {file_}});
    const data::SampleOrder order({.samples = kSamples, .dataset = samples->facts(), .shuffle = true});
    RowDealerOptions options{.rows = {.batch = batch, .dp_rank = rank, .dp_size = ranks, .loop = loop, .threads = 2},
                             .limits = {.rows = 3,
                                        .seq_len = kSeqLen,
                                        .max_images = max_images,
                                        .max_patches_per_image = 1,
                                        .packing_window = window,
                                        .patch_values = 1,
                                        .image_token = kImage,
                                        .pad_token = kPad},
                             .one_image_a_sample = true};  // NOLINT
    options.rows.max_bad_samples = max_bad_samples_;
    if (microbatches_ > 0) {
      options.balance = {.grid_of =
                             [](images::ImageSize size) {
                               return models::PatchGrid{size.height, size.width};
                             },
                         .cost_of = [this](const models::PatchGrid& grid) { return ++weighed_, grid.patches(); },
                         .microbatches = microbatches_};
    }
    return *open_rows(samples, order, decode, options);
  }

  // Reads global microbatches of 6 rows until the data ends or `most` are read. Resumes before each microbatch.
  std::vector<std::string> read(int ranks, int64_t window, int64_t max_images, bool loop, int64_t most) {
    std::vector<std::string> rows;
    const int64_t batch = 6 / ranks;
    nlohmann::json state;
    for (int64_t step = 0; step < most; ++step) {
      nlohmann::json after;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto dealer = open(rank, ranks, batch, window, max_images, loop);
        if (step > 0) {
          EXPECT_TRUE(dealer->restore(state).ok());
        }
        const auto next = dealer->next();
        if (absl::IsOutOfRange(next.status())) {
          EXPECT_EQ(rank, 0) << "all ranks end with the same microbatch";
          return rows;
        }
        EXPECT_TRUE(next.ok()) << next.status();
        for (std::string& row : texts_of(*next)) rows.push_back(std::move(row));
        nlohmann::json own = dealer->state();
        if (own.contains("bad_samples")) own["bad_samples"] = 0;  // Counted by rank.
        if (rank > 0) {
          EXPECT_EQ(own, after);
        }
        after = own;
      }
      state = after;
    }
    return rows;
  }

  // Reads `steps` steps of two global microbatches of 6 rows, resuming before each. Returns the rows of each step and
  // the work of its slowest ranks (one for each patch of a row's images).
  std::vector<std::vector<std::string>> read_steps(int ranks, int64_t window, int64_t max_images, int64_t* work) {
    std::vector<std::vector<std::string>> steps(3);
    nlohmann::json state;
    for (std::vector<std::string>& step : steps) {
      nlohmann::json after;
      std::vector<int64_t> largest(2);
      for (int rank = 0; rank < ranks; ++rank) {
        const auto dealer = open(rank, ranks, 6 / ranks, window, max_images, /*loop=*/true);
        if (!state.is_null()) {
          EXPECT_TRUE(dealer->restore(state).ok());
        }
        for (int64_t& slowest : largest) {
          const auto next = dealer->next();
          EXPECT_TRUE(next.ok()) << next.status();
          int64_t own = 0;
          for (std::string& row : texts_of(*next)) {
            own += std::count(row.begin(), row.end(), '|');
            step.push_back(std::move(row));
          }
          slowest = std::max(slowest, own);
        }
        after = dealer->state();
      }
      *work += std::accumulate(largest.begin(), largest.end(), int64_t{0});
      state = after;
      std::sort(step.begin(), step.end());
    }
    return steps;
  }

  data::testing::Folder folder_;
  std::string file_;
  int64_t max_bad_samples_ = 100;
  int64_t microbatches_ = 0;  // A step has so many, and its rows are balanced; 0: they are not.
  std::atomic<int64_t> weighed_ = 0;
};

// Balanced rows are other ones on each rank, but the same ones in each step, on any number of ranks.
TEST_F(RowDealerTest, BalancedStepsHaveTheSameRows) {
  for (const auto& [window, max_images] : {std::pair<int64_t, int64_t>{0, 50}, {0, 2}, {5, 4}}) {
    SCOPED_TRACE(absl::StrCat("window ", window, ", images ", max_images));
    microbatches_ = 0;
    int64_t plain = 0, ignored = 0;
    const auto one = read_steps(1, window, max_images, &ignored);
    (void)read_steps(3, window, max_images, &plain);
    microbatches_ = 2;
    weighed_ = 0;
    EXPECT_EQ(read_steps(1, window, max_images, &ignored), one);
    EXPECT_EQ(weighed_, 0) << "one rank has nothing to balance";
    for (const int ranks : {2, 3, 6}) {
      int64_t work = 0;
      EXPECT_EQ(read_steps(ranks, window, max_images, &work), one) << ranks;
      EXPECT_EQ(read_steps(ranks, window, max_images, &work), one) << "again";
      EXPECT_GT(weighed_, 0);
      if (ranks == 3 && window > 0) {
        EXPECT_LE(work, 2 * plain);
      }
    }
  }
}

// Ranks that read their own samples each find some of the unusable ones, and know all after the exchange. Ranks that
// read all samples find all. The limit ends every rank's data at the same place.
TEST_F(RowDealerTest, UnusableSamplesAreCountedOverRanks) {
  for (const int64_t window : {0, 5}) {
    SCOPED_TRACE(window);
    max_bad_samples_ = 4;  // There are three: samples 3, 10 and 17.
    std::deque<ImageTextBatches> ranks;
    for (int rank = 0; rank < 2; ++rank)
      ranks.emplace_back(open(rank, 2, window > 0 ? 1 : 6, window, 50, /*loop=*/true), 1);
    int64_t sum = 0, named = 0;
    for (ImageTextBatches& rank : ranks) {
      EXPECT_EQ(rank.warns_alike(), window > 0);
      ASSERT_TRUE(rank.next().ok());
      sum += rank.own_unusable();
      for (const std::string& warning : rank.take_warnings()) named += warning.ends_with("damaged, skipped") ? 1 : 0;
      const auto cost = rank.take_reading_cost();
      ASSERT_TRUE(cost.has_value());
      EXPECT_GT(cost->rows_per_second, 0);
    }
    if (window > 0) {
      EXPECT_EQ(sum, 0) << "nothing is exchanged";
      EXPECT_EQ(ranks[0].unusable(), ranks[1].unusable());
      EXPECT_EQ(named, 2 * *ranks[0].unusable());
    } else {
      EXPECT_GT(sum, 0);
      EXPECT_EQ(named, sum);
    }
    for (ImageTextBatches& rank : ranks) {
      EXPECT_TRUE(rank.set_unusable(3).ok());
      if (window > 0) continue;
      EXPECT_EQ(rank.unusable(), 3);
      EXPECT_EQ(rank.state()["bad_samples"], 3);
      EXPECT_EQ(rank.set_unusable(5).code(), absl::StatusCode::kInvalidArgument);
    }
  }
  max_bad_samples_ = 1;
  for (int rank = 0; rank < 2; ++rank) {
    const auto packed = open(rank, 2, 6, 5, 50, /*loop=*/true);
    absl::Status status;
    while (status.ok()) status = packed->next().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("unusable sample 2 of the pass"));
  }
}

// Any number of ranks sees the same rows, with one sample a row, with a limit of images and packed, and resumes
// anywhere.
TEST_F(RowDealerTest, RowsDoNotDependOnTheMesh) {
  for (const auto& [window, max_images] : {std::pair<int64_t, int64_t>{0, 50}, {0, 2}, {5, 4}}) {
    for (const bool loop : {false, true}) {
      SCOPED_TRACE(absl::StrCat("window ", window, ", images ", max_images, ", loop ", loop));
      const std::vector<std::string> one = read(1, window, max_images, loop, 8);
      EXPECT_EQ(read(2, window, max_images, loop, 8), one);
      EXPECT_EQ(read(6, window, max_images, loop, 8), one);
      if (loop) {
        EXPECT_EQ(one.size(), 48u);
      }
      const std::string padding = texts_of(data::collate({{}}, {.seq_len = kSeqLen, .pad_token = kPad})).front();
      const auto filled = std::count_if(one.begin(), one.end(), [&](const std::string& row) { return row != padding; });
      if (window == 0 && !loop) {
        EXPECT_EQ(filled, kSamples);
      }
      if (window == 5 && !loop) {
        EXPECT_LT(filled, kSamples);
      }
      // Rows 3 n to 3 n + 2 keep the limit.
      for (size_t row = 0; row < one.size(); row += 3) {
        int64_t images = 0;
        for (size_t i = row; i < std::min(row + 3, one.size()); ++i)
          images += std::count(one[i].begin(), one[i].end(), '|');
        EXPECT_LE(images, max_images);
      }
    }
  }
}

TEST_F(RowDealerTest, OtherStatesAreRefused) {
  const auto packed = open(0, 1, 3, 5, 9, true), plain = open(0, 1, 3, 0, 9, true);
  EXPECT_EQ(packed->restore(plain->state()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(plain->restore(packed->state()).code(), absl::StatusCode::kInvalidArgument);
  nlohmann::json state = packed->state();
  state["given"] = 99;
  EXPECT_EQ(packed->restore(state).code(), absl::StatusCode::kInvalidArgument);
}

// Each image is encoded by one rank, and the rows lead from its tokens to its patches there.
TEST(ImageDealTest, RowsFindThePatches) {
  const std::vector<std::vector<models::PatchGrid>> grids = {{{2, 3}, {1, 1}}, {}, {{4, 2}, {3, 1}, {1, 2}}};
  const at::Tensor sides = at::zeros({3, 3, 2}, at::kLong), patches = at::zeros({3, 13, 1});
  std::vector<float> expected;
  for (int64_t row = 0; row < 3; ++row) {
    int64_t patch = 0;
    for (size_t image = 0; image < grids[static_cast<size_t>(row)].size(); ++image) {
      const models::PatchGrid grid = grids[static_cast<size_t>(row)][image];
      sides[row][static_cast<int64_t>(image)][0] = grid.height;
      sides[row][static_cast<int64_t>(image)][1] = grid.width;
      for (int64_t i = 0; i < grid.patches(); ++i, ++patch) {
        expected.push_back(static_cast<float>(expected.size()) + 1);
        patches[row][patch][0] = expected.back();
      }
    }
  }
  const models::VisionSpec vision{
      .dim = 8, .ffn_hidden = 8, .n_layers = 1, .n_heads = 1, .channels = 1, .patch_size = 1};
  for (const int ranks : {1, 2, 3, 7}) {
    std::vector<at::Tensor> gathered;
    at::Tensor rows;
    for (int rank = 0; rank < ranks; ++rank) {
      const ImageDeal deal = deal_images(sides, patches, vision, rank, ranks);
      EXPECT_EQ(deal.patches.size(1), deal.images->patches());
      gathered.push_back(
          at::constant_pad_nd(deal.patches[0], {0, 0, 0, deal.images->padded_patches - deal.patches.size(1)}));
      if (rank > 0) {
        EXPECT_TRUE(rows.equal(deal.rows));
      }
      rows = deal.rows;
    }
    EXPECT_TRUE(at::cat(gathered).index_select(0, rows).flatten().equal(at::tensor(expected))) << ranks;
    if (ranks == 2) {
      EXPECT_EQ(gathered[0].size(0), 10) << "20 patches are shared out evenly";
    }
  }
  const ImageDeal none = deal_images(at::zeros({2, 0, 2}, at::kLong), at::zeros({2, 0, 1}), vision, 1, 2);
  EXPECT_EQ(none.rows.size(0), 0);
  EXPECT_EQ(none.patches.sizes(), (std::vector<int64_t>{1, 1, 1}));
}

}  // namespace
}  // namespace titan::model::vlm

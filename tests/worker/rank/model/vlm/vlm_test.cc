#include <gtest/gtest.h>

#include <numeric>

#include "absl/strings/str_cat.h"
#include "tests/worker/rank/data/samples/testing.h"
#include "tests/worker/rank/data/testing.h"
#include "worker/rank/data/samples/sample_order.h"
#include "worker/rank/model/vlm/image_deal.h"
#include "worker/rank/model/vlm/row_dealer.h"
#include "worker/rank/model/vlm/siglip2_adapter.h"

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
  RowDealerTest() { file_ = folder_.write("0.tar", data::testing::small_tar(kSamples, 0)); }

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

  data::testing::Folder folder_;
  std::string file_;
};

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

int64_t patches_of(const std::vector<models::PatchGrid>& grids) {
  int64_t patches = 0;
  for (const models::PatchGrid& grid : grids) patches += grid.patches();
  return patches;
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
  const auto adapter =
      siglip2_adapter({.dim = 8, .ffn_hidden = 8, .n_layers = 1, .n_heads = 1, .channels = 1, .patch_size = 1});
  for (const int ranks : {1, 2, 3, 7}) {
    std::vector<at::Tensor> gathered;
    at::Tensor rows;
    for (int rank = 0; rank < ranks; ++rank) {
      const ImageDeal deal = deal_images(sides, patches, *adapter, rank, ranks);
      EXPECT_EQ(deal.patches.size(1), patches_of(deal.grids));
      gathered.push_back(at::constant_pad_nd(deal.patches[0], {0, 0, 0, deal.padded_rows - deal.patches.size(1)}));
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
  const ImageDeal none = deal_images(at::zeros({2, 0, 2}, at::kLong), at::zeros({2, 0, 1}), *adapter, 1, 2);
  EXPECT_EQ(none.rows.size(0), 0);
  EXPECT_EQ(none.patches.sizes(), (std::vector<int64_t>{1, 1, 1}));
}

}  // namespace
}  // namespace titan::model::vlm

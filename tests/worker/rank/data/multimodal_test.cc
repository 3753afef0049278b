#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/testing/draw.h"
#include "worker/rank/data/multimodal/collator.h"
#include "worker/rank/data/multimodal/image_shares.h"

namespace titan::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using titan::testing::Draw;

constexpr int32_t kImage = 7, kPad = 0, kIgnored = -100;
constexpr int64_t kValues = 2;

class ListSource final : public SampleSource {
 public:
  explicit ListSource(std::vector<MultimodalSample> samples) : samples_(std::move(samples)) {}
  absl::StatusOr<MultimodalSample> next() override {
    if (next_ == samples_.size()) return absl::OutOfRangeError("end");
    return samples_[next_++];
  }
  nlohmann::json position() const override { return next_; }
  absl::Status seek(const nlohmann::json& position) override {
    next_ = position;
    return absl::OkStatus();
  }

 private:
  std::vector<MultimodalSample> samples_;
  size_t next_ = 0;
};

// Makes a sample that starts with its number, has the tokens of its images with their labels ignored, and ends with
// `text` tokens.
MultimodalSample sample_of(int32_t number, const std::vector<models::PatchGrid>& grids, int64_t text) {
  MultimodalSample sample{.tokens = {1000 + number}, .labels = {1000 + number}};
  for (const models::PatchGrid& grid : grids) {
    sample.tokens.insert(sample.tokens.end(), grid.patches(), kImage);
    sample.labels.insert(sample.labels.end(), grid.patches(), kIgnored);
    sample.images.push_back({.grid = grid,
                             .patches = std::vector<float>(grid.patches() * kValues, static_cast<float>(number)),
                             .key = number});
  }
  for (int32_t i = 0; i < text; ++i) {
    sample.tokens.push_back(100 + i);
    sample.labels.push_back(100 + i);
  }
  return sample;
}

std::vector<MultimodalSample> random_samples(Draw& pick, int64_t count) {
  std::vector<MultimodalSample> samples;
  for (int32_t i = 0; i < count; ++i) {
    std::vector<models::PatchGrid> grids;
    for (int64_t images = pick({0, 0, 1, 1, 2, 4}); images > 0; --images) grids.push_back({pick({1, 2}), pick({1, 3})});
    samples.push_back(sample_of(i, grids, pick({0, 1, 3, 8, 14})));
  }
  return samples;
}

MultimodalOptions random_options(Draw& pick) {
  return {.rows = pick({1, 2, 5}),
          .seq_len = pick({40, 64, 100}),
          .max_images = pick({4, 5, 9}),
          .max_patches_per_image = 6,
          .packing_window = pick({0, 1, 4, 17}),
          .patch_values = kValues,
          .image_token = kImage,
          .pad_token = kPad};
}

Collator open(const std::vector<MultimodalSample>& samples, const MultimodalOptions& options) {
  auto collator = Collator::open(std::make_unique<ListSource>(samples), options);
  EXPECT_TRUE(collator.ok()) << collator.status();
  return *std::move(collator);
}

std::vector<MultimodalBatch> all_batches(Collator& collator) {
  std::vector<MultimodalBatch> batches;
  while (true) {
    auto batch = collator.next();
    if (absl::IsOutOfRange(batch.status())) return batches;
    EXPECT_TRUE(batch.ok()) << batch.status();
    batches.push_back(*std::move(batch));
  }
}

void expect_same(const MultimodalBatch& one, const MultimodalBatch& other) {
  EXPECT_EQ(one.tokens, other.tokens);
  EXPECT_EQ(one.labels, other.labels);
  EXPECT_EQ(one.documents, other.documents);
  EXPECT_EQ(one.images_of_row, other.images_of_row);
  ASSERT_EQ(one.images.size(), other.images.size());
  for (size_t i = 0; i < one.images.size(); ++i) {
    EXPECT_EQ(one.images[i].grid, other.images[i].grid);
    EXPECT_EQ(one.images[i].patches, other.images[i].patches);
  }
}

// Reads the samples back from a batch, by the documents, and checks what every row promises.
void read_back(const MultimodalBatch& batch, const MultimodalOptions& options, std::vector<MultimodalSample>& into) {
  size_t image = 0;
  ASSERT_EQ(static_cast<int64_t>(batch.tokens.size()), options.rows * options.seq_len);
  EXPECT_LE(static_cast<int64_t>(batch.images.size()), options.max_images);
  for (int64_t row = 0; row < batch.rows; ++row) {
    const int64_t begin = row * options.seq_len, end = begin + options.seq_len;
    const size_t first_image = image;
    for (int64_t at = begin; at < end;) {
      const auto document_end =
          std::upper_bound(batch.documents.begin() + at, batch.documents.begin() + end, batch.documents[at]) -
          batch.documents.begin();
      EXPECT_EQ(batch.labels[document_end - 1], kIgnored) << "a sample's last token predicts nothing";
      if (batch.tokens[at] == kPad) {
        EXPECT_EQ(document_end, at + 1) << "each padding token is a document";
        ++at;
        continue;
      }
      MultimodalSample sample{.labels = {static_cast<int32_t>(batch.tokens[at])}};
      int64_t patches = 0;
      for (; at < document_end; ++at) {
        sample.tokens.push_back(static_cast<int32_t>(batch.tokens[at]));
        if (at + 1 < document_end) sample.labels.push_back(static_cast<int32_t>(batch.labels[at]));
        patches += batch.tokens[at] == kImage ? 1 : 0;
      }
      for (; patches > 0; ++image) {
        sample.images.push_back(batch.images.at(image));
        patches -= batch.images[image].grid.patches();
      }
      EXPECT_EQ(patches, 0);
      into.push_back(std::move(sample));
    }
    EXPECT_EQ(batch.images_of_row[row], static_cast<int64_t>(image - first_image));
  }
  EXPECT_EQ(image, batch.images.size());
}

// Every sample is in exactly one batch, with its own tokens, labels and images, under every limit and window. Those of
// only text too.
TEST(CollatorTest, EverySampleIsUsedOnce) {
  Draw pick(1);
  for (int i = 0; i < 60; ++i) {
    const std::vector<MultimodalSample> samples = random_samples(pick, pick({0, 1, 10, 40}));
    const MultimodalOptions options = random_options(pick);
    Collator collator = open(samples, options);
    std::vector<MultimodalSample> seen;
    for (const MultimodalBatch& batch : all_batches(collator)) read_back(batch, options, seen);
    if (options.packing_window > 1)
      std::sort(seen.begin(), seen.end(), [](const auto& a, const auto& b) { return a.tokens[0] < b.tokens[0]; });
    ASSERT_EQ(seen.size(), samples.size());
    for (size_t s = 0; s < samples.size(); ++s) {
      EXPECT_EQ(seen[s].tokens, samples[s].tokens);
      EXPECT_EQ(seen[s].labels, samples[s].labels);
      ASSERT_EQ(seen[s].images.size(), samples[s].images.size());
      for (size_t k = 0; k < samples[s].images.size(); ++k) {
        EXPECT_EQ(seen[s].images[k].grid, samples[s].images[k].grid);
        EXPECT_EQ(seen[s].images[k].key, samples[s].images[k].key);
      }
    }
    EXPECT_TRUE(collator.take_warnings().empty());
  }
}

// A job that resumes after any batch sees the batches that it would have seen.
TEST(CollatorTest, ResumesAfterEveryBatch) {
  Draw pick(2);
  for (int i = 0; i < 20; ++i) {
    std::vector<MultimodalSample> samples = random_samples(pick, 30);
    samples[pick({0, 5, 29})].labels.pop_back();  // Skipped in both runs.
    const MultimodalOptions options = random_options(pick);
    Collator whole = open(samples, options);
    std::vector<nlohmann::json> states{whole.state()};
    std::vector<MultimodalBatch> batches;
    while (true) {
      auto batch = whole.next();
      if (!batch.ok()) break;
      batches.push_back(*std::move(batch));
      states.push_back(nlohmann::json::parse(whole.state().dump()));
    }
    for (size_t from = 0; from < states.size(); ++from) {
      Collator resumed = open(samples, options);
      ASSERT_TRUE(resumed.restore(states[from]).ok());
      EXPECT_EQ(resumed.state(), states[from]);
      const std::vector<MultimodalBatch> rest = all_batches(resumed);
      ASSERT_EQ(rest.size(), batches.size() - from);
      for (size_t k = 0; k < rest.size(); ++k) expect_same(rest[k], batches[from + k]);
    }
  }
}

// torchtitan would drop the second row, because both together exceed the limit.
TEST(CollatorTest, RowsBeyondTheLimitOpenTheNextBatch) {
  const std::vector<MultimodalSample> samples = {sample_of(1, {{1, 1}, {1, 2}}, 1), sample_of(2, {{2, 1}, {1, 1}}, 2),
                                                 sample_of(3, {}, 1)};
  const MultimodalOptions options{.rows = 2,
                                  .seq_len = 6,
                                  .max_images = 3,
                                  .max_patches_per_image = 4,
                                  .patch_values = kValues,
                                  .image_token = kImage};
  Collator collator = open(samples, options);
  const auto first = *collator.next(), second = *collator.next();
  EXPECT_THAT(first.tokens, ElementsAre(1001, 7, 7, 7, 100, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(first.labels, ElementsAre(-100, -100, -100, 100, -100, -100, -100, -100, -100, -100, -100, -100));
  EXPECT_THAT(first.documents, ElementsAre(0, 0, 0, 0, 0, 1, 0, 1, 2, 3, 4, 5));
  EXPECT_THAT(first.images_of_row, ElementsAre(2, 0));
  EXPECT_THAT(second.tokens, ElementsAre(1002, 7, 7, 7, 100, 101, 1003, 100, 0, 0, 0, 0));
  EXPECT_THAT(second.images_of_row, ElementsAre(2, 0));
  EXPECT_TRUE(absl::IsOutOfRange(collator.next().status()));
}

TEST(CollatorTest, RanksSharesMakeUpTheBatch) {
  Draw pick(3);
  for (int i = 0; i < 20; ++i) {
    MultimodalOptions options = random_options(pick);
    options.rows = 4;
    options.max_images = 20;
    Collator collator = open(random_samples(pick, 20), options);
    MultimodalBatch batch = *collator.next(), joined{.rows = 4, .seq_len = options.seq_len};
    MultimodalBatch whole = batch;
    const int64_t ranks = pick({1, 2, 4});
    for (int64_t rank = 0; rank < ranks; ++rank) {
      MultimodalBatch part = take_rows(batch, rank * 4 / ranks, 4 / ranks);
      const auto append = [](auto& to, auto& from) { to.insert(to.end(), from.begin(), from.end()); };
      append(joined.tokens, part.tokens);
      append(joined.labels, part.labels);
      append(joined.documents, part.documents);
      append(joined.images, part.images);
      append(joined.images_of_row, part.images_of_row);
    }
    expect_same(joined, whole);
    const auto packed = packed_patches(joined.images, kValues);
    ASSERT_TRUE(packed.ok()) << packed.status();
    int64_t patches = 0;
    for (const SampleImage& image : joined.images) patches += image.grid.patches();
    EXPECT_EQ(static_cast<int64_t>(packed->size()), patches * kValues);
  }
  const std::vector<SampleImage> undecoded = {{.grid = {1, 2}}};
  EXPECT_EQ(packed_patches(undecoded, kValues).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(CollatorTest, SkippedSamplesAreNamed) {
  const MultimodalOptions options{.rows = 1,
                                  .seq_len = 12,
                                  .max_images = 2,
                                  .max_patches_per_image = 6,
                                  .spatial_merge_size = 1,
                                  .patch_values = kValues,
                                  .image_token = kImage};
  const auto reason = [&](auto change, MultimodalOptions changed) {
    MultimodalSample sample = sample_of(1, {{2, 2}}, 3);
    change(sample);
    return std::string(check_sample(sample, changed).message());
  };
  const auto nothing = [](MultimodalSample&) {};
  EXPECT_EQ(reason(nothing, options), "");
  EXPECT_EQ(reason([](auto& s) { s.tokens.clear(); }, options), "it has no tokens");
  EXPECT_EQ(reason([](auto& s) { s.labels.push_back(1); }, options), "it has 8 tokens and 9 labels");
  EXPECT_EQ(reason([](auto& s) { s = sample_of(1, {}, 12); }, options), "its 13 tokens exceed seq_len = 12");
  EXPECT_EQ(reason(
                [](auto& s) {
                  s = sample_of(1, {{1, 1}, {1, 1}, {1, 1}}, 1);
                },
                options),
            "its 3 images exceed max_images = 2");
  EXPECT_EQ(reason(
                [](auto& s) {
                  s = sample_of(1, {{1, 7}}, 1);
                },
                options),
            "image 0 of 1 x 7 patches exceeds max_patches_per_image = 6");
  EXPECT_THAT(reason(
                  [](auto& s) {
                    s.images[0].grid = {int64_t{1} << 40, int64_t{1} << 40};
                  },
                  options),
              HasSubstr("exceeds max_patches_per_image = 6"));
  EXPECT_EQ(reason([](auto& s) { s.images[0].grid = {0, 4}; }, options), "image 0 of 0 x 4 patches is empty");
  EXPECT_EQ(reason([](auto& s) { s.images[0].patches.pop_back(); }, options),
            "image 0 of 2 x 2 patches has 7 numbers, need 8");
  EXPECT_EQ(reason([](auto& s) { s.images[0].patches.clear(); }, options), "") << "not decoded yet";
  EXPECT_EQ(reason([](auto& s) { s.images.clear(); }, options), "it has 4 image tokens, but its 0 images need 0");
  MultimodalOptions merging = options;
  merging.spatial_merge_size = 2;
  EXPECT_EQ(reason(nothing, merging), "it has 4 image tokens, but its 1 images need 1");
  EXPECT_EQ(reason(
                [](auto& s) {
                  s = sample_of(1, {{2, 3}}, 1);
                },
                merging),
            "image 0 of 2 x 3 patches cannot be merged by spatial_merge_size = 2");

  Collator collator = open({sample_of(1, {{1, 7}}, 1), sample_of(2, {}, 2)}, options);
  EXPECT_EQ(collator.next()->tokens[0], 1002);
  EXPECT_THAT(collator.take_warnings(),
              ElementsAre("a sample was skipped: image 0 of 1 x 7 patches exceeds max_patches_per_image = 6"));
  EXPECT_TRUE(collator.take_warnings().empty());
}

// A dataset of which no sample fits ends the job instead of being read forever.
TEST(CollatorTest, EndlessSkippingIsAnError) {
  class Endless final : public SampleSource {
    absl::StatusOr<MultimodalSample> next() override { return sample_of(1, {}, 50); }
    nlohmann::json position() const override { return 0; }
    absl::Status seek(const nlohmann::json&) override { return absl::OkStatus(); }
  };
  const MultimodalOptions options{.seq_len = 12, .max_images = 2, .max_patches_per_image = 6, .image_token = kImage};
  const auto status = Collator::open(std::make_unique<Endless>(), options)->next().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("its 51 tokens exceed seq_len = 12"));
}

TEST(CollatorTest, RefusesBadOptionsAndStates) {
  MultimodalOptions options{.seq_len = 40,
                            .max_images = 9,
                            .max_patches_per_image = 6,
                            .packing_window = 8,
                            .patch_values = kValues,
                            .image_token = kImage};
  const auto refusal = [&](auto change) {
    MultimodalOptions changed = options;
    change(changed);
    const auto status = Collator::open(nullptr, changed).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(refusal([](auto& o) { o.rows = 0; }), "rows: 0 is not above 0");
  EXPECT_EQ(refusal([](auto& o) { o.max_images = -1; }), "max_images: -1 is not above 0");
  EXPECT_EQ(refusal([](auto& o) { o.packing_window = -1; }), "packing_window: -1 is below 0");
  EXPECT_EQ(refusal([](auto& o) { o.pad_token = kImage; }), "image_token and pad_token are both 7");

  Draw pick(4);
  Collator collator = open(random_samples(pick, 20), options);
  for (const nlohmann::json& bad :
       {nlohmann::json(), nlohmann::json{{"rows", 1}}, nlohmann::json{{"window", 0}},
        nlohmann::json{{"window", 0}, {"rows", -1}}, nlohmann::json{{"window", 0}, {"rows", "1"}},
        nlohmann::json{{"window", 0}, {"rows", 9}}}) {
    EXPECT_EQ(collator.restore(bad).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(PackSamplesTest, RowsKeepTheLimitsAndNoTwoFitTogether) {
  Draw pick(5);
  for (int i = 0; i < 200; ++i) {
    std::vector<SampleSize> sizes;
    for (int64_t count = pick({0, 1, 7, 30}); count > 0; --count)
      sizes.push_back({pick({1, 3, 10, 20, 33, 60}), pick({0, 0, 1, 3, 5})});
    constexpr int64_t kTokens = 60, kImages = 5;
    const auto rows = pack_samples(sizes, kTokens, kImages);
    std::vector<SampleSize> sums;
    std::multiset<size_t> seen;
    for (const std::vector<size_t>& row : rows) {
      SampleSize& sum = sums.emplace_back();
      for (const size_t sample : row) sum.tokens += sizes[sample].tokens, sum.images += sizes[sample].images;
      seen.insert(row.begin(), row.end());
      EXPECT_TRUE(std::is_sorted(row.begin(), row.end()));
      EXPECT_LE(sum.tokens, kTokens);
      EXPECT_LE(sum.images, kImages);
    }
    EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end()));
    EXPECT_EQ(seen.size(), sizes.size());
    EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), sizes.size());
    for (size_t a = 0; a < sums.size(); ++a) {
      for (size_t b = 0; b < a; ++b) {
        EXPECT_TRUE(sums[a].tokens + sums[b].tokens > kTokens || sums[a].images + sums[b].images > kImages);
      }
    }
  }
}

int64_t largest_load(const std::vector<int64_t>& costs, const std::vector<int>& rank_of, int ranks) {
  std::vector<int64_t> loads(ranks);
  for (size_t i = 0; i < costs.size(); ++i) loads[rank_of[i]] += costs[i];
  return *std::max_element(loads.begin(), loads.end());
}

std::vector<int> ranks_of(const ImageShares& shares) {
  std::vector<int> ranks;
  for (const ImageShares::Place& place : shares.places) ranks.push_back(place.rank);
  return ranks;
}

int64_t optimum(const std::vector<int64_t>& costs, std::vector<int>& chosen, int ranks) {
  if (chosen.size() == costs.size()) return largest_load(costs, chosen, ranks);
  int64_t best = std::numeric_limits<int64_t>::max();
  for (int rank = 0; rank < ranks; ++rank) {
    chosen.push_back(rank);
    best = std::min(best, optimum(costs, chosen, ranks));
    chosen.pop_back();
  }
  return best;
}

TEST(ImageSharesTest, IsWithinAThirdOfTheOptimum) {
  Draw pick(6);
  for (int i = 0; i < 60; ++i) {
    std::vector<int64_t> costs;
    for (int64_t count = pick({1, 3, 6, 7}); count > 0; --count) costs.push_back(pick({0, 1, 2, 3, 4, 6, 8}));
    const int ranks = static_cast<int>(pick({1, 2, 3}));
    std::vector<int> chosen;
    const int64_t best = optimum(costs, chosen, ranks);
    EXPECT_LE(3 * largest_load(costs, ranks_of(balance_images(costs, ranks)), ranks), 4 * best);
  }
}

TEST(ImageSharesTest, PlacesAndImagesAreInverse) {
  Draw pick(7);
  for (int i = 0; i < 60; ++i) {
    std::vector<int64_t> costs;
    for (int64_t count = pick({0, 1, 9, 100}); count > 0; --count) costs.push_back(pick({1, 4, 5, 9, 30, 256}));
    const int ranks = static_cast<int>(pick({1, 2, 5, 16}));
    const ImageShares shares = balance_images(costs, ranks);
    ASSERT_EQ(shares.places.size(), costs.size());
    ASSERT_EQ(static_cast<int>(shares.images.size()), ranks);
    std::vector<int64_t> gathered;
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_TRUE(std::is_sorted(shares.images[rank].begin(), shares.images[rank].end()));
      for (size_t index = 0; index < shares.images[rank].size(); ++index) {
        const int64_t image = shares.images[rank][index];
        EXPECT_EQ(shares.places[image], (ImageShares::Place{rank, static_cast<int64_t>(index)}));
        gathered.push_back(image);
      }
    }
    ASSERT_EQ(gathered.size(), costs.size());
    const std::vector<int64_t> order = shares.gathered_order();
    for (size_t image = 0; image < costs.size(); ++image)
      EXPECT_EQ(gathered[order[image]], static_cast<int64_t>(image));
    EXPECT_EQ(balance_images(costs, ranks).images, shares.images);
  }
  // Ties: the earlier image first, and the lower rank first.
  EXPECT_THAT(balance_images({5, 5, 5, 5}, 2).images, ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
}

}  // namespace
}  // namespace titan::data

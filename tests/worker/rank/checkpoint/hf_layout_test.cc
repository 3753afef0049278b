// Tests reading any box of a parameter from any form in which Hugging Face weights may hold it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <random>

#include "common/io/storage/faulty_files.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"
#include "worker/rank/checkpoint/shards/shard.h"

namespace titan::checkpoint {
namespace {

using ::testing::HasSubstr;

class OneLayout : public HfMapper {
 public:
  explicit OneLayout(std::vector<HfLayout> layouts) : layouts_(std::move(layouts)) {}
  absl::StatusOr<std::vector<HfLayout>> layouts(const std::string&) const override { return layouts_; }
  bool knows(const std::string& key) const override { return key != "stranger"; }

 private:
  std::vector<HfLayout> layouts_;
};

class HfLayoutTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = storage::join_path(::testing::TempDir(), "layout." + std::to_string(::getpid()));
    ASSERT_TRUE(storage::posix_files().remove_folder(folder_).ok());
  }
  void TearDown() override { storage::posix_files().remove_folder(folder_).IgnoreError(); }

  std::unique_ptr<HfFolder> write(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
    EXPECT_TRUE(storage::posix_files().remove_folder(folder_).ok());
    EXPECT_TRUE(storage::posix_files().make_folders(folder_).ok());
    std::vector<Staged> parts;
    for (const auto& [key, value] : tensors) {
      parts.push_back(
          {key, value.sizes().vec(), std::vector<int64_t>(static_cast<size_t>(value.dim())), value.contiguous()});
    }
    EXPECT_TRUE(write_tensors(storage::posix_files(), folder_, "model.safetensors", parts).ok());
    bytes_read_ = 0;
    auto weights = HfFolder::open(counting_, folder_);
    EXPECT_TRUE(weights.ok()) << weights.status();
    bytes_read_ = 0;
    return *std::move(weights);
  }

  // Writes `full` to a folder by `layout`, as its part of tensors that are otherwise zero.
  std::unique_ptr<HfFolder> write(const HfLayout& layout, const at::Tensor& full) {
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    const std::vector<at::Tensor> values = to_hf(layout, full);
    for (size_t i = 0; i < values.size(); ++i) {
      std::vector<at::Tensor> side(static_cast<size_t>(layout.parts), at::zeros_like(values[i]));
      side.at(static_cast<size_t>(layout.part)) = values[i];
      tensors.emplace_back(layout.keys.at(i), layout.parts > 1 ? at::cat(side, -1) : values[i]);
      EXPECT_EQ(tensors.back().second.sizes().vec(), hf_shape(layout, full.sizes().vec()));
    }
    return write(tensors);
  }

  int64_t bytes_read_ = 0;
  storage::FaultyFiles counting_{[this](const storage::FileOperation& operation) {
    if (operation.kind == storage::FileOperation::Kind::kRead) bytes_read_ += operation.bytes;
    return storage::Fault{};
  }};
  std::string folder_;
};

TEST_F(HfLayoutTest, ReadsAnyBoxOfAnyLayout) {
  std::mt19937 random(::testing::UnitTest::GetInstance()->random_seed());
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int round = 0; round < 200; ++round) {
    HfLayout layout{.keys = {"t"}};
    std::vector<int64_t> shape;
    switch (round % 5) {
      case 0:  // Unchanged, any number of dims.
        for (int64_t dims = draw(1, 3); dims > 0; --dims) shape.push_back(draw(1, 7));
        break;
      case 1:
        layout.permute_heads = draw(1, 4);
        shape = {layout.permute_heads * 2 * draw(1, 3), draw(1, 5)};
        break;
      case 2:
        layout.stacked = true;
        shape = {draw(1, 5), draw(1, 5), draw(1, 5)};
        layout.keys.clear();
        for (int64_t e = 0; e < shape[0]; ++e) layout.keys.push_back("t." + std::to_string(e));
        break;
      case 3:
        layout.transposed = true;
        for (int64_t dims = draw(2, 3); dims > 0; --dims) shape.push_back(draw(1, 6));
        break;
      case 4:
        layout.transposed = true;
        layout.parts = draw(2, 3);
        layout.part = draw(0, layout.parts - 1);
        shape = {draw(1, 4), draw(1, 5), draw(1, 5)};
        break;
    }
    const at::Tensor full = at::rand(shape);
    const auto weights = write(layout, full);
    Box box;
    at::Tensor want = full;
    for (size_t d = 0; d < shape.size(); ++d) {
      box.offset.push_back(draw(0, shape[d] - 1));
      box.shape.push_back(draw(1, shape[d] - box.offset[d]));
      want = want.narrow(static_cast<int64_t>(d), box.offset[d], box.shape[d]);
    }
    const auto got = read_parameter(*weights, OneLayout({layout}), "p", shape, box);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(at::equal(*got, want)) << "layout " << round % 5;
    EXPECT_TRUE(got->is_contiguous());
  }
}

// A rank with two experts of eight, or one head of four, reads a quarter of the bytes.
TEST_F(HfLayoutTest, ReadsOnlyWhatTheBoxNeeds) {
  const at::Tensor experts = at::rand({8, 6, 4});
  HfLayout stacked{.stacked = true};
  for (int e = 0; e < 8; ++e) stacked.keys.push_back("t." + std::to_string(e));
  ASSERT_TRUE(
      read_parameter(*write(stacked, experts), OneLayout({stacked}), "p", {8, 6, 4}, {{2, 0, 0}, {2, 6, 4}}).ok());
  EXPECT_EQ(bytes_read_, 2 * 6 * 4 * 4);
  // Rows of an expert (experts are cut along dim 1 if there are more ranks than experts).
  ASSERT_TRUE(
      read_parameter(*write(stacked, experts), OneLayout({stacked}), "p", {8, 6, 4}, {{2, 3, 0}, {1, 3, 4}}).ok());
  EXPECT_EQ(bytes_read_, 3 * 4 * 4);
  const HfLayout fused{.keys = {"t"}, .transposed = true, .part = 1, .parts = 2};
  ASSERT_TRUE(read_parameter(*write(fused, experts), OneLayout({fused}), "p", {8, 6, 4}, {{2, 0, 0}, {2, 6, 4}}).ok());
  EXPECT_EQ(bytes_read_, 2 * (2 * 6 * 4 * 4)) << "both halves lie in one row";
  const HfLayout heads{.keys = {"t"}, .permute_heads = 4};
  ASSERT_TRUE(
      read_parameter(*write(heads, at::rand({16, 4})), OneLayout({heads}), "p", {16, 4}, {{8, 0}, {4, 4}}).ok());
  EXPECT_EQ(bytes_read_, 4 * 4 * 4);
}

TEST_F(HfLayoutTest, AlternativeNamesOptionalAndUnknownTensors) {
  const at::Tensor value = at::rand({2, 3});
  const HfLayout first{.keys = {"first"}}, second{.keys = {"second"}, .transposed = true};
  const auto weights = write({{"second", value.t()}, {"stranger", value}});
  const Box box = whole({2, 3});
  EXPECT_TRUE(at::equal(*read_parameter(*weights, OneLayout({first, second}), "p", {2, 3}, box), value));
  EXPECT_THAT(std::string(read_parameter(*weights, OneLayout({first}), "p", {2, 3}, box).status().message()),
              HasSubstr("no tensor first"));
  EXPECT_FALSE(read_parameter(*weights, OneLayout({}), "p", {2, 3}, box)->defined()) << "not stored";
  HfLayout optional = first;
  optional.optional = true;
  EXPECT_FALSE(read_parameter(*weights, OneLayout({optional}), "p", {2, 3}, box)->defined());
  const absl::Status strange = check_keys(*weights, OneLayout({second}));
  EXPECT_EQ(strange.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(strange.message()), HasSubstr("1 of its tensors: stranger"));
}

}  // namespace
}  // namespace titan::checkpoint

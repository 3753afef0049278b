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
      if (layout.total_rows > 0) {
        std::vector<int64_t> whole = full.sizes().vec();
        whole[0] = layout.total_rows;
        at::Tensor other = at::zeros(whole, values[i].options());
        other.narrow(0, layout.first_row, values[i].size(0)).copy_(values[i]);
        tensors.emplace_back(layout.keys.at(i), other);
        EXPECT_EQ(other.sizes().vec(), hf_shape(layout, full.sizes().vec(), i));
        continue;
      }
      std::vector<at::Tensor> side(static_cast<size_t>(layout.parts), at::zeros_like(values[i]));
      side.at(static_cast<size_t>(layout.part)) = values[i];
      tensors.emplace_back(layout.keys.at(i), layout.parts > 1 ? at::cat(side, -1) : values[i]);
      EXPECT_EQ(tensors.back().second.sizes().vec(), hf_shape(layout, full.sizes().vec(), i));
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
    switch (round % 9) {
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
      case 5: {  // One parameter in several tensors.
        shape = {0, draw(1, 5)};
        layout.keys.clear();
        for (int64_t count = draw(1, 4); count > 0; --count) {
          layout.rows.push_back({.key = layout.keys.size(), .count = draw(1, 4)});
          layout.keys.push_back("t." + std::to_string(count));
          shape[0] += layout.rows.back().count;
        }
        break;
      }
      case 8: {  // Some rows of a tensor.
        shape = {draw(1, 5)};
        for (int64_t dims = draw(0, 2); dims > 0; --dims) shape.push_back(draw(1, 4));
        layout.first_row = draw(0, 4);
        layout.total_rows = layout.first_row + shape[0] + draw(0, 3);
        break;
      }
      case 7:  // A convolution's weight.
        layout.kernel = {draw(1, 3), draw(1, 3), draw(1, 3)};
        shape = {draw(1, 5), layout.kernel[0] * layout.kernel[1] * layout.kernel[2]};
        break;
      case 6: {  // Swapped parts of one tensor.
        const int64_t first = draw(1, 4), second = draw(1, 4);
        layout.rows = {{.begin = second, .count = first}, {.begin = 0, .count = second}};
        shape = {first + second};
        break;
      }
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
    EXPECT_TRUE(at::equal(*got, want)) << "layout " << round % 7;
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

// A fused projection in three tensors: a rank reads those with its rows, and a folder that lacks one of them, or has
// another model's, is refused by name.
TEST_F(HfLayoutTest, RowsOfSeveralTensors) {
  const at::Tensor full = at::rand({12, 3});
  const HfLayout layout{.keys = {"q", "k", "v"}, .rows = {{0, 0, 4}, {1, 0, 4}, {2, 0, 4}}};
  const auto read = [&](const HfFolder& weights, int64_t first, int64_t count) {
    bytes_read_ = 0;
    return read_parameter(weights, OneLayout({layout}), "p", {12, 3}, {{first, 0}, {count, 3}});
  };
  const auto weights = write(layout, full);
  EXPECT_TRUE(at::equal(*read(*weights, 2, 4), full.narrow(0, 2, 4)));
  EXPECT_EQ(bytes_read_, 4 * 3 * 4);
  EXPECT_EQ(read(*weights, 12, 0)->sizes(), (std::vector<int64_t>{0, 3})) << "a rank without rows";
  EXPECT_EQ(bytes_read_, 0);
  const std::vector<at::Tensor> parts = to_hf(layout, full);
  const auto wider = write({{"q", parts[0]}, {"k", parts[1].to(at::kDouble)}, {"v", parts[2]}});
  EXPECT_EQ(read(*wider, 0, 12)->scalar_type(), at::kDouble) << "no digits are lost";
  const auto lacking = write({{"q", parts[0]}, {"k", parts[1]}});
  EXPECT_TRUE(read(*lacking, 0, 8).ok());
  const absl::Status missing = read(*lacking, 6, 4).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("no tensor v"));
  const auto other = write({{"q", parts[0]}, {"k", full}, {"v", parts[2]}});
  EXPECT_THAT(std::string(read(*other, 0, 12).status().message()), HasSubstr("p needs [4, 3], tensor k is [12, 3]"));
}

// Files with diffusers' names, as one and as several with an index.
TEST_F(HfLayoutTest, ReadsDiffusersFiles) {
  const at::Tensor value = at::rand({2, 3});
  write({{"t", value}});
  storage::Files& files = storage::posix_files();
  const auto path = [&](const std::string& name) { return storage::join_path(folder_, name); };
  ASSERT_TRUE(files.rename(path("model.safetensors"), path("diffusion_pytorch_model-00001-of-00001.safetensors")).ok());
  const std::string index = R"({"weight_map": {"t": "diffusion_pytorch_model-00001-of-00001.safetensors"}})";
  ASSERT_TRUE(storage::atomic_write(files, path(kDiffusersIndexName), index).ok());
  const auto several = HfFolder::open(files, folder_);
  ASSERT_TRUE(several.ok()) << several.status();
  EXPECT_TRUE(at::equal(*(*several)->read("t"), value));
  ASSERT_TRUE(storage::atomic_write(files, path("diffusion_pytorch_model.safetensors"), "").ok());
  EXPECT_THAT(std::string(HfFolder::open(files, folder_).status().message()),
              HasSubstr("has diffusion_pytorch_model.safetensors, which other programs read, and"));
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

// Tests that steps with the same numbers are equal, and that differences are reported by name.

#include "worker/rank/tools/diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <sstream>

#include "nlohmann/json.hpp"
#include "tests/worker/rank/checkpoint/fake_job.h"

namespace titan::tools {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpointer;
using checkpoint::Slice;
using checkpoint::testing::Attempt;
using checkpoint::testing::make_slices;
using checkpoint::testing::Split;
using ::testing::HasSubstr;

class DiffTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) / ("diff." + std::to_string(::getpid()));
    fs::remove_all(root_);
    checkpoint::testing::output_rows = 650;
  }
  void TearDown() override { fs::remove_all(root_); }

  // Saves step 1 of a separate job, whose slices `change` may change; returns its folder.
  std::string step(const std::string& name, int world, const std::function<void(std::vector<Slice>&)>& change = {}) {
    Attempt job({.dump = (root_ / name).string(), .world = world});
    const absl::Status saved = job.run([&](int rank, Checkpointer& one) {
      std::vector<Slice> slices = make_slices(Split::kRows, rank, world, 1);
      if (change) change(slices);
      return one.save(1, slices, {});
    });
    EXPECT_TRUE(saved.ok() && job.wait().ok()) << saved;
    return (root_ / name / "checkpoint/step-1").string();
  }
  bool same(const std::string& a, const std::string& b, DiffOptions options = {}) {
    output_.str("");
    const absl::StatusOr<bool> same = diff(storage::posix_files(), a, b, options, output_);
    EXPECT_TRUE(same.ok()) << same.status();
    return same.value_or(false);
  }
  std::vector<nlohmann::json> rows() const {
    std::vector<nlohmann::json> rows;
    std::istringstream lines(output_.str());
    for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
    return rows;
  }

  fs::path root_;
  std::ostringstream output_;
};

Slice& slice_of(std::vector<Slice>& slices, const std::string& key) {
  for (Slice& slice : slices) {
    if (slice.key == key) return slice;
  }
  throw std::runtime_error("no " + key);
}

TEST_F(DiffTest, AnotherMeshIsNotADifference) {
  EXPECT_TRUE(same(step("one", 1), step("three", 3)));
  EXPECT_EQ(output_.str(), "the same: 11 tensors\n");
}

TEST_F(DiffTest, ChangedNumbersAreCountedAndMeasured) {
  const std::string changed = step("changed", 1, [](std::vector<Slice>& slices) {
    at::Tensor weight = slice_of(slices, "model.output.weight").local;
    weight.view(-1)[664999] += 0.5;  // This element is in the last part.
    weight.view(-1)[0].fill_(2 * weight.view(-1)[0]);
    slice_of(slices, "optim.exp_avg.layers.0.attention_norm.weight").local[3] = std::nan("");
  });
  EXPECT_FALSE(same(step("one", 2), changed, {.json = true}));
  ASSERT_EQ(rows().size(), 2u);
  const nlohmann::json weight = rows()[0], moment = rows()[1];
  EXPECT_EQ(weight["key"], "model.output.weight");
  EXPECT_EQ(weight["differing"], 2);
  EXPECT_EQ(weight["elements"], 650 * 1024);
  EXPECT_NEAR(weight["relative"].get<double>(), 0.5, 1e-6);
  EXPECT_EQ(moment["differing"], 1);
  EXPECT_EQ(moment["absolute"], "infinite");
  EXPECT_FALSE(same(step("text", 1), changed, {.model_only = true}));
  EXPECT_THAT(output_.str(),
              ::testing::MatchesRegex("1 of 5 tensors differs; largest difference [0-9.]+ "
                                      "\\(model.output.weight\\), relative 0.5 \\(model.output.weight\\)\n"
                                      "model.output.weight  F32 .650, 1024.  2 of 665600 numbers .*\n"));
  EXPECT_TRUE(same(changed, changed)) << "two NaNs are equal";
  EXPECT_FALSE(same(step("again", 1), changed, {.model_only = true, .json = true}));
  EXPECT_EQ(rows().size(), 1u);
}

TEST_F(DiffTest, ReportsTypesShapesAndMissingTensors) {
  const std::string other = step("other", 1, [](std::vector<Slice>& slices) {
    Slice& norm = slice_of(slices, "model.layers.0.attention_norm.weight");
    norm.local = norm.local.to(at::kBFloat16);
    slice_of(slices, "model.layers.1.attention.wq.weight") = {
        "model.layers.1.attention.wq.weight", {8, 3}, {0, 0}, at::ones({8, 3})};
    slice_of(slices, "model.tok_embeddings.weight").key = "model.new.weight";
  });
  EXPECT_FALSE(same(step("one", 1), other));
  EXPECT_THAT(output_.str(), ::testing::StartsWith("4 of 12 tensors differ; largest difference "));
  EXPECT_THAT(output_.str(), HasSubstr("; 1 with different shapes; 2 in only one of the two\n"));
  EXPECT_THAT(output_.str(), ::testing::AllOf(HasSubstr("attention_norm.weight  F32 [16] and BF16 [16]"),
                                              HasSubstr("wq.weight  F32 [3, 8] and F32 [8, 3]"),
                                              HasSubstr("model.tok_embeddings.weight  only in A: F32 [37, 16]"),
                                              HasSubstr("model.new.weight  only in B")));
}

}  // namespace
}  // namespace titan::tools

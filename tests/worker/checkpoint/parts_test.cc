// The pieces below Checkpointer: boxes, the safetensors format, the manifest, and the decisions.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/storage/crc32c.h"
#include "common/storage/file.h"
#include "worker/checkpoint/box.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/policy.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/step_folders.h"

namespace titan::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Every cut of a 3-dim tensor into two boxes, read into every other cut: the runs move exactly the shared elements.
TEST(BoxTest, RunsMoveTheIntersection) {
  const std::vector<int64_t> shape = {4, 3, 5};
  const at::Tensor full = at::arange(60, at::kLong).reshape(shape);
  const auto view = [&](const Box& box) {
    at::Tensor part = full;
    for (int64_t d = 0; d < 3; ++d)
      part = part.narrow(d, box.offset[static_cast<size_t>(d)], box.shape[static_cast<size_t>(d)]);
    return part.contiguous();
  };
  std::vector<Box> boxes;
  for (size_t d = 0; d < 3; ++d) {
    for (int64_t cut = 0; cut <= shape[d]; ++cut) {
      Box low = whole(shape), high = whole(shape);
      low.shape[d] = cut;
      high.offset[d] = cut;
      high.shape[d] = shape[d] - cut;
      boxes.push_back(low);
      boxes.push_back(high);
    }
  }
  boxes.push_back({{1, 1, 2}, {2, 1, 2}});
  for (const Box& from : boxes) {
    for (const Box& to : boxes) {
      const std::optional<Box> part = intersect(from, to);
      const at::Tensor source = view(from), wanted = view(to);
      at::Tensor target = at::full_like(wanted, -1);
      int64_t last = -1, moved = 0;
      if (part) {
        ASSERT_TRUE(for_each_run(*part, from, to, [&](int64_t a, int64_t b, int64_t count) {
                      EXPECT_GT(a, last) << "ascending in the file, so that each chunk is read once";
                      last = a;
                      moved += count;
                      for (int64_t i = 0; i < count; ++i)
                        target.data_ptr<int64_t>()[b + i] = source.data_ptr<int64_t>()[a + i];
                      return absl::OkStatus();
                    }).ok());
        EXPECT_EQ(moved, part->elements());
      }
      const at::Tensor same = target == wanted;
      EXPECT_EQ(same.sum().item<int64_t>(), part ? part->elements() : 0);
    }
  }
}

TEST(BoxTest, CoverFindsGapsOverlapsAndStrays) {
  const std::vector<int64_t> shape = {4, 2};
  EXPECT_TRUE(check_cover(shape, {{{0, 0}, {3, 2}}, {{3, 0}, {1, 2}}}).ok());
  EXPECT_TRUE(check_cover(shape, {{{0, 0}, {4, 1}}, {{0, 1}, {4, 1}}}).ok());
  EXPECT_TRUE(check_cover({}, {{{}, {}}}).ok());
  EXPECT_FALSE(check_cover({}, {}).ok());
  EXPECT_FALSE(check_cover(shape, {{{0, 0}, {3, 2}}}).ok());
  EXPECT_FALSE(check_cover(shape, {{{0, 0}, {3, 2}}, {{2, 0}, {1, 2}}}).ok()) << "right count, doubled row";
  EXPECT_FALSE(check_cover(shape, {{{0, 0}, {5, 2}}}).ok());
  EXPECT_FALSE(check_cover(shape, {{{0}, {8}}}).ok());
}

TEST(SafetensorsTest, TensorsStandAlignedAndHeadersReadBack) {
  std::vector<TensorEntry> entries = {{.key = "b", .dtype = at::kByte, .shape = {3}},
                                      {.key = "d", .dtype = at::kDouble, .shape = {2}},
                                      {.key = "h", .dtype = at::kBFloat16, .shape = {5, 1}},
                                      {.key = "s", .dtype = at::kFloat, .shape = {}}};
  const auto plan = layout(entries, {{"format", "pt"}});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->header.size() % 64, 0u);
  for (const TensorEntry& entry : entries)
    EXPECT_EQ(entry.begin % static_cast<int64_t>(c10::elementSize(entry.dtype)), 0) << entry.key;
  EXPECT_EQ(plan->file_bytes, static_cast<int64_t>(plan->header.size()) + 16 + 4 + 10 + 3);

  const std::string path = ::testing::TempDir() + "/headers.safetensors";
  storage::posix_files().remove(path).IgnoreError();
  ASSERT_TRUE(storage::atomic_write(storage::posix_files(), path, plan->header + std::string(33, '\0')).ok());
  auto file = storage::posix_files().open(path);
  const auto read = read_header(**file, path);
  ASSERT_TRUE(read.ok()) << read.status();
  for (const TensorEntry& entry : entries) {
    EXPECT_EQ(read->at(entry.key).begin, entry.begin);
    EXPECT_EQ(read->at(entry.key).shape, entry.shape);
    EXPECT_EQ(read->at(entry.key).dtype, entry.dtype);
  }
}

// What foreign files can do to a reader: each is an error that names the file, never a crash or a wild read.
TEST(SafetensorsTest, BadFilesAreNamed) {
  const auto with_header = [](const std::string& json, size_t data) {
    std::string text(8, '\0');
    text[0] = static_cast<char>(json.size());
    return text + json + std::string(data, 'x');
  };
  const std::vector<std::string> bad = {
      "",
      "1234567",
      std::string(8, '\xff'),
      with_header("{", 0),
      with_header("[]", 0),
      with_header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7),
      with_header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 8),
      with_header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}})", 8),
      with_header(R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", 8),
      with_header(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8),
      with_header(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 8),
      with_header(R"({"a":{"dtype":"F32","shape":"2","data_offsets":[0,8]}})", 8),
      with_header(R"({"a":[]})", 8),
  };
  const std::string path = ::testing::TempDir() + "/bad.safetensors";
  for (const std::string& text : bad) {
    ASSERT_TRUE(storage::atomic_write(storage::posix_files(), path, text).ok());
    auto file = storage::posix_files().open(path);
    const auto read = read_header(**file, path);
    EXPECT_FALSE(read.ok()) << text;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(path));
  }
}

Manifest sample() {
  Manifest manifest{.step = 5, .full = true, .attempt = 2, .job_uid = "uid", .world = 2};
  manifest.titan_version = "1.2";
  manifest.model = {{"name", "llama3"}, {"rope_theta", 0.1}};
  manifest.config = {{"training", {{"steps", 7}}}};
  manifest.train_state = {{"step", 5}, {"loss", 0.1}};
  manifest.per_rank = {nullptr, {{"row", 3}}};
  manifest.files = {{"a2-00000.safetensors", 200, 128, 7}, {"a2-00001.safetensors", 160, 128, 9}};
  manifest.tensors = {
      {"model.x", at::kFloat, {6, 2}, {{0, 128, {{0, 0}, {4, 2}}, {1}}, {1, 128, {{4, 0}, {2, 2}}, {0xffffffff}}}}};
  return manifest;
}

TEST(ManifestTest, ReadsBackAndKnowsItsTensors) {
  const auto read = manifest_from_text(to_text(sample()));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(to_text(*read), to_text(sample()));
  ASSERT_NE(read->find("model.x"), nullptr);
  EXPECT_EQ(read->find("model.x")->pieces[1].chunk_crcs[0], 0xffffffffu);
  EXPECT_EQ(read->find("model.w"), nullptr);
}

// Steps that were written before they named their model and version are as good as ever.
TEST(ManifestTest, AnOlderOneLacksItsModel) {
  nlohmann::json body = nlohmann::json::parse(to_text(sample()));
  for (const char* member : {"crc32c", "titan_version", "model", "config"}) body.erase(member);
  const std::string rest = body.dump().substr(1);
  char crc[9];
  std::snprintf(crc, sizeof crc, "%08x", storage::crc32c(rest.data(), rest.size()));
  const auto read = manifest_from_text(absl::StrCat("{\"crc32c\":\"", crc, "\",", rest));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->model.is_null());
  EXPECT_TRUE(read->config.is_null());
  EXPECT_EQ(read->titan_version, "");
  EXPECT_EQ(read->step, 5);
}

// Any single bit, any cut, any appended byte.
TEST(ManifestTest, EveryDamageIsNoticed) {
  const std::string text = to_text(sample());
  for (size_t at = 0; at < text.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      EXPECT_EQ(manifest_from_text(damaged).status().code(), absl::StatusCode::kDataLoss) << at << "." << bit;
    }
    EXPECT_FALSE(manifest_from_text(text.substr(0, at)).ok());
  }
  EXPECT_FALSE(manifest_from_text(text + " ").ok());
}

// A writer's bug must not become a checkpoint that cannot be read.
TEST(ManifestTest, MergeRefusesHolesAndDisagreement) {
  ShardReport a, b;
  a.has_file = b.has_file = true;
  a.file = sample().files[0];
  b.file = sample().files[1];
  a.tensors = {{"model.x", at::kFloat, {6, 2}, {{0, 128, {{0, 0}, {4, 2}}, {1}}}}};
  b.tensors = {{"model.x", at::kFloat, {6, 2}, {{0, 128, {{4, 0}, {2, 2}}, {2}}}}};
  Manifest whole_one;
  ASSERT_TRUE(merge({a, b}, whole_one).ok());
  EXPECT_EQ(whole_one.tensors[0].pieces[1].file, 1);
  Manifest hole;
  EXPECT_THAT(std::string(merge({a, ShardReport{}}, hole).message()), HasSubstr("model.x"));
  b.tensors[0].dtype = at::kBFloat16;
  Manifest types;
  EXPECT_EQ(merge({a, b}, types).code(), absl::StatusCode::kInternal);
}

TEST(PolicyTest, SavesWhenTorchtitanDoes) {
  config::Checkpoint config;
  config.enable = true;
  config.interval = 5;
  const auto decide = [&](int64_t step, bool requested = false) { return decide_save(config, {step, 12, requested}); };
  EXPECT_EQ(decide(1), SaveDecision::kNo);
  EXPECT_EQ(decide(5), SaveDecision::kRegular);
  EXPECT_EQ(decide(6), SaveDecision::kNo);
  EXPECT_EQ(decide(6, true), SaveDecision::kRegular);
  EXPECT_EQ(decide(12), SaveDecision::kLast);
  EXPECT_EQ(decide(12, true), SaveDecision::kLast);
  config.enable_first_step_checkpoint = true;
  EXPECT_EQ(decide(1), SaveDecision::kRegular);
  config.load_only = true;
  EXPECT_EQ(decide(12), SaveDecision::kNo);
  config.load_only = false;
  config.enable = false;
  EXPECT_EQ(decide(5, true), SaveDecision::kNo);
}

TEST(PolicyTest, PurgeKeepsTheNewestAndTheNewestFullOne) {
  EXPECT_THAT(steps_to_purge({{5}, {10}, {15}}, 0), ElementsAre());
  EXPECT_THAT(steps_to_purge({{15}, {5}, {10}}, 2), ElementsAre(5));
  EXPECT_THAT(steps_to_purge({{5}, {10, false}, {15, false}, {20, false}}, 2), ElementsAre(10))
      << "5 is the only resume point";
  // Resumed from 10 after 90 and 95 turned out damaged: what this run saves is newer than they are.
  EXPECT_THAT(steps_to_purge({{90}, {95}, {10, true, StoredStep::kLoaded}, {15, true, StoredStep::kCommitted}}, 2),
              ElementsAre(90, 95));
}

TEST(StepFoldersTest, OnlyItsOwnSpellingIsAStep) {
  const std::string folder = ::testing::TempDir() + "/steps";
  auto& files = storage::posix_files();
  ASSERT_TRUE(files.remove_folder(folder).ok());
  EXPECT_THAT(*list_steps(files, folder), ElementsAre());
  for (const char* name :
       {"step-10", "step-9", "step-007", "step-", "step-x", "step--1", ".purged-a1-step-3", "other"}) {
    ASSERT_TRUE(files.make_folders(storage::join_path(folder, name)).ok());
  }
  std::vector<int64_t> steps;
  const auto folders = list_steps(files, folder);
  for (const StepFolder& step : *folders) steps.push_back(step.step);
  EXPECT_THAT(steps, ElementsAre(9, 10));
}

}  // namespace
}  // namespace titan::checkpoint

// Tests the parts below Checkpointer: boxes, the safetensors format, the manifest, and the decisions.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/io/storage/crc32c.h"
#include "common/io/storage/file.h"
#include "worker/rank/checkpoint/shards/manifest.h"
#include "worker/rank/checkpoint/shards/progression.h"
#include "worker/rank/checkpoint/shards/safetensors.h"
#include "worker/rank/checkpoint/shards/shard_index.h"
#include "worker/rank/checkpoint/shards/tensor_box.h"
#include "worker/rank/checkpoint/shards/written_step.h"
#include "worker/rank/checkpoint/steps/policy.h"
#include "worker/rank/checkpoint/steps/step_folders.h"

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

TEST(SafetensorsTest, TensorsAreAlignedAndHeadersReadBack) {
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

// Each fault of a foreign file is an error that names the file, never a crash or a read out of bounds.
TEST(SafetensorsTest, ErrorsNameTheBadFile) {
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
  manifest.files = {{.name = "a2-00000.safetensors", .bytes = 200, .index_bytes = 44, .index_crc = 7},
                    {.name = "a2-00001.safetensors", .bytes = 180, .index_bytes = 44, .index_crc = 0xffffffff}};
  manifest.tensors = {{"model.x", at::kFloat, {6, 2}, {}}, {"model.y", at::kFloat, {6, 2}, {}}};
  manifest.rows = {{{{.base = {0}}}, {3, 2}, {{.base = {0, 0, 0}, .steps = {{2, {1, 3, 0}}}}}},
                   {{{.base = {1}}}, {4, 2}, {{.base = {0, 0, 0}}}},
                   {{{.base = {1}}}, {2, 2}, {{.base = {1, 4, 0}}}}};
  return manifest;
}

// The format of steps before shards had an index.
Manifest first_version() {
  Manifest manifest = sample();
  manifest.version = 1;
  manifest.files = {{.name = "a2-00000.safetensors", .bytes = 200, .header_bytes = 128, .header_crc = 7},
                    {.name = "a2-00001.safetensors", .bytes = 160, .header_bytes = 128, .header_crc = 9}};
  manifest.tensors = {
      {"model.x", at::kFloat, {6, 2}, {{0, 128, {{0, 0}, {4, 2}}, {1}}, {1, 128, {{4, 0}, {2, 2}}, {0xffffffff}}}}};
  manifest.rows.clear();
  return manifest;
}

TEST(ManifestTest, ReadsBackAndFindsTensors) {
  const auto read = manifest_from_text(to_text(sample()));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(to_text(*read), to_text(sample()));
  ASSERT_NE(read->find("model.x"), nullptr);
  EXPECT_EQ(read->files[1].index_crc, 0xffffffffu);
  EXPECT_EQ(read->find("model.w"), nullptr);
  EXPECT_THAT(read->piece_counts(), ElementsAre(2, 2));
}

TEST(ManifestTest, ReadsTheFirstVersion) {
  const auto read = manifest_from_text(to_text(first_version()));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(to_text(*read), to_text(first_version()));
  EXPECT_EQ(read->find("model.x")->pieces[1].chunk_crcs[0], 0xffffffffu);
  EXPECT_THAT(read->piece_counts(), ElementsAre(2));
}

std::string with_checksum(nlohmann::json body) {
  body.erase("crc32c");
  const std::string rest = body.dump().substr(1);
  char crc[9];
  std::snprintf(crc, sizeof crc, "%08x", storage::crc32c(rest.data(), rest.size()));
  return absl::StrCat("{\"crc32c\":\"", crc, "\",", rest);
}

// Steps from before manifests named their model and version stay valid.
TEST(ManifestTest, ReadsOlderManifestsWithoutModel) {
  nlohmann::json body = nlohmann::json::parse(to_text(first_version()));
  for (const char* member : {"titan_version", "model", "config"}) body.erase(member);
  const auto read = manifest_from_text(with_checksum(body));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->model.is_null());
  EXPECT_TRUE(read->config.is_null());
  EXPECT_EQ(read->titan_version, "");
  EXPECT_EQ(read->step, 5);
}

// Flips every bit, cuts the text at every byte, and appends one.
TEST(ManifestTest, EveryDamageIsDetected) {
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

// The checksum matches, but the content is wrong, as after a bug of the writer or a manual edit.
TEST(ManifestTest, RefusesInconsistentRows) {
  const nlohmann::json good = nlohmann::json::parse(to_text(sample()));
  ASSERT_TRUE(manifest_from_text(with_checksum(good)).ok());
  const auto refused = [&](const char* place, nlohmann::json value) {
    nlohmann::json body = good;
    body[nlohmann::json::json_pointer(place)] = std::move(value);
    const absl::Status status = manifest_from_text(with_checksum(body)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << place;
    return std::string(status.message());
  };
  EXPECT_THAT(refused("/rows/0/2/0/1/0", 3), HasSubstr("leaves its range"));          // A third file.
  EXPECT_THAT(refused("/rows/0/2/0/1/0", int64_t{1} << 62), HasSubstr("its range"));  // More than can be counted.
  EXPECT_THAT(refused("/rows/0/2/0/1/1", {0, 3, 0}), HasSubstr("repeats a first component"));  // Twice in one file.
  EXPECT_THAT(refused("/rows/0/2/0/1/1", {1, 2, 0}), HasSubstr("overlap"));                    // A row twice.
  EXPECT_THAT(refused("/rows/0/2/0/1/1", {1, 4, 0}), HasSubstr("leaves its range"));           // Beyond the tensor.
  EXPECT_THAT(refused("/rows/0/1", {2, 2}), HasSubstr("model.x: pieces hold 8 of 12"));
  EXPECT_THAT(refused("/rows/1/0/0/0", {2}), HasSubstr("begins outside of its range"));  // Tensor does not exist.
  EXPECT_THAT(refused("/rows/1/0/0/0", {0}), HasSubstr("model.x"));
  EXPECT_THAT(refused("/tensors/0/shape", {6, 3}), HasSubstr("model.x"));
  EXPECT_THAT(refused("/tensors/0/shape", {int64_t{1} << 40, int64_t{1} << 40}), HasSubstr("is not a valid shape"));
  EXPECT_THAT(refused("/files/0/index_bytes", 300), HasSubstr("invalid sizes"));
  EXPECT_THAT(refused("/version", 3), HasSubstr("use a newer Titan"));
}

// fold() describes the points of any grid with few numbers, and unfold() returns the same points.
TEST(ProgressionTest, FoldsWithoutLoss) {
  std::vector<Point> points;
  for (int64_t stage = 0; stage < 3; ++stage) {
    for (int64_t row = 0; row < 40; ++row) {
      for (int64_t column = 0; column < 8; ++column) {
        points.push_back({stage * 400 + row * 8 + column, row * 5, column * 16});
      }
    }
  }
  EXPECT_EQ(fold(points).size(), 1u);
  EXPECT_EQ(unfold(fold(points)), points);
  // Neighbouring ranks under one parent fold a part of the grid; joined with the rest it folds to one progression
  // again.
  const std::vector<Point> some(points.begin(), points.begin() + 333), rest(points.begin() + 333, points.end());
  EXPECT_LE(fold(some).size(), 4u);
  std::vector<Point> joined = unfold(fold(some));
  for (const Point& point : unfold(fold(rest))) joined.push_back(point);
  EXPECT_EQ(fold(joined).size(), 1u);
  // Several pieces in each file, falling offsets, no order at all.
  std::vector<Point> odd;
  for (int64_t i = 0; i < 200; ++i) odd.push_back({i / 2, i % 2 == 0 ? 400 - i : i, i * i % 7});
  const auto folded = fold(odd);
  std::sort(odd.begin(), odd.end());
  EXPECT_EQ(unfold(folded), odd);
  for (const Progression& one : folded) {
    EXPECT_TRUE(check_progression(one, {100, 401, 7}).ok());
    EXPECT_EQ(to_json(progression_from_json(to_json(one))), to_json(one));
  }
}

// Each window finds exactly the points in it.
TEST(ProgressionTest, WindowsFindTheirPoints) {
  const Progression grid{.base = {2, 0, 9}, .steps = {{4, {1, 5, -3}}, {3, {7, 0, 1}}}};
  ASSERT_TRUE(check_progression(grid, {100, 100, 100}).ok());
  const std::vector<Point> all = unfold({grid});
  ASSERT_EQ(all.size(), 12u);
  for (int64_t first = -1; first < 21; ++first) {
    for (int64_t last = first; last < 21; ++last) {
      for (size_t component = 0; component < 3; ++component) {
        std::vector<Bounds> within(3);
        within[component] = {first, last};
        std::vector<Point> found, wanted;
        for_each_point(grid, within, [&](const Point& point) { found.push_back(point); });
        for (const Point& point : all) {
          if (point[component] >= first && point[component] <= last) wanted.push_back(point);
        }
        std::sort(found.begin(), found.end());
        EXPECT_EQ(found, wanted);
      }
    }
  }
}

TEST(ShardIndexTest, EveryDamageIsDetected) {
  const ShardIndex index{.header_bytes = 128,
                         .data_bytes = 3 * kChunkBytes + 5,
                         .header_crc = 1,
                         .pieces_crc = 2,
                         .chunk_crcs = {3, 4, 5, 6}};
  const std::string bytes = to_bytes(index);
  EXPECT_EQ(static_cast<int64_t>(bytes.size()), index_bytes(index.data_bytes));
  const auto read = index_from_bytes(bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(to_bytes(*read), bytes);
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      EXPECT_EQ(index_from_bytes(damaged).status().code(), absl::StatusCode::kDataLoss) << at << "." << bit;
    }
    EXPECT_FALSE(index_from_bytes(bytes.substr(0, at)).ok());
  }
  // A correct checksum does not make wrong sizes valid.
  for (const int64_t data : {int64_t{-1}, int64_t{0}, std::numeric_limits<int64_t>::max()}) {
    ShardIndex wrong = index;
    wrong.data_bytes = data;
    EXPECT_EQ(index_from_bytes(to_bytes(wrong)).status().code(), absl::StatusCode::kDataLoss) << data;
  }
}

WrittenShard written(const char* name, c10::ScalarType dtype, int64_t begin, int64_t rows) {
  return {.has_file = true,
          .file = {.name = name, .bytes = 400, .index_bytes = 44},
          .pieces = {{"model.x", dtype, {6, 2}, {{begin, 0}, {rows, 2}}}}};
}

// A writer's bug must not become a checkpoint that cannot be read.
TEST(StepReportTest, RefusesGapsOverlapsAndTypeMismatches) {
  const WrittenShard a = written("a", at::kFloat, 0, 4), b = written("b", at::kFloat, 4, 2);
  Manifest complete_step;
  ASSERT_TRUE(complete({a, b}, complete_step).ok());
  std::vector<int64_t> files;
  PlacementIndex(complete_step.rows, 1).for_each_piece(0, {{5, 0}, {1, 2}}, [&](int64_t file, const Box& piece) {
    files.push_back(file);
    EXPECT_THAT(piece.offset, ElementsAre(4, 0));
  });
  EXPECT_THAT(files, ElementsAre(1));
  Manifest hole;
  EXPECT_THAT(std::string(complete({a, WrittenShard{}}, hole).message()), HasSubstr("model.x"));
  Manifest twice;
  EXPECT_THAT(std::string(complete({a, b, b}, twice).message()), HasSubstr("overlap"));
  Manifest types;
  EXPECT_EQ(complete({a, written("b", at::kBFloat16, 4, 2)}, types).code(), absl::StatusCode::kInternal);
}

TEST(PolicyTest, SavesWhenTorchtitanDoes) {
  config::CheckpointSection config;
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
  // The run resumed from 10, because 90 and 95 were damaged: its saves count as newer than those.
  EXPECT_THAT(steps_to_purge({{90}, {95}, {10, true, StoredStep::kLoaded}, {15, true, StoredStep::kCommitted}}, 2),
              ElementsAre(90, 95));
}

TEST(StepFoldersTest, AcceptsOnlyCanonicalStepNames) {
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

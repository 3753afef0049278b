// Tests which model's weights are loaded and exported from folders that were linked, copied, swapped or removed: each
// is either right or refused by name, and a refusal writes nothing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "common/io/storage/fence.h"
#include "common/plan/models/registry.h"
#include "tests/worker/rank/checkpoint/first_version.h"
#include "worker/rank/checkpoint/checkpointer.h"
#include "worker/rank/checkpoint/shards/step_reader.h"
#include "worker/rank/model/hf_names.h"
#include "worker/rank/model/model.h"
#include "worker/rank/model/registry.h"
#include "worker/rank/tools/offline.h"

namespace titan::tools {
namespace {

namespace fs = std::filesystem;
using checkpoint::Slice;
using storage::posix_files;
using ::testing::HasSubstr;

// One shape, two models: "near" and "far" differ in rope_theta only.
models::ModelSpec small(const std::string& flavor) {
  models::ModelSpec spec = *models::find("llama3", "debugmodel");
  spec.name = "small";
  spec.flavor = flavor;
  spec.dim = 32;
  spec.n_layers = 2;
  spec.n_heads = spec.n_kv_heads = 4;
  spec.head_dim = spec.v_head_dim = 8;
  spec.vocab_size = 64;
  spec.ffn_hidden = 48;
  if (flavor == "far") spec.rope_theta = 1e6;
  return spec;
}

class IdentityTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model::Family family = *model::find_family("llama3");
    family.name = "small";
    family.flavors = {small("near"), small("far")};
    ASSERT_TRUE(model::add_family(std::move(family)).ok());
  }
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) / ("identity." + std::to_string(::getpid()) + "." +
                                              ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    fs::create_directories(root_);
    job("near", "a", {3, 5});
    job("far", "b", {5});
  }
  void TearDown() override { fs::remove_all(root_); }

  static std::vector<Slice> slices(const std::string& flavor, double value) {
    std::vector<Slice> all;
    const model::Model built = *model::build(small(flavor), {});
    for (const auto& block : built.blocks) {
      for (const nn::Parameter& parameter : block->parameters()) {
        all.push_back({"model." + parameter.fqn, parameter.shape, std::vector<int64_t>(parameter.shape.size(), 0),
                       at::full(parameter.shape, value)});
      }
    }
    return all;
  }
  absl::StatusOr<std::unique_ptr<checkpoint::Checkpointer>> open(const std::string& flavor, const fs::path& dump,
                                                                 const std::string& uid, int attempt,
                                                                 const std::string& hf_folder = "") {
    EXPECT_TRUE(storage::Fence(dump.string()).raise(uid, attempt).ok());
    mapper_ = *model::make_hf_mapper(small(flavor));
    checkpoint::Setup setup{.dump_folder = dump.string()};
    setup.config.enable = true;
    setup.config.keep_latest_k = 0;
    setup.config.initial_load_in_hf = !hf_folder.empty();
    setup.hf_assets_path = hf_folder;
    setup.model = small(flavor);
    setup.job_uid = uid;
    setup.attempt = attempt;
    setup.hf = mapper_.get();
    return checkpoint::Checkpointer::create(std::move(setup));
  }
  // Runs a job of the flavor that leaves these steps; every weight of step N is N.
  void job(const std::string& flavor, const std::string& dump, const std::vector<int64_t>& steps) {
    auto writer = *open(flavor, root_ / dump, "job-" + dump, 1);
    for (const int64_t step : steps) {
      ASSERT_TRUE(writer->save(step, slices(flavor, static_cast<double>(step)), {.shared = {{"step", step}}}).ok());
    }
  }
  // Returns the source from which a restarted job of model "near" loads, or its error.
  std::string load(const fs::path& dump, const std::string& hf_folder = "") {
    std::vector<Slice> live = slices("near", -1);
    auto reader = *open("near", dump, "job-a", ++attempt_, hf_folder);
    const auto loaded = reader->load(live);
    const double value = live.front().local.flatten()[0].item<double>();
    if (!loaded.ok()) return value == -1 ? std::string(loaded.status().message()) : "weights were written";
    return std::string(name(loaded->source)) + " of step " + std::to_string(static_cast<int64_t>(value));
  }
  // Exports the step with `flavor` ("": not stated). Returns the output or the error.
  std::string exported(const fs::path& step, const std::string& flavor) {
    const fs::path target = root_ / ("export-" + std::to_string(++exports_));
    std::ostringstream out;
    const absl::Status status = export_step(posix_files(), step.string(), target.string(),
                                            {flavor.empty() ? "" : "small", flavor, ""}, {}, out);
    EXPECT_EQ(fs::exists(target / "config.json"), status.ok());
    EXPECT_EQ(fs::exists(target), status.ok()) << "complete or not at all";
    for (const auto& entry : fs::directory_iterator(root_)) {
      EXPECT_EQ(entry.path().string().find(".partial"), std::string::npos) << entry.path();
    }
    return status.ok() ? out.str() : std::string(status.message());
  }

  fs::path root_;
  int attempt_ = 10;
  int exports_ = 0;
  std::unique_ptr<checkpoint::HfMapper> mapper_;
};

TEST_F(IdentityTest, EveryFolderLoadsCorrectlyOrIsRefused) {
  struct Row {
    const char* what;
    std::function<fs::path()> make;  // The dump folder to load from.
    const char* load;
    const char* exported;  // Expected result of exporting step 5 as "near".
  };
  const auto copy = [&](const char* from, const char* to) {
    fs::copy(root_ / from, root_ / to, fs::copy_options::recursive);
    return root_ / to;
  };
  const std::vector<Row> rows = {
      {"same path", [&] { return root_ / "a"; }, "checkpoint of step 5", "step 5 of small near"},
      {"symlink",
       [&] {
         fs::create_directory_symlink(root_ / "a", root_ / "link");
         return root_ / "link";
       },
       "checkpoint of step 5", "step 5 of small near"},
      {"restored copy", [&] { return copy("a", "copy"); }, "checkpoint of step 5", "step 5 of small near"},
      {"another job's folder", [&] { return root_ / "b"; },
       "MODEL_MISMATCH: ", "step-5 holds small far (rope_theta 1000000.0), this is small near (rope_theta 500000.0)"},
      {"step replaced",
       [&] {
         fs::path dump = copy("a", "replaced");
         fs::remove_all(dump / "checkpoint/step-5");
         fs::copy(root_ / "b/checkpoint/step-5", dump / "checkpoint/step-5", fs::copy_options::recursive);
         return dump;
       },
       "MODEL_MISMATCH: ", "step-5 holds small far"},
      {"step under another number",
       [&] {
         fs::path dump = copy("a", "renamed");
         fs::remove_all(dump / "checkpoint/step-5");
         fs::rename(dump / "checkpoint/step-3", dump / "checkpoint/step-5");
         fs::copy(root_ / "a/checkpoint/step-3", dump / "checkpoint/step-3", fs::copy_options::recursive);
         return dump;
       },
       "checkpoint of step 3", "step 3 of small near"},
      {"shard of another step",
       [&] {
         fs::path dump = copy("a", "mixed");
         fs::copy(root_ / "a/checkpoint/step-3/a1-00000.safetensors", dump / "checkpoint/step-5/a1-00000.safetensors",
                  fs::copy_options::overwrite_existing);
         return dump;
       },
       "checkpoint of step 3", "checksum mismatch"},
      {"step removed",
       [&] {
         fs::path dump = copy("a", "removed");
         fs::remove_all(dump / "checkpoint/step-5");
         return dump;
       },
       "checkpoint of step 3", "manifest.json"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.what);
    const fs::path dump = row.make();
    const std::string taken = exported(dump / "checkpoint/step-5", "near"), found = load(dump);
    std::cout << row.what << "\n  load:   " << found << "\n  export: " << taken << "\n";
    EXPECT_THAT(found, HasSubstr(row.load));
    EXPECT_THAT(taken, HasSubstr(row.exported));
  }
}

TEST_F(IdentityTest, ExportNeedsNoModelFlags) {
  EXPECT_THAT(exported(root_ / "b/checkpoint/step-5", ""), HasSubstr("step 5 of small far"));
  const auto config =
      nlohmann::json::parse(*storage::read_file(posix_files(), (root_ / "export-1/config.json").string()));
  EXPECT_EQ(config["rope_theta"], 1e6);
  EXPECT_THAT(exported(root_ / "b/checkpoint/step-5", "farther"), HasSubstr("farther"));
}

// A state from which training resumes keeps its types, so the export refuses another type instead of ignoring it.
TEST_F(IdentityTest, ResumableExportRefusesADtype) {
  const auto exported_as = [&](const char* target, const ExportOptions& options) {
    std::ostringstream out;
    return export_step(posix_files(), (root_ / "a/checkpoint/step-5").string(), (root_ / target).string(), {}, options,
                       out);
  };
  const absl::Status refused = exported_as("whole", {.dtype = "bfloat16", .format = "dcp"});
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("omit --dtype, or add --model-only"));
  EXPECT_FALSE(fs::exists(root_ / "whole"));
  EXPECT_EQ(exported_as("model", {.dtype = "bfloat16", .format = "dcp", .model_only = true}), absl::OkStatus());
}

// For a step written before steps named their model, the command line must name it, and every tensor must fit.
TEST_F(IdentityTest, StepWithoutModelSpecIsCheckedByTensor) {
  const std::string path = (root_ / "b/checkpoint/step-5").string();
  {
    auto manifest = (*checkpoint::StepReader::open(posix_files(), path))->manifest();
    manifest.model = nullptr;
    ASSERT_TRUE(storage::atomic_write(posix_files(), path + "/manifest.json", checkpoint::to_text(manifest)).ok());
  }
  EXPECT_THAT(exported(path, ""), HasSubstr("give --model and --flavor"));
  EXPECT_THAT(exported(path, "far"), HasSubstr("step 5 of small far"));
  std::ostringstream out;
  const fs::path target = root_ / "wrong";
  const absl::Status wrong = export_step(posix_files(), path, target.string(), {"llama3", "debugmodel", ""}, {}, out);
  EXPECT_EQ(wrong.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(wrong.message()),
      HasSubstr("does not fit llama3 debugmodel: model.tok_embeddings.weight is [64, 32] in the checkpoint, but "
                "[2048, 256]"));
  EXPECT_FALSE(fs::exists(target));
}

// For a step from before shards had an index, the tools give the same output.
TEST_F(IdentityTest, ToolsReadTheFirstVersion) {
  const std::string now = (root_ / "a/checkpoint/step-5").string();
  fs::copy(now, root_ / "first", fs::copy_options::recursive);
  const std::string first = (root_ / "first").string();
  checkpoint::testing::make_first_version(first);
  const auto inspected = [](const std::string& path) {
    std::ostringstream out;
    EXPECT_EQ(inspect(posix_files(), path, /*tensors=*/true, /*json=*/true, out), absl::OkStatus());
    nlohmann::json about = nlohmann::json::parse(out.str());
    about.erase("path");
    return about;
  };
  EXPECT_EQ(inspected(first), inspected(now));
  EXPECT_EQ(inspected(first)["shapes"]["model.norm.weight"]["pieces"], 1);
  std::ostringstream out;
  EXPECT_EQ(verify(posix_files(), first, out), absl::OkStatus()) << out.str();
  ASSERT_THAT(exported(first, ""), HasSubstr("step 5 of small near"));
  ASSERT_THAT(exported(now, ""), HasSubstr("step 5 of small near"));
  const char* const weights = "model-00001-of-00001.safetensors";
  EXPECT_EQ(*storage::read_file(posix_files(), (root_ / "export-1" / weights).string()),
            *storage::read_file(posix_files(), (root_ / "export-2" / weights).string()));
}

// Hugging Face folders name their model in config.json.
TEST_F(IdentityTest, RefusesConfigOfAnotherModel) {
  ASSERT_THAT(exported(root_ / "a/checkpoint/step-5", ""), HasSubstr("near"));
  ASSERT_THAT(exported(root_ / "b/checkpoint/step-5", ""), HasSubstr("far"));
  const fs::path near = root_ / "export-1", far = root_ / "export-2";
  EXPECT_EQ(load(root_ / "new-1", near.string()), "initial of step 5");
  EXPECT_THAT(
      load(root_ / "new-2", far.string()),
      HasSubstr("MODEL_MISMATCH: " + far.string() + "/config.json says rope_theta 1000000.0, this model has 500000.0"));
  std::ostringstream out;
  const auto import = [&](const fs::path& source, const char* step, const char* flavor) {
    const bool there = fs::exists(root_ / step);
    absl::Status status =
        import_weights(posix_files(), source.string(), (root_ / step).string(), {"small", flavor, ""}, out);
    EXPECT_EQ(fs::exists(root_ / step), there || status.ok()) << "complete or not at all";
    return status;
  };
  EXPECT_EQ(import(far, "seed-1/step-0", "near").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(import(far, "seed-2/step-0", "far").ok());
  // Without config.json the shapes decide, and the written step names the model that was given.
  fs::remove(far / "config.json");
  EXPECT_EQ(load(root_ / "new-3", far.string()), "initial of step 5");
  ASSERT_TRUE(import(far, "seed-3/step-0", "near").ok());
  ASSERT_TRUE(inspect(posix_files(), (root_ / "seed-3/step-0").string(), false, false, out).ok());
  EXPECT_THAT(out.str(), HasSubstr("model only  small near"));
  EXPECT_EQ(import(far, "seed-3/step-0", "near").code(), absl::StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace titan::tools

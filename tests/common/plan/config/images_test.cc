// Keys of models that learn from images: which of them apply to which model, what they must fit, and whose paths they
// are. bad_inputs.json has the refusals.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/plan/config/assets.h"
#include "common/plan/config/fields.h"
#include "common/plan/config/image_models.h"
#include "common/plan/config/load.h"
#include "common/plan/config/model_kind.h"
#include "common/plan/config/validate.h"

namespace titan::config {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

LoadedConfig load(const std::vector<std::string>& words) {
  absl::StatusOr<LoadedConfig> loaded = load_overrides(words);
  EXPECT_TRUE(loaded.ok()) << loaded.status().message();
  return loaded.ok() ? *std::move(loaded) : LoadedConfig();
}

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const std::vector<std::string> kFlux = {"--model.name=flux", "--training.dataset=cc12m-wds"};
const std::vector<std::string> kVlm = {"--model.name=vlm", "--training.dataset=cc12m"};

// Returns the problems except those of the model's name and flavor.
std::vector<std::string> problems(const std::vector<std::string>& words) {
  const LoadedConfig loaded = load(words);
  std::vector<std::string> lines;
  for (const Problem& problem : check(loaded.config, loaded.origins)) {
    if (!absl::StartsWith(problem.key, "model.name") && !absl::StartsWith(problem.key, "model.flavor"))
      lines.push_back(format(problem));
  }
  return lines;
}

// A job as torchtitan's recipes describe it has nothing wrong, with every kind of validation.
TEST(ImagesTest, AcceptsJobsOfImageModels) {
  const std::vector<std::vector<std::string>> jobs = {
      kFlux,
      with(kFlux, {"--training.img_size=512", "--encoder.max_t5_encoding_len=512", "--nproc=8",
                   "--parallelism.context_parallel_degree=8"}),
      with(kFlux, {"--validation.enable", "--validation.dataset=coco-validation", "--validation.steps=-1",
                   "--validation.save_img_count=0"}),
      with(kFlux, {"--training.dataset=c4_test", "--training.dataset_path=/images"}),
      {"--model.name=flux", "--training.dataset=shapes", "--validation.enable",
       "--validation.dataset=shapes_validation", "--encoder.autoencoder_path=titan/autoencoder-tiny"},
      with(kFlux, {"--training.dataset=cc12m-test", "--training.dataset_path=/images", "--training.test_mode"}),
      with(kFlux, {"--training.dataloader.shuffle=documents", "--training.dataloader.order=per_rank"}),
      with(kFlux, {"--training.seq_len=1000", "--nproc=4", "--parallelism.context_parallel_degree=4"}),
      with(kFlux, {"--activation_checkpoint.mode=full", "--parallelism.fsdp_reshard_after_forward=never"}),
      kVlm,
      with(kVlm, {"--data.max_patches_per_image=1024", "--data.max_images_per_batch=64", "--training.seq_len=4096"}),
      with(kVlm, {"--data.packing_buffer_size=100", "--training.dataloader.format=webdataset"}),
      with(kVlm, {"--training.dataset=obelics", "--training.dataset_path=/rows"}),
      with(kVlm, {"--nproc=8", "--parallelism.tensor_parallel_degree=2", "--parallelism.context_parallel_degree=2",
                  "--parallelism.pipeline_parallel_degree=2"}),
  };
  for (const std::vector<std::string>& job : jobs) EXPECT_THAT(problems(job), IsEmpty()) << absl::StrJoin(job, " ");
}

// Validation's data is checked like training's, but only if there is a validation.
TEST(ImagesTest, ChecksValidationDataWhenItIsRead) {
  EXPECT_THAT(problems(kFlux), IsEmpty());
  EXPECT_THAT(problems(with(kFlux, {"--validation.enable", "--validation.save_img_count=0"})),
              ElementsAre(AllOf(HasSubstr("validation.dataset = c4_validation: holds texts"),
                                HasSubstr("set validation.dataset_path"))));
  EXPECT_THAT(problems({"--validation.enable", "--validation.dataloader.format=image_folder"}),
              ElementsAre(HasSubstr("validation.dataloader.format = image_folder: holds images")));
  EXPECT_THAT(problems({"--validation.dataloader.format=image_folder"}), IsEmpty());
}

// A library's dataset has texts, so a model of images cannot learn from it. A library's dataset may have any name.
TEST(ImagesTest, DatasetsOfLibrariesHaveTexts) {
  const std::vector<std::string> library = {"--experimental.custom_import=/mine.so", "--training.dataset_path=/texts"};
  EXPECT_THAT(problems(with(library, {"--model.name=flux", "--training.dataset=mine"})),
              ElementsAre(HasSubstr("training.dataset = mine: holds texts, but flux learns from images")));
  EXPECT_THAT(problems(with(library, {"--training.dataset=mine"})), IsEmpty());
  EXPECT_THAT(problems(with(library, {"--training.dataset=cc12m"})), IsEmpty());
}

// The sizes that a message suggests are accepted, and they are the nearest ones.
TEST(ImagesTest, SuggestsSizesThatFitTheContext) {
  for (const int degree : {2, 3, 6, 8, 16, 24}) {
    for (const int size : {16, 208, 272, 400, 1040}) {
      const auto refusals = [&](std::int64_t side) {
        return problems(with(kFlux, {absl::StrCat("--training.img_size=", side), absl::StrCat("--nproc=", degree),
                                     absl::StrCat("--parallelism.context_parallel_degree=", degree),
                                     absl::StrCat("--encoder.max_t5_encoding_len=", degree)}));
      };
      const bool fits = size / 16 * (size / 16) % degree == 0;
      const std::vector<std::string> lines = refusals(size);
      EXPECT_EQ(lines.empty(), fits) << degree << " " << size;
      if (fits) continue;
      const std::size_t place = lines[0].rfind("; use ");
      ASSERT_NE(place, std::string::npos) << lines[0];
      for (std::size_t at = place + 6; at < lines[0].size();) {
        const std::size_t end = std::min(lines[0].find(" or ", at), lines[0].size());
        std::int64_t suggested = 0;
        ASSERT_TRUE(absl::SimpleAtoi(lines[0].substr(at, end - at), &suggested)) << lines[0];
        EXPECT_THAT(refusals(suggested), IsEmpty()) << lines[0];
        for (std::int64_t between = std::min<std::int64_t>(size, suggested) + 16;
             between < std::max<std::int64_t>(size, suggested); between += 16) {
          EXPECT_FALSE(refusals(between).empty()) << lines[0] << " " << between;
        }
        at = end + 4;
      }
    }
  }
}

// Every key of keys_of_kinds() exists, warns with the models that do not read it and with no other.
TEST(ImagesTest, KeysOfOtherModelsWarn) {
  JobConfig config;
  std::set<std::string> keys;
  for (const Section& section : sections(config)) {
    for (const Field& field : section.fields)
      keys.insert(absl::StrCat(std::string(section.name), ".", std::string(field.key)));
  }
  for (const KeyOfKinds& row : keys_of_kinds()) {
    const std::string key(row.key);
    const bool exists = std::any_of(keys.begin(), keys.end(), [&](const std::string& known) {
      return known == key || (key.back() == '.' && absl::StartsWith(known, key));
    });
    EXPECT_TRUE(exists) << key;
    EXPECT_LT(row.kinds.size(), 3u) << key << " applies to all models";
  }
  const auto warns = [](const std::vector<std::string>& words) { return load(words).warnings; };
  const std::vector<std::string> flux = {"--encoder.t5_encoder=/t5", "--training.img_size=512",
                                         "--inference.img_size=512", "--validation.all_timesteps"};
  EXPECT_EQ(warns(flux).size(), 4u);
  EXPECT_THAT(warns(flux), Contains(HasSubstr("encoder.t5_encoder has no effect while model.name is llama3: it applies "
                                              "to flux")));
  EXPECT_THAT(warns(with(kFlux, flux)), IsEmpty());
  const std::vector<std::string> texts = {"--training.seq_len=64", "--training.dataloader.text_key=body",
                                          "--validation.sample_temperature=2"};
  EXPECT_THAT(warns(texts), IsEmpty());
  EXPECT_THAT(warns(with(kFlux, texts)),
              Contains(HasSubstr("training.seq_len has no effect while model.name is flux: it applies to language "
                                 "models, vlm and qwen3_vl")));
  EXPECT_EQ(warns(with(kFlux, texts)).size(), 3u);
  EXPECT_THAT(warns(with(kVlm, texts)), ElementsAre(HasSubstr("training.dataloader.text_key has no effect")));
  EXPECT_THAT(warns(with(kVlm, {"--data.patch_size=14", "--training.dataloader.decode_threads=4"})), IsEmpty());
  EXPECT_THAT(warns(with(kFlux, {"--data.patch_size=14"})), ElementsAre(HasSubstr("it applies to vlm and qwen3_vl")));
}

TEST(ImagesTest, WarnsOfGuidanceThatIsNotTrained) {
  const std::vector<std::string> guided = with(kFlux, {"--validation.enable", "--validation.dataset=coco-validation",
                                                       "--validation.enable_classifier_free_guidance"});
  EXPECT_THAT(load(guided).warnings, ElementsAre(HasSubstr("training.classifier_free_guidance_prob is 0")));
  EXPECT_THAT(load(with(guided, {"--training.classifier_free_guidance_prob=0.1"})).warnings, IsEmpty());
  EXPECT_THAT(load(with(guided, {"--validation.save_img_count=0"})).warnings, IsEmpty());
}

// torchtitan's recipes name the Python module of these keys. Every other module is refused.
TEST(ImagesTest, TorchtitansModulesAreIgnored) {
  for (const char* module : {"torchtitan.models.flux.job_config", "torchtitan.experiments.vlm.job_config"}) {
    const LoadedConfig loaded = load({absl::StrCat("--job.custom_config_module=", module)});
    EXPECT_EQ(loaded.config.job.custom_config_module, "");
    EXPECT_THAT(loaded.warnings, ElementsAre(HasSubstr("job.custom_config_module has no effect: Titan has")));
    EXPECT_THAT(problems({absl::StrCat("--job.custom_config_module=", module)}), IsEmpty());
  }
  EXPECT_THAT(problems({"--job.custom_config_module=torchtitan.models.flux"}),
              ElementsAre(HasSubstr("experimental.custom_import")));
}

// Keys as older torchtitan versions spelled them.
TEST(ImagesTest, ReadsOlderSpellings) {
  const JobConfig config = load({"--training.max_patches_per_image=5", "--training.classifer_free_guidance_prob=0.5",
                                 "--training.packing_buffer_size=7"})
                               .config;
  EXPECT_EQ(config.data.max_patches_per_image, 5);
  EXPECT_EQ(config.data.packing_buffer_size, 7);
  EXPECT_EQ(config.training.classifier_free_guidance_prob, 0.5);
}

TEST(ImagesTest, TellsFoldersFromRepositories) {
  for (const char* name : {"google/t5-v1_1-xxl", "openai/clip-vit-large-patch14"})
    EXPECT_TRUE(is_repository_name(name));
  for (const char* path : {"", "/t5", "./google/t5", "../t5", "~/t5", "$HOME/t5", "t5", "a/b/c", "t5/"})
    EXPECT_FALSE(is_repository_name(path)) << path;
}

// A job's author means paths relative to a folder that workers do not have; names of repositories are not paths.
TEST(ImagesTest, VisitsPathsOfFluxOnly) {
  const std::vector<std::string> paths = {"--encoder.t5_encoder=./t5", "--encoder.autoencoder_path=ae.safetensors",
                                          "--inference.prompts_path=prompts.txt"};
  std::map<std::string, std::string> seen;
  const auto visit = [&](const std::vector<std::string>& words) {
    LoadedConfig loaded = load(words);
    seen.clear();
    visit_paths(loaded.config, [&](const std::string& key, const std::string& path) { seen[key] = path; });
  };
  visit(with(kFlux, paths));
  EXPECT_EQ(seen["encoder.t5_encoder"], "./t5");
  EXPECT_EQ(seen["encoder.autoencoder_path"], "ae.safetensors");
  EXPECT_EQ(seen["inference.prompts_path"], "prompts.txt");
  EXPECT_FALSE(seen.contains("encoder.clip_encoder"));
  visit(paths);
  EXPECT_FALSE(seen.contains("encoder.t5_encoder"));
  EXPECT_FALSE(seen.contains("inference.prompts_path"));
}

// A temporary folder as the installation's assets.
class ImageAssetsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(assets_ / "t5-v1_1-xxl");
    if (const char* before = std::getenv("TITAN_ASSETS")) before_ = before;
    setenv("TITAN_ASSETS", assets_.c_str(), 1);
  }
  void TearDown() override {
    before_ ? setenv("TITAN_ASSETS", before_->c_str(), 1) : unsetenv("TITAN_ASSETS");
    fs::remove_all(assets_);
  }

  const fs::path assets_ = fs::path(::testing::TempDir()) / "titan-image-assets";
  std::optional<std::string> before_;
};

TEST_F(ImageAssetsTest, StandForDefaultsAndForNames) {
  LoadedConfig loaded =
      load(with(kFlux, {"--encoder.t5_encoder=google/t5-v1_1-xxl", "--validation.dataset=coco-validation",
                        "--model.hf_assets_path=tests/assets/tokenizer"}));
  resolve_assets(loaded.config);
  EXPECT_EQ(loaded.config.encoder.t5_encoder, (assets_ / "t5-v1_1-xxl").string());
  EXPECT_EQ(loaded.config.encoder.clip_encoder, "openai/clip-vit-large-patch14") << "the assets have none";
  EXPECT_EQ(loaded.config.encoder.autoencoder_path, (assets_ / "autoencoder/ae.safetensors").string());
  EXPECT_EQ(loaded.config.training.dataset_path, "hf://datasets/pixparse/cc12m-wds");
  EXPECT_THAT(*loaded.config.validation.dataset_path, HasSubstr("howard-hou/COCO-Text"));
  EXPECT_EQ(loaded.config.model.hf_assets_path, (assets_ / "tokenizer").string());
}

// Pictures and encoders of examples are the installation's, also on a node whose assets are elsewhere.
TEST_F(ImageAssetsTest, HoldPicturesAndSmallEncoders) {
  fs::create_directories(assets_ / "t5-tiny");
  LoadedConfig loaded =
      load({"--model.name=flux", "--training.dataset=shapes", "--encoder.t5_encoder=titan/t5-tiny",
            "--encoder.autoencoder_path=titan/autoencoder-tiny", "--validation.dataset=shapes_validation"});
  EXPECT_TRUE(means_assets("encoder.autoencoder_path", loaded.config.encoder.autoencoder_path));
  EXPECT_FALSE(means_assets("encoder.autoencoder_path", "titan/folder/autoencoder-tiny"));
  EXPECT_FALSE(means_assets("job.dump_folder", "titan/autoencoder-tiny"));
  resolve_assets(loaded.config);
  EXPECT_EQ(loaded.config.training.dataset_path, (assets_ / "shapes").string());
  EXPECT_EQ(loaded.config.validation.dataset_path, (assets_ / "shapes_validation").string());
  EXPECT_EQ(loaded.config.encoder.t5_encoder, (assets_ / "t5-tiny").string());
  EXPECT_EQ(loaded.config.encoder.autoencoder_path, (assets_ / "autoencoder-tiny").string());
}

TEST_F(ImageAssetsTest, LeavePathsThatAreSet) {
  LoadedConfig loaded = load(with(kFlux, {"--encoder.t5_encoder=/t5", "--encoder.autoencoder_path=/ae.safetensors",
                                          "--training.dataset_path=/images"}));
  resolve_assets(loaded.config);
  EXPECT_EQ(loaded.config.encoder.t5_encoder, "/t5");
  EXPECT_EQ(loaded.config.encoder.autoencoder_path, "/ae.safetensors");
  EXPECT_EQ(loaded.config.training.dataset_path, "/images");
  LoadedConfig language = load({"--training.dataset=c4"});
  resolve_assets(language.config);
  EXPECT_EQ(language.config.encoder.autoencoder_path, EncoderSection{}.autoencoder_path);
}

}  // namespace
}  // namespace titan::config

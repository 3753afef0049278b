#include "controller/cli/preflight.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text/home.h"
#include "common/base/text/nearest.h"
#include "common/io/s3/location.h"
#include "common/io/storage/file.h"
#include "common/io/tokenizer_files/chat_template_text.h"
#include "common/io/tokenizer_files/find_tokenizer.h"
#include "common/plan/config/assets.h"
#include "common/plan/config/data_sources.h"
#include "common/plan/config/model_kind.h"
#include "common/plan/config/parallelism.h"
#include "common/plan/config/trained_model.h"
#include "common/plan/hf_config/model_match.h"
#include "common/plan/models/repository.h"
#include "common/plan/models/sizes.h"
#include "controller/cli/encoder_checks.h"
#include "controller/cli/image_checks.h"
#include "controller/cli/input_checks.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kGetWeights[] = "`titanctl assets get ORG/NAME` downloads them";

std::string nearby_name(const fs::path& path) {
  std::error_code error;
  const fs::path parent = path.parent_path().empty() ? fs::path(".") : path.parent_path();
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(parent, error)) names.push_back(entry.path().filename().string());
  const std::string best = nearest(path.filename().string(), names);
  return best.empty() ? "" : (path.parent_path() / best).string();
}

std::string meant(const std::string& better) { return better.empty() ? "" : "did you mean " + better + "?"; }

// Describes what exists there, when it is of another kind than needed; "" when nothing exists.
std::string of_another_type(const fs::path& path) {
  std::error_code error;
  const fs::file_status found = fs::status(path, error);
  if (fs::is_regular_file(found)) return "is a file, and a folder is needed";
  if (fs::is_directory(found)) return "is a folder, and a file is needed";
  if (fs::exists(found)) return "is neither a file nor a folder";
  if (error == std::errc::permission_denied) return "cannot be looked at: no permission in a folder on its path";
  if (error == std::errc::not_a_directory) return "leads through a file as if it were a folder";
  return fs::is_symlink(fs::symlink_status(path, error)) ? "is a link to nothing" : "";
}

class Checker {
 public:
  Checker(const config::LoadedConfig& loaded, std::vector<std::string>& warnings)
      : loaded_(loaded), config_(loaded.config), warnings_(warnings) {}

  std::vector<config::Problem> check() {
    check_dump_folder();
    check_schedule();
    check_library();
    check_assets();
    if (!means_assets() && config::uses_assets_tokenizer(config_)) check_tokenizer();
    if (config::kind_of(config_.model) == config::ModelKind::kTextToImage) check_encoder_files();
    check_chat_template();
    check_dataset("training.dataset_path", config_.training.dataset, config_.training.dataset_path,
                  config_.training.dataloader);
    check_sources("training.dataloader.sources", config_.training.dataloader);
    if (config_.validation.enable) {
      check_dataset("validation.dataset_path", config_.validation.dataset, config_.validation.dataset_path,
                    config_.validation.dataloader);
      check_sources("validation.dataloader.sources", config_.validation.dataloader);
    }
    if (config_.checkpoint.enable) {
      check_initial_load();
      check_initial_tower();
      check_own_steps();
      check_load_step();
    }
    return std::move(problems_);
  }

 private:
  void bad(const std::string& key, const std::string& value, const std::string& message,
           const std::string& suggestion = "") {
    const auto origin = loaded_.origins.find(key);
    problems_.push_back(
        {origin == loaded_.origins.end() ? config::Origin{} : origin->second, key, value, message, suggestion});
  }

  // Reports a missing file or folder with a suggestion, which must exist. `remedy`: where else it comes from.
  void missing(const std::string& key, const std::string& value, std::string what, const std::string& remedy = "") {
    std::error_code error;
    if (text::names_variable(value)) absl::StrAppend(&what, ": ", text::kNoVariables);
    if (std::string other = of_another_type(value); !other.empty()) {
      const bool file = fs::is_regular_file(value, error);
      return bad(key, value, other, file ? meant(fs::path(value).parent_path().string()) : remedy);
    }
    // The first part of the path that does not exist is the misspelt one.
    const fs::path given = fs::path(value).lexically_normal();
    fs::path wrong = given;
    while (wrong.has_parent_path() && wrong.parent_path() != wrong && !fs::exists(wrong.parent_path(), error))
      wrong = wrong.parent_path();
    if (std::string better = nearby_name(wrong); !better.empty()) {
      if (wrong != given) better = (better / given.lexically_relative(wrong)).string();
      if (fs::exists(better, error)) return bad(key, value, what, meant(better));
    }
    bad(key, value, what,
        absl::StrCat(remedy, remedy.empty() ? "" : "; ",
                     "if only the nodes have it, --no-file-checks skips this check"));
  }

  void check_dump_folder() {
    const fs::path dump = config_.job.dump_folder;
    std::error_code error;
    if (fs::exists(dump, error) && !fs::is_directory(dump, error)) {
      return bad("job.dump_folder", dump.string(), "is a file, and the job needs a folder",
                 meant(dump.parent_path().string()));
    }
    fs::path existing = dump;
    while (!existing.empty() && !fs::exists(existing, error) && existing != existing.parent_path())
      existing = existing.parent_path();
    if (!fs::is_directory(existing, error)) {
      return bad("job.dump_folder", dump.string(),
                 absl::StrCat(existing.string(), " is a file, so the folder cannot be made"));
    }
    if (access(existing.c_str(), W_OK) != 0) {
      bad("job.dump_folder", dump.string(), absl::StrCat("cannot be written: no permission in ", existing.string()));
    }
  }

  // Checks a custom pipeline schedule, with everything that depends on it.
  void check_schedule() {
    const std::string key = "parallelism.pipeline_parallel_schedule_csv";
    const std::string& path = config_.parallelism.pipeline_parallel_schedule_csv;
    if (path.empty() || config_.parallelism.pipeline_parallel_degree == 1) return;
    std::error_code error;
    if (!fs::is_regular_file(path, error)) return missing(key, path, "no such file");
    const auto spec = config::resolve_model(config_.model);
    const auto plan = config::pipeline_plan(config_, spec.ok() ? models::block_names(*spec) : pipeline::ModelBlocks());
    if (plan.ok()) return;
    const std::string message(plan.status().message());
    bad(key, path, absl::StartsWith(message, key + ": ") ? message.substr(key.size() + 2) : message);
  }

  // Checks that the library exists; only a rank can check its contents.
  void check_library() {
    const std::string& path = config_.experimental.custom_import;
    std::error_code error;
    if (path.empty() || fs::is_regular_file(path, error)) return;
    missing("experimental.custom_import", path, "no such file");
  }

  // Checks the default assets, which each node has with its installation, in this machine's installation.
  void check_assets() {
    if (means_assets() && config::uses_assets_tokenizer(config_))
      check_asset("model.hf_assets_path", config_.model.hf_assets_path, "tokenizer/tokenizer.json");
    if (config_.training.dataloader.sources.empty()) {
      check_own_text("training.dataset", config_.training.dataset, config_.training.dataset_path);
    }
    const bool of_hub = config::streams_c4(config_) && config_.validation.dataset == "c4_validation";
    if (!config_.validation.enable || of_hub || !config_.validation.dataloader.sources.empty()) return;
    check_own_text("validation.dataset", config_.validation.dataset, config_.validation.dataset_path);
  }

  bool means_assets() const { return config::means_assets("model.hf_assets_path", config_.model.hf_assets_path); }

  void check_encoder_files() {
    for (const EncoderProblem& problem : check_encoders(config_)) {
      if (problem.is_missing) {
        missing(problem.key, problem.value, problem.message, problem.remedy);
      } else {
        bad(problem.key, problem.value, problem.message, problem.remedy);
      }
    }
  }

  void check_own_text(const std::string& key, const std::string& dataset, const std::optional<std::string>& path) {
    if (config::is_bundled_dataset(dataset) && !path.has_value()) check_asset(key, dataset, dataset);
  }

  void check_asset(const std::string& key, const std::string& value, const std::string& name) {
    const std::string folder = config::assets_folder();
    std::error_code error;
    if (!folder.empty() && fs::exists(fs::path(folder) / name, error)) return;
    bad(key, value,
        folder.empty() ? "comes with an installation of Titan, and this one has no share/titan/assets"
                       : absl::StrCat("comes with an installation of Titan, but ", folder, " has no ", name),
        "TITAN_ASSETS names another folder (deploy/make_assets.sh makes one); --no-file-checks leaves it to the nodes");
  }

  void check_tokenizer() {
    const std::string key = "model.hf_assets_path";
    const std::string& folder = config_.model.hf_assets_path;
    const std::string advice = models::tokenizer_advice(config_.model.name, config_.model.flavor);
    std::error_code error;
    if (!fs::is_directory(folder, error)) return missing(key, folder, "no such folder", advice);
    const auto found = tokenizer_files::find_tokenizer(folder);
    if (!found.ok()) return bad(key, folder, std::string(found.status().message()), advice);
    const absl::StatusOr<int64_t> largest = tokenizer_files::largest_id(*found);
    if (!largest.ok()) return bad(key, folder, std::string(largest.status().message()));
    const auto spec = config::resolve_model(config_.model);
    const bool has_vocabulary = config::kind_of(config_.model) != config::ModelKind::kTextToImage;
    if (!spec.ok() || !has_vocabulary || *largest < spec->vocab_size) return;
    bad(key, folder,
        absl::StrCat("the tokenizer's largest token is ", *largest, ", but ", config_.model.name, " ",
                     config_.model.flavor, " has a vocabulary of ", spec->vocab_size));
  }

  // Without a chat template no rank can render conversations.
  void check_chat_template() {
    if (!reads_conversations(config_.training.dataloader) &&
        !(config_.validation.enable && reads_conversations(config_.validation.dataloader))) {
      return;
    }
    const std::string& given = config_.model.hf_assets_path;
    const std::string folder = means_assets() ? (fs::path(config::assets_folder()) / "tokenizer").string() : given;
    if (!tokenizer_files::find_tokenizer(folder).ok()) return;  // It was reported already.
    const auto config = tokenizer_files::read_tokenizer_config(folder);
    const absl::Status found =
        config.ok() ? tokenizer_files::find_chat_template(folder, *config).status() : config.status();
    if (found.ok()) return;
    std::string message(found.message());
    if (absl::StartsWith(message, folder + ": ")) message.erase(0, folder.size() + 2);
    bad("model.hf_assets_path", given, message);
  }

  static bool reads_conversations(const config::DataLoaderSection& settings) {
    if (settings.sources.empty()) return !settings.messages_key.empty();
    return std::any_of(settings.sources.begin(), settings.sources.end(), [&](const config::DataSource& source) {
      return !config::settings_of(source, settings).messages_key.empty();
    });
  }

  void check_sources(const std::string& key, const config::DataLoaderSection& settings) {
    for (const config::DataSource& source : settings.sources) {
      check_own_text(key, source.dataset.value_or(""), source.dataset_path);
      if (!source.dataset_path) continue;
      check_files_of(key, source.dataset.value_or("c4_test"), *source.dataset_path,
                     config::settings_of(source, settings));
    }
  }

  void check_dataset(const std::string& key, const std::string& dataset, const std::optional<std::string>& path,
                     const config::DataLoaderSection& settings) {
    if (path.has_value() && settings.sources.empty()) check_files_of(key, dataset, *path, settings);
  }

  void check_files_of(const std::string& key, const std::string& dataset, const std::string& path,
                      const config::DataLoaderSection& settings) {
    if (s3::is_location(path)) return;  // The ranks check it, with their credentials.
    const std::optional<DataProblem> problem = problem_of(dataset, path, settings);
    if (!problem) return;
    if (problem->is_missing) return missing(key, path, problem->message);
    bad(key, path, problem->message);
  }

  std::optional<DataProblem> problem_of(const std::string& dataset, const std::string& path,
                                        const config::DataLoaderSection& settings) {
    switch (config::kind_of(config_.model)) {
      case config::ModelKind::kTextToImage:
        return check_images(config_, path, settings);
      case config::ModelKind::kVisionLanguage:
        return check_listed(path);
      case config::ModelKind::kLanguage:
        break;
    }
    return check_data(dataset, path, settings, warnings_);
  }

  void check_initial_load() {
    const bool in_hf = config_.checkpoint.initial_load_in_hf, named = config_.checkpoint.initial_load_path.has_value();
    if (!in_hf && !named) return;
    const std::string key = named ? "checkpoint.initial_load_path" : "model.hf_assets_path";
    const std::string path = config_.checkpoint.initial_load_path.value_or(config_.model.hf_assets_path);
    if (s3::is_location(path)) return;  // The ranks check it, with their credentials.
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      if (named) missing(key, path, "no such folder");  // The other key also names the tokenizer's folder.
      return;
    }
    if (in_hf) return check_hf_weights(key, path);
    if (holds_dcp(path)) return;
    check_manifest(key, path, path);
    refuse_misfit(key, path, step_mismatch(config_.model, path));
  }

  void check_initial_tower() {
    const std::string key = "checkpoint.initial_load_vision_path";
    const std::string path = config_.checkpoint.initial_load_vision_path.value_or("");
    if (path.empty() || s3::is_location(path)) return;  // The ranks check it, with their credentials.
    std::error_code error;
    if (!fs::is_directory(path, error)) return missing(key, path, "no such folder");
    if (!has_weights(path)) return bad(key, path, "the folder holds no *.safetensors", kGetWeights);
    if (newest_own_step().empty()) refuse_misfit(key, path, tower_mismatch(config_.model, path));
  }

  static bool has_weights(const std::string& folder) {
    std::error_code error;
    const auto is_weights = [](const auto& entry) { return entry.path().extension() == ".safetensors"; };
    const fs::directory_iterator entries(folder, error);
    return std::any_of(begin(entries), end(entries), is_weights);
  }

  void check_hf_weights(const std::string& key, const std::string& folder) {
    const std::string path = hf_config::weights_folder(storage::posix_files(), folder);
    if (!has_weights(path)) {
      return bad(key, path, "the folder holds no *.safetensors, which checkpoint.initial_load_in_hf requires",
                 kGetWeights);
    }
    // A job with its own steps resumes from them.
    if (newest_own_step().empty()) refuse_misfit(key, path, hf_folder_mismatch(config_.model, path));
  }

  void refuse_misfit(const std::string& key, const std::string& path, const WeightsMismatch& misfit) {
    if (!misfit.message.empty()) bad(key, path, misfit.message, misfit.remedy);
  }

  std::string newest_own_step() const {
    if (s3::is_location(config_.checkpoint.folder)) return "";
    return newest_step_in(fs::path(config_.job.dump_folder) / config_.checkpoint.folder);
  }

  // Checks that the step that the job would resume from belongs to this model.
  void check_own_steps() {
    if (config_.checkpoint.load_step >= 0) return;
    const std::string newest = newest_own_step();
    if (newest.empty()) return;
    refuse_misfit("job.dump_folder", newest, step_mismatch(config_.model, newest));
    check_place_in_step(newest);
  }

  // Checks the job's place in the data, unless the job starts its data from the beginning.
  void check_place_in_step(const std::string& step_folder) {
    const std::vector<std::string>& excluded = config_.checkpoint.exclude_from_loading;
    if (std::find(excluded.begin(), excluded.end(), "dataloader") != excluded.end()) return;
    std::ifstream in(step_folder + "/manifest.json");
    const json manifest = json::parse(in, nullptr, /*allow_exceptions=*/false);
    if (!manifest.is_object()) return;
    const std::string problem = check_place_in_data(manifest.value("train_state", json()), config_.training);
    if (problem.empty()) return;
    bad("training.dataset_path", *config_.training.dataset_path,
        absl::StrCat("the job would resume from ", step_folder, ", which was saved in other data: ", problem));
  }

  // Returns whether it is a step of torch.distributed.checkpoint, or a folder of such steps, which the ranks check.
  static bool holds_dcp(const fs::path& folder) {
    std::error_code error;
    if (fs::exists(folder / ".metadata", error)) return true;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      if (absl::StartsWith(entry.path().filename().string(), "step-") && fs::exists(entry.path() / ".metadata", error))
        return true;
    }
    return false;
  }

  void check_manifest(const std::string& key, const std::string& value, const std::string& step_folder) {
    std::ifstream in(step_folder + "/manifest.json");
    if (!in) {
      const std::string newest = newest_step_in(step_folder);
      return bad(key, value, "the folder holds no manifest.json, so it is not a complete checkpoint step",
                 meant(newest));
    }
    if (json::parse(in, nullptr, /*allow_exceptions=*/false).is_discarded())
      bad(key, value, "manifest.json is not JSON: the checkpoint is damaged");
  }

  static std::vector<int64_t> steps_in(const fs::path& folder) {
    std::vector<int64_t> steps;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      int64_t step = 0;
      const std::string name = entry.path().filename().string();
      if (absl::StartsWith(name, "step-") && absl::SimpleAtoi(name.substr(5), &step) &&
          fs::exists(entry.path() / "manifest.json", error)) {
        steps.push_back(step);
      }
    }
    std::sort(steps.begin(), steps.end());
    return steps;
  }

  static std::string newest_step_in(const fs::path& folder) {
    const std::vector<int64_t> steps = steps_in(folder);
    return steps.empty() ? "" : (folder / absl::StrCat("step-", steps.back())).string();
  }

  void check_load_step() {
    const int64_t step = config_.checkpoint.load_step;
    if (step < 0 || s3::is_location(config_.checkpoint.folder)) return;
    const fs::path folder = fs::path(config_.job.dump_folder) / config_.checkpoint.folder;
    const std::vector<int64_t> steps = steps_in(folder);
    if (steps.empty() || std::find(steps.begin(), steps.end(), step) != steps.end()) return;
    bad("checkpoint.load_step", absl::StrCat(step),
        absl::StrCat(folder.string(), " holds no such step; it has ", absl::StrJoin(steps, ", ")),
        meant(absl::StrCat(steps.back())));
  }

  const config::LoadedConfig& loaded_;
  const config::JobConfig& config_;
  std::vector<std::string>& warnings_;
  std::vector<config::Problem> problems_;
};

}  // namespace

std::vector<config::Problem> check_files(const config::LoadedConfig& loaded, std::vector<std::string>& warnings) {
  return Checker(loaded, warnings).check();
}

std::string nearby_path(const std::string& path) {
  const std::string near = nearby_name(path);
  return near.empty() ? "" : "; did you mean '" + near + "'?";
}

}  // namespace titan::cli

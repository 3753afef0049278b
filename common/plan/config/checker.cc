#include "common/plan/config/checker.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/io/s3/location.h"
#include "common/plan/config/model_kind.h"

namespace titan::config {

void Checker::fail_as(const std::string& key, const std::string& value, const absl::Status& status) {
  std::string message(status.message());
  std::string named = key;
  std::string shown = value;
  if (const std::size_t colon = message.find(": "); colon != message.npos) {
    const std::string front = message.substr(0, colon);
    // "parallelism" and "training.seq_len" are keys; "model.flavor of llama3" is not.
    if (front.find(' ') == front.npos) {
      if (front != key) shown.clear();
      named = front;
    }
    message = message.substr(colon + 2);
  }
  problems_.push_back({origin(named), named, shown, message, ""});
}

Origin Checker::origin(const std::string& key) const {
  if (const auto found = origins_.find(key); found != origins_.end()) return found->second;
  const auto inner = origins_.lower_bound(key + ".");
  if (inner != origins_.end() && inner->first.rfind(key + ".", 0) == 0) return inner->second;
  return {};
}

namespace {

void check_object_store(Checker& check) {
  const CheckpointSection& c = check.config().checkpoint;
  const auto place = [&](const std::string& key, const std::string& path) {
    if (!s3::is_location(path)) return;
    if (const auto parsed = s3::parse_location(path); !parsed.ok())
      check.fail(key, path, "is not a location in an object store (s3://BUCKET/FOLDER)",
                 std::string(parsed.status().message()));
  };
  const auto nowhere_else = [&](const std::string& key, const std::string& path) {
    if (s3::is_location(path))
      check.fail(key, path, "cannot be in an object store",
                 "only checkpoint.folder, checkpoint.initial_load_path and datasets of images (not Parquet) can");
  };
  const JobConfig& config = check.config();
  nowhere_else("job.dump_folder", config.job.dump_folder);
  nowhere_else("model.hf_assets_path", config.model.hf_assets_path);
  nowhere_else("inference.prompts_path", config.inference.prompts_path);
  const bool images = learns_from_images(config.model);
  const auto dataset = [&](const std::string& key, const std::optional<std::string>& path, const std::string& format) {
    if (!path) return;
    if (images && format != "parquet_images") return place(key, *path);
    nowhere_else(key, *path);
  };
  dataset("training.dataset_path", config.training.dataset_path, config.training.dataloader.format);
  dataset("validation.dataset_path", config.validation.dataset_path, config.validation.dataloader.format);
  place("checkpoint.folder", c.folder);
  if (c.initial_load_path) place("checkpoint.initial_load_path", *c.initial_load_path);
  if (c.initial_load_vision_path) place("checkpoint.initial_load_vision_path", *c.initial_load_vision_path);
}

}  // namespace

void check_checkpoint(Checker& check) {
  const CheckpointSection& c = check.config().checkpoint;
  check_object_store(check);
  if (c.keep_latest_k == 1) {
    check.fail("checkpoint.keep_latest_k", c.keep_latest_k,
               "would delete the only complete checkpoint while the next is written",
               "use 2 or more, or 0 to keep all");
  }
  if (c.initial_load_in_hf && !c.initial_load_model_only) {
    check.fail("checkpoint.initial_load_in_hf", true,
               "needs checkpoint.initial_load_model_only: safetensors hold only the model",
               "set checkpoint.initial_load_model_only = true");
  }
  if (c.initial_load_in_hf_quantized && !c.initial_load_in_hf) {
    check.fail("checkpoint.initial_load_in_hf_quantized", true, "needs checkpoint.initial_load_in_hf",
               "set checkpoint.initial_load_in_hf = true");
  }
  if (c.last_save_in_hf && !c.last_save_model_only) {
    check.fail("checkpoint.last_save_in_hf", true,
               "needs checkpoint.last_save_model_only: safetensors hold only the model",
               "set checkpoint.last_save_model_only = true");
  }
  if (c.create_seed_checkpoint && c.load_only) {
    check.fail("checkpoint.create_seed_checkpoint", true, "saves, but checkpoint.load_only forbids saving",
               "set only one of them");
  }
  if (c.create_seed_checkpoint && check.config().resources.ranks != 1) {
    check.fail("checkpoint.create_seed_checkpoint", true,
               absl::StrCat("needs one rank, but resources.ranks is ", check.config().resources.ranks),
               "use --nproc 1");
  }
  if (c.enable) return;
  // Without checkpoint.enable nothing is loaded, so keys that require loading would be ignored.
  constexpr char kOff[] = "has no effect while checkpoint.enable is false";
  constexpr char kTurnOn[] = "set checkpoint.enable = true";
  if (c.initial_load_path) check.fail("checkpoint.initial_load_path", *c.initial_load_path, kOff, kTurnOn);
  if (c.initial_load_in_hf) check.fail("checkpoint.initial_load_in_hf", true, kOff, kTurnOn);
  if (c.initial_load_vision_path)
    check.fail("checkpoint.initial_load_vision_path", *c.initial_load_vision_path, kOff, kTurnOn);
  if (c.load_step >= 0) check.fail("checkpoint.load_step", c.load_step, kOff, kTurnOn);
  if (c.create_seed_checkpoint) check.fail("checkpoint.create_seed_checkpoint", true, kOff, kTurnOn);
}

}  // namespace titan::config

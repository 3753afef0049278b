#include "worker/rank/checkpoint/start_model.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/io/s3/all_files.h"
#include "common/plan/models/identity.h"
#include "worker/rank/checkpoint/loading/loading.h"
#include "worker/rank/checkpoint/loading/model_check.h"

namespace titan::checkpoint {
namespace {

using models::ModelSpec;

// Of the candidates that inspect() would take, this is what the manifest says; none: the next candidate's turn.
std::optional<ModelSpec> of_step(storage::Files& files, const Setup& setup, const Candidate& candidate,
                                 const ModelSpec& spec, std::string& taken) {
  const auto reader = StepReader::open(files, candidate.path);
  if (!reader.ok()) return std::nullopt;
  const Manifest& manifest = (*reader)->manifest();
  const bool of_another_start = manifest.job_uid != setup.job_uid || manifest.load_step != setup.config.load_step;
  if (candidate.this_job && of_another_start) return std::nullopt;
  if (!manifest.full && !candidate.model_only && !candidate.required) return std::nullopt;
  ModelSpec result = with_numbers_of_step(manifest, spec);
  std::vector<std::string> words;
  for (const models::Difference& one : models::differences(models::to_json(result), spec))
    words.push_back(absl::StrCat(one.name, " ", one.there, ", the flavor has ", one.here));
  if (!words.empty()) taken = absl::StrCat("taken from ", candidate.path, ": ", absl::StrJoin(words, "; "));
  return result;
}

}  // namespace

ModelSpec model_of_start(const Setup& setup, const ModelSpec& spec, std::string& taken) {
  const std::vector<std::string>& excluded = setup.config.exclude_from_loading;
  if (!keeps_to_weights(spec) || std::find(excluded.begin(), excluded.end(), "model") != excluded.end()) return spec;
  storage::Files& files = setup.files != nullptr ? *setup.files : s3::all_files();
  const std::string folder = storage::join_path(setup.dump_folder, setup.config.folder);
  for (const Candidate& candidate : plan_load(files, setup, folder)) {
    switch (candidate.from) {
      case Candidate::From::kStep:
        if (auto found = of_step(files, setup, candidate, spec, taken)) return *std::move(found);
        break;
      case Candidate::From::kHuggingFace: {
        const auto found = with_numbers_of_hf(files, candidate.path, spec, taken);
        return found.ok() ? *found : spec;
      }
      case Candidate::From::kDcp:
      case Candidate::From::kFresh:
      case Candidate::From::kError:
        return spec;
    }
  }
  return spec;
}

}  // namespace titan::checkpoint

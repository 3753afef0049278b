#include "worker/rank/checkpoint/checkpointer.h"

#include <algorithm>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/io/s3/object_files.h"
#include "common/plan/models/spec_checks.h"
#include "worker/rank/checkpoint/loading/load_agreement.h"
#include "worker/rank/checkpoint/loading/load_candidate.h"
#include "worker/rank/checkpoint/loading/model_check.h"
#include "worker/rank/checkpoint/saving/saver.h"

namespace titan::checkpoint {
namespace {

absl::Status check_setup(const Setup& setup) {
  const config::CheckpointSection& config = setup.config;
  if (setup.rank < 0 || setup.rank >= setup.world) {
    return absl::InvalidArgumentError(absl::StrCat("checkpoint: rank ", setup.rank, " of ", setup.world));
  }
  if (setup.world > 1 && setup.store == nullptr)
    return absl::InvalidArgumentError("checkpoint: several ranks need a store");
  if (config.keep_latest_k == 1 || config.keep_latest_k < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("checkpoint.keep_latest_k = ", config.keep_latest_k,
                     ": use 0 (keep all) or at least 2, since the newest may not be committed yet"));
  }
  if (config.interval < 1)
    return absl::InvalidArgumentError(absl::StrCat("checkpoint.interval = ", config.interval, ": at least 1"));
  if (config.export_dtype != "float32" && config.export_dtype != "float16" && config.export_dtype != "bfloat16") {
    return absl::InvalidArgumentError(
        absl::StrCat("checkpoint.export_dtype = \"", config.export_dtype, "\": use float32, float16 or bfloat16"));
  }
  const std::set<std::string> known = {"model", "optimizer", "lr_scheduler", "dataloader", "train_state"};
  for (const std::string& key : config.exclude_from_loading) {
    if (!known.contains(key)) {
      return absl::InvalidArgumentError(
          absl::StrCat("checkpoint.exclude_from_loading: no state \"", key, "\"; use ", absl::StrJoin(known, ", ")));
    }
  }
  if (config.initial_load_in_hf && !config.initial_load_model_only) {
    return absl::InvalidArgumentError(
        "checkpoint.initial_load_in_hf needs checkpoint.initial_load_model_only = true: Hugging Face weights hold the "
        "model alone");
  }
  if (config.last_save_in_hf && !config.last_save_model_only) {
    return absl::InvalidArgumentError(
        "checkpoint.last_save_in_hf needs checkpoint.last_save_model_only = true: Hugging Face weights hold the model "
        "alone");
  }
  return absl::OkStatus();
}

}  // namespace

const char* name(Source source) {
  switch (source) {
    case Source::kCheckpoint:
      return "checkpoint";
    case Source::kInitial:
      return "initial";
    case Source::kFresh:
      return "fresh";
  }
  return "unknown";
}

class Checkpointer::Impl {
 public:
  explicit Impl(Setup setup) : session(std::move(setup)) {}

  Session session;
  CheckpointLoader loader{session};
  Saver saver{session};
};

absl::StatusOr<std::unique_ptr<Checkpointer>> Checkpointer::create(Setup setup) {
  TITAN_RETURN_IF_ERROR(check_setup(setup));
  try {
    return std::unique_ptr<Checkpointer>(new Checkpointer(std::make_unique<Impl>(std::move(setup))));
  } catch (const std::exception& error) {  // Thrown if the heartbeat cannot connect.
    const std::string what = error.what();
    return absl::UnavailableError(absl::StrCat("the job's store: ", what.substr(0, what.find('\n'))));
  }
}

Checkpointer::Checkpointer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpointer::~Checkpointer() = default;

absl::StatusOr<LoadResult> Checkpointer::load(std::vector<Slice>& slices, StatePart part) {
  return impl_->loader.load(slices, part);
}

absl::Status Checkpointer::save(int64_t step, const std::vector<Slice>& slices, TrainState state, CheckpointKind kind) {
  return impl_->saver.save(step, slices, std::move(state), kind);
}

absl::Status Checkpointer::save_last(int64_t step, const std::vector<Slice>& slices, TrainState state) {
  return impl_->saver.save_last(step, slices, std::move(state));
}

absl::Status Checkpointer::save_before_stop(int64_t step, const std::vector<Slice>& slices, TrainState state,
                                            absl::Duration timeout) {
  return impl_->saver.save_before_stop(step, slices, std::move(state), timeout);
}

void Checkpointer::before_update() { impl_->saver.before_update(); }
absl::Status Checkpointer::wait() { return impl_->saver.wait(); }
bool Checkpointer::save_in_flight() const { return impl_->saver.in_flight(); }
int64_t Checkpointer::last_committed_step() const { return impl_->saver.last_committed(); }

namespace {

using models::ModelSpec;

// Returns `spec` with the manifest's numbers if inspect() would accept the candidate. No value: try the next candidate.
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
  for (const models::SpecDifference& one : models::differences(models::to_json(result), spec))
    words.push_back(absl::StrCat(one.name, " ", one.there, ", the flavor has ", one.here));
  if (!words.empty()) taken = absl::StrCat("taken from ", candidate.path, ": ", absl::StrJoin(words, "; "));
  return result;
}

}  // namespace

ModelSpec spec_for_load(const Setup& setup, const ModelSpec& spec, std::string& taken) {
  const std::vector<std::string>& excluded = setup.config.exclude_from_loading;
  if (!takes_numbers_from_weights(spec) || std::find(excluded.begin(), excluded.end(), "model") != excluded.end())
    return spec;
  storage::Files& files = setup.files != nullptr ? *setup.files : s3::all_files();
  const std::string folder = storage::join_path(setup.dump_folder, setup.config.folder);
  for (const Candidate& candidate : plan_load(files, setup, folder)) {
    switch (candidate.from) {
      case Candidate::From::kStep:
        if (auto found = of_step(files, setup, candidate, spec, taken)) return *std::move(found);
        break;
      case Candidate::From::kHuggingFace: {
        const auto found = with_numbers_of_hf(files, candidate.path, spec, taken, setup.larger_vocabulary);
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

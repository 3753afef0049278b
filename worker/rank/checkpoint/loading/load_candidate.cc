#include "worker/rank/checkpoint/loading/load_candidate.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "common/base/status/status.h"
#include "common/io/s3/location.h"
#include "common/plan/hf_config/model_match.h"
#include "worker/rank/checkpoint/formats/dcp/dcp_metadata.h"
#include "worker/rank/checkpoint/formats/hugging_face/tied_head.h"
#include "worker/rank/checkpoint/loading/candidate_reader.h"
#include "worker/rank/checkpoint/loading/grown_vocabulary.h"
#include "worker/rank/checkpoint/loading/model_check.h"
#include "worker/rank/checkpoint/saving/staging.h"
#include "worker/rank/checkpoint/shards/tensor_box.h"
#include "worker/rank/checkpoint/steps/rank_reports.h"
#include "worker/rank/checkpoint/steps/step_folders.h"

namespace titan::checkpoint {
namespace {

using From = Candidate::From;

bool contains(const std::vector<std::string>& list, const char* name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

Candidate failure(const absl::Status& error) { return {.from = From::kError, .error = as_local_error(error)}; }

constexpr char kGonePrefix[] = "checkpoints gone: ";

// Returns whether nothing but a full step may be loaded, because one was committed here. Not if checkpoint.load_step
// names the start, or if another job committed it and its steps were deleted.
bool must_find_a_step(const Setup& setup, const std::vector<StepFolder>& steps) {
  if (setup.committed_step < 0 || (setup.config.load_step >= 0 && setup.attempt <= 1)) return false;
  const bool emptied = steps.empty() || steps.back().step == 0;  // A seed is not progress.
  return !(setup.committed_by_another_job && emptied);
}

Candidate gone(const Setup& setup, const std::string& folder) {
  return failure(absl::NotFoundError(
      absl::StrCat(kGonePrefix, "step ", setup.committed_step, " was committed in ", folder,
                   ", and no full step can be read there now; mount or restore the folder that holds it. To begin from "
                   "scratch on purpose: ",
                   setup.committed_by_another_job ? "delete what is left in that folder"
                                                  : "submit the job again with another or an emptied folder (by hand: "
                                                    "delete fence.json in the dump folder as well)")));
}

void plan_own_steps(storage::Files& files, const Setup& setup, const std::string& folder,
                    std::vector<Candidate>& plan) {
  const auto steps = list_steps(files, folder);
  if (!steps.ok()) {
    plan.push_back(failure(steps.status()));
    return;
  }
  const int64_t named = setup.config.load_step;
  for (auto at = steps->rbegin(); at != steps->rend(); ++at) {
    // A later attempt of a job that started from a named step resumes from what the job has saved since.
    if (!at->has_manifest || (named >= 0 && setup.attempt <= 1)) continue;
    plan.push_back({.from = From::kStep,
                    .source = Source::kCheckpoint,
                    .path = at->path,
                    .step = at->step,
                    .this_job = named >= 0});
  }
  if (must_find_a_step(setup, *steps)) {
    plan.push_back(gone(setup, folder));
  } else if (named >= 0) {
    const bool seed = named == 0;
    plan.push_back({.from = From::kStep,
                    .source = seed ? Source::kInitial : Source::kCheckpoint,
                    .path = step_path(folder, named),
                    .step = named,
                    .model_only = seed,
                    .required = true});
  } else if (!steps->empty() && steps->front().step == 0 && steps->front().has_manifest) {
    plan.push_back({.from = From::kStep,
                    .source = Source::kInitial,
                    .path = steps->front().path,
                    .step = 0,
                    .model_only = true,
                    .required = true});
  }
}

void plan_initial(storage::Files& files, const Setup& setup, std::vector<Candidate>& plan) {
  const config::CheckpointSection& config = setup.config;
  if (!config.initial_load_path && !config.initial_load_in_hf) return;
  const std::string path = config.initial_load_path.value_or(setup.hf_assets_path);
  const std::string key = config.initial_load_path ? "checkpoint.initial_load_path" : "model.hf_assets_path";
  const auto exists = [&](const char* name) { return files.exists(storage::join_path(path, name)); };
  // In a store, list() reports why the folder cannot be read.
  const absl::Status there = s3::is_location(path) ? files.list(path).status() : absl::OkStatus();
  if (!there.ok()) {
    plan.push_back(failure(annotate(there, key)));
  } else if (!files.is_folder(path)) {
    plan.push_back(failure(absl::NotFoundError(absl::StrCat(key, ": ", path, " is not a folder"))));
  } else if (config.initial_load_in_hf) {
    plan.push_back({.from = From::kHuggingFace,
                    .source = Source::kInitial,
                    .path = hf_config::weights_folder(files, path),
                    .model_only = true,
                    .required = true});
  } else if (exists(kManifestName)) {
    plan.push_back({.from = From::kStep,
                    .source = Source::kInitial,
                    .path = path,
                    .model_only = config.initial_load_model_only,
                    .required = true});
  } else if (exists(kDcpMetadataName)) {
    plan.push_back({.from = From::kDcp,
                    .source = Source::kInitial,
                    .path = path,
                    .model_only = config.initial_load_model_only,
                    .required = true});
  } else {
    if (const auto steps = list_steps(files, path); steps.ok()) {
      for (auto at = steps->rbegin(); at != steps->rend(); ++at) {
        if (!at->has_manifest && !at->has_dcp) continue;
        plan.push_back({.from = at->has_manifest ? From::kStep : From::kDcp,
                        .source = Source::kInitial,
                        .path = at->path,
                        .step = at->step,
                        .model_only = config.initial_load_model_only});
      }
    }
    plan.push_back(failure(absl::NotFoundError(absl::StrCat(
        key, ": no usable checkpoint in ", path,
        "; it must be a step-N folder with a manifest.json, or with a .metadata of torch.distributed.checkpoint, a "
        "folder of such folders, or Hugging Face weights with "
        "checkpoint.initial_load_in_hf = true"))));
  }
}

// Marks the steps that may be read directly into the live tensors: only an error, or another step that fills the same
// tensors, can follow them.
void mark_in_place(std::vector<Candidate>& plan) {
  bool safe = false;
  for (size_t i = plan.size(); i-- > 0;) {
    Candidate& one = plan[i];
    if (one.from == From::kError) {
      safe = true;
    } else if (one.from != From::kStep) {
      safe = false;
    } else {
      const bool next_is_alike =
          i + 1 < plan.size() && (plan[i + 1].from == From::kError || plan[i + 1].model_only == one.model_only);
      safe = one.required || (safe && next_is_alike);
      one.in_place = safe;
    }
  }
}

bool takes_tensors(const Candidate& candidate, const std::vector<std::string>& exclude) {
  const bool model = !contains(exclude, "model");
  return candidate.model_only ? model : model || !contains(exclude, "optimizer");
}

absl::StatusOr<StagedLoad> stage_hugging_face(storage::Files& files, const Candidate& candidate,
                                              const std::vector<Slice>& slices, const std::vector<std::string>& exclude,
                                              const HfMapper* hf) {
  if (contains(exclude, "model")) return StagedLoad{.tensors = std::vector<at::Tensor>(slices.size())};
  if (hf == nullptr) {
    return absl::FailedPreconditionError("checkpoint.initial_load_in_hf: this model has no Hugging Face names");
  }
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<HfFolder> weights, HfFolder::open(files, candidate.path));
  TITAN_RETURN_IF_ERROR(check_keys(*weights, *hf));
  StagedLoad staged;
  for (const Slice& slice : slices) {
    at::Tensor& out = staged.tensors.emplace_back();
    if (!is_model(slice) || slice.local.numel() == 0) continue;
    const std::string fqn = slice.key.substr(6);
    const Box piece{slice.offset, slice.size()};
    TITAN_ASSIGN_OR_RETURN(out, read_parameter(*weights, *hf, fqn, slice.shape, piece));
    if (candidate.tied_head && fqn == kEmbeddingName)
      TITAN_RETURN_IF_ERROR(check_hf_head(*weights, *hf, slice.shape, piece));
  }
  return staged;
}

// Returns 0 if the folder has no balance biases. No value if it has some, because it does not say how they were moved,
// or if the model has no experts.
absl::StatusOr<std::optional<double>> balance_of(const HfFolder& weights, const Setup& setup) {
  for (int64_t layer = 0; setup.model && layer < setup.model->n_layers; ++layer) {
    if (!setup.model->layer_has_experts(layer)) continue;
    TITAN_ASSIGN_OR_RETURN(const std::optional<HfLayout> bias,
                           layout_in(weights, *setup.hf, absl::StrCat("layers.", layer, ".moe.expert_bias")));
    return bias ? std::nullopt : std::optional(0.0);
  }
  return std::nullopt;
}

// Returns the train state's value, which it has if a job trained with another one than the flavor's, or else the
// model's.
std::optional<double> balance_of(const Manifest& manifest) {
  const auto moe = manifest.model.is_object() ? manifest.model.find("moe") : manifest.model.end();
  if (moe == manifest.model.end() || !moe->is_object()) return std::nullopt;
  const double of_model = moe->value("load_balance_coeff", models::MoeSpec{}.load_balance_coeff);
  return manifest.train_state.value("load_balance_coeff", of_model);
}

}  // namespace

bool checkpoints_are_gone(const absl::Status& status) {
  return absl::IsNotFound(status) && absl::StartsWith(status.message(), kGonePrefix);
}

nlohmann::json to_json(const Candidate& candidate) {
  return {{"from", static_cast<int>(candidate.from)},
          {"source", static_cast<int>(candidate.source)},
          {"path", candidate.path},
          {"step", candidate.step},
          {"model_only", candidate.model_only},
          {"required", candidate.required},
          {"tied_head", candidate.tied_head},
          {"in_place", candidate.in_place},
          {"vocabulary", candidate.vocabulary},
          {"manifest_crc", candidate.manifest_crc},
          {"load_balance_coeff",
           candidate.load_balance_coeff ? nlohmann::json(*candidate.load_balance_coeff) : nlohmann::json()},
          {"code", static_cast<int>(candidate.error.code())},
          {"message", std::string(candidate.error.message())}};
}

absl::StatusOr<Candidate> candidate_from_json(const nlohmann::json& json) {
  try {
    const nlohmann::json& balance = json.at("load_balance_coeff");
    return Candidate{.from = static_cast<From>(json.at("from").get<int>()),
                     .source = static_cast<Source>(json.at("source").get<int>()),
                     .path = json.at("path"),
                     .step = json.at("step"),
                     .model_only = json.at("model_only"),
                     .required = json.at("required"),
                     .in_place = json.at("in_place"),
                     .tied_head = json.at("tied_head"),
                     .load_balance_coeff = balance.is_null() ? std::nullopt : std::optional(balance.get<double>()),
                     .vocabulary = json.at("vocabulary"),
                     .manifest_crc = json.at("manifest_crc"),
                     .error = absl::Status(static_cast<absl::StatusCode>(json.at("code").get<int>()),
                                           json.at("message").get<std::string>())};
  } catch (const nlohmann::json::exception& error) {
    return absl::InternalError(absl::StrCat("rank 0's proposal cannot be read: ", error.what()));
  }
}

std::vector<Candidate> plan_load(storage::Files& files, const Setup& setup, const std::string& folder, StatePart part) {
  std::vector<Candidate> plan;
  if (setup.config.enable) {
    if (part != StatePart::kInitial) plan_own_steps(files, setup, folder, plan);
    if (part == StatePart::kResumed)
      std::erase_if(plan, [](const Candidate& one) { return one.source == Source::kInitial; });
    if (part != StatePart::kResumed) plan_initial(files, setup, plan);
  }
  plan.push_back({.from = From::kFresh, .source = Source::kFresh, .model_only = true});
  mark_in_place(plan);
  return plan;
}

std::string lost_steps_warning(const Setup& setup, const std::string& folder, const LoadResult& loaded) {
  if (!setup.config.enable || loaded.step >= setup.committed_step) return "";
  const std::string lost = absl::StrCat("step ", setup.committed_step, " was committed in ", folder);
  if (loaded.source == Source::kCheckpoint) {
    return absl::StrCat(lost, ", but the newest that can be read is step ", loaded.step,
                        ": training resumes from there");
  }
  if (setup.config.load_step >= 0) return "";  // The user chose this.
  return absl::StrCat(lost, " by an earlier job, and no step is left there: training starts from scratch");
}

namespace {

// Notes that the weights have fewer rows than the vocabulary, if the job allows it.
void note_vocabulary(const Setup& setup, const absl::StatusOr<int64_t>& stored, Candidate& candidate) {
  if (!setup.larger_vocabulary || !setup.model || !stored.ok() || *stored >= setup.model->vocab_size) return;
  candidate.vocabulary = *stored;
  candidate.warnings.push_back(absl::StrCat(candidate.path, ": has rows for ", *stored, " tokens; those of the ",
                                            setup.model->vocab_size - *stored,
                                            " more of model.override.vocab_size are drawn as in a new model"));
}

}  // namespace

absl::StatusOr<bool> inspect(storage::Files& files, const Setup& setup, Candidate& candidate) {
  candidate.tied_head = setup.model && setup.model->tied_embeddings;
  if (candidate.from == From::kHuggingFace) {
    if (setup.hf == nullptr || !takes_tensors(candidate, setup.config.exclude_from_loading)) return true;
    TITAN_ASSIGN_OR_RETURN(candidate.warnings, check_hf_config(files, candidate.path, *setup.hf, setup));
    TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<HfFolder> weights, HfFolder::open(files, candidate.path));
    for (std::string& note : quantization_notes(*weights, setup.config.initial_load_in_hf_quantized)) {
      candidate.warnings.push_back(std::move(note));
    }
    TITAN_ASSIGN_OR_RETURN(candidate.load_balance_coeff, balance_of(*weights, setup));
    if (setup.larger_vocabulary) note_vocabulary(setup, stored_vocabulary(*weights, *setup.hf), candidate);
    return true;
  }
  if (candidate.from == From::kDcp) {
    TITAN_RETURN_IF_ERROR(inspect_dcp(files, candidate));
    return true;
  }
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<StepReader> reader, StepReader::open(files, candidate.path));
  const Manifest& manifest = reader->manifest();
  if (candidate.step >= 0 && manifest.step != candidate.step) {
    return absl::DataLossError(absl::StrCat(candidate.path, "/", kManifestName, ": belongs to step ", manifest.step));
  }
  candidate.step = manifest.step;
  candidate.manifest_crc = reader->manifest_crc();
  if (candidate.this_job && (manifest.job_uid != setup.job_uid || manifest.load_step != setup.config.load_step))
    return false;
  if (!manifest.full && !candidate.model_only) {
    if (!candidate.required) return false;
    return absl::FailedPreconditionError(
        absl::StrCat(candidate.path,
                     " is a model-only export, not a resume point; to start from its weights name it in "
                     "checkpoint.initial_load_path"));
  }
  if (setup.model && takes_tensors(candidate, setup.config.exclude_from_loading)) {
    const bool own = candidate.source == Source::kCheckpoint;
    TITAN_ASSIGN_OR_RETURN(candidate.warnings,
                           check_model(manifest, *setup.model, own ? Use::kResume : Use::kInitial, candidate.path,
                                       own ? "set model.name and model.flavor to the step's, or another job.dump_folder"
                                           : "set model.name and model.flavor to the step's, or load another one",
                                       !own && setup.larger_vocabulary));
    if (!own) note_vocabulary(setup, stored_vocabulary(manifest), candidate);
    candidate.load_balance_coeff = balance_of(manifest);
  }
  return true;
}

bool may_try_older_step(const Candidate& candidate, const absl::Status& why) {
  if (absl::IsFailedPrecondition(why) || is_rank_lost(why)) return false;
  return !s3::is_location(candidate.path) || absl::IsDataLoss(why) || absl::IsNotFound(why);
}

absl::StatusOr<StagedLoad> stage_load(storage::Files& files, const Candidate& candidate,
                                      const std::vector<Slice>& slices, const std::vector<std::string>& exclude,
                                      const HfMapper* hf, StepReading reading) {
  switch (candidate.from) {
    case From::kStep:
      return load_step(files, candidate, slices, exclude, reading);
    case From::kHuggingFace:
      return stage_hugging_face(files, candidate, slices, exclude, hf);
    case From::kDcp:
      return stage_dcp(files, candidate, slices, exclude);
    case From::kFresh:
      return StagedLoad{.tensors = std::vector<at::Tensor>(slices.size())};
    case From::kError:
      break;
  }
  return candidate.error;
}

void fill_slices(std::vector<Slice>& slices, StagedLoad& staged) {
  for (size_t i = 0; i < staged.tensors.size(); ++i) {
    const at::Tensor read = std::exchange(staged.tensors[i], at::Tensor());
    if (read.defined()) fill_slice(slices[i], read);
  }
}

void fill_slice(const Slice& slice, const at::Tensor& read) {
  const at::NoGradGuard no_grad;
  if (slice.local.numel() == 0) return;
  if (slice.store) {
    slice.store(read);
  } else {
    slice.local.copy_(slice.form == nullptr ? read : slice.form->kept(read));
  }
}

nlohmann::json without_excluded(nlohmann::json train_state, const std::vector<std::string>& exclude) {
  for (const char* member : {"lr_scheduler", "dataloader"}) {
    if (contains(exclude, member)) train_state.erase(member);
  }
  if (contains(exclude, "train_state")) {
    nlohmann::json kept = nlohmann::json::object();
    for (const char* member : {"lr_scheduler", "dataloader"}) {
      if (train_state.contains(member)) kept[member] = train_state[member];
    }
    return kept;
  }
  return train_state;
}

}  // namespace titan::checkpoint

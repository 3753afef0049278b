#pragma once

// Lists what a load tries, in order, and reads one rank's part of a candidate. In load_agreement.h the ranks agree on
// one.

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"
#include "worker/rank/checkpoint/shards/step_reader.h"
#include "worker/rank/checkpoint/steps/setup.h"

namespace titan::checkpoint {

// One source of a load, which rank 0 proposes to all ranks.
struct Candidate {
  enum class From { kStep, kHuggingFace, kDcp, kFresh, kError };
  From from = From::kFresh;
  Source source = Source::kFresh;
  std::string path;
  int64_t step = -1;        // Step of the folder, which its manifest must confirm; -1: the manifest decides.
  bool model_only = false;  // Load only the model's tensors.
  bool required = false;    // If it is unusable, load() fails. Otherwise it is rejected and the next one is proposed.
  bool in_place = false;    // kStep: read directly into the live tensors, because any successor fills the same ones.
  bool tied_head = false;   // Another program's head must equal the embedding. Set by inspect().
  bool this_job = false;    // Skip unless this job wrote it after it started from the same load_step.
  std::optional<double> load_balance_coeff;  // For LoadResult. Set by inspect().
  std::vector<std::string> warnings;         // For the log. Set by inspect().
  int64_t vocabulary = 0;                    // Above 0: only so many rows are stored. Set by inspect().
  uint32_t manifest_crc = 0;                 // Every rank must see this manifest. Set by inspect().
  absl::Status error;                        // kError: the result of load().
};
nlohmann::json to_json(const Candidate& candidate);
absl::StatusOr<Candidate> candidate_from_json(const nlohmann::json& json);

// Lists the candidates in order of precedence; kFresh comes last, and nothing after a kError is tried. Looks only at
// the names of files.
std::vector<Candidate> plan_load(storage::Files& files, const Setup& setup, const std::string& folder,
                                 StatePart part = StatePart::kAll);

// Returns a warning if a load did not restore the newest committed step; otherwise an empty text.
std::string lost_steps_warning(const Setup& setup, const std::string& folder, const LoadResult& loaded);

// Rank 0, before it proposes a kStep, kHuggingFace or kDcp: checks that it is this model's, reads a step's manifest and
// sets step and manifest_crc. Returns false if it is to be skipped silently: a model-only export, which is not a resume
// point, or another job's step under this_job.
absl::StatusOr<bool> inspect(storage::Files& files, const Setup& setup, Candidate& candidate);

// Returns whether an older step may succeed where one failed like this. Not if the step does not fit, or a rank is
// lost, or a store does not answer or refuses: its content is unchanged, and falling back would train the same steps a
// second time.
bool may_try_older_step(const Candidate& candidate, const absl::Status& why);

// The result of reading one rank's part.
struct StagedLoad {
  // One per slice, `[slice.size()...]`; undefined where nothing is loaded. Empty for a step of Titan, which goes
  // directly into the slices.
  std::vector<at::Tensor> tensors;
  std::vector<std::string> held;  // The candidate's model tensors, the same on every rank.
  std::vector<size_t> unclaimed;  // Indices in `held` of those that this rank has no slice of, ascending.
  int64_t step = 0;
  nlohmann::json train_state = nlohmann::json::object();
  std::vector<nlohmann::json> per_rank;
};

// How a step of Titan, which is not staged, is read.
enum class StepReading {
  kVerify,  // Verify the checksums of all bytes that would be read; the slices stay unchanged.
  kFill,    // Read into the slices. After an error they are partly filled.
};

// Reads this rank's part of a candidate. Errors: FailedPrecondition if the tensors do not fit the slices; anything else
// if they cannot be read.
absl::StatusOr<StagedLoad> stage_load(storage::Files& files, const Candidate& candidate,
                                      const std::vector<Slice>& slices, const std::vector<std::string>& exclude,
                                      const HfMapper* hf, StepReading reading);

// Copies the staged tensors into the live ones, and releases them.
void fill_slices(std::vector<Slice>& slices, StagedLoad& staged);
// Does the same for one slice; `read` is `[slice.size()...]`.
void fill_slice(const Slice& slice, const at::Tensor& read);

// Removes what `exclude` names from a saved train state: "lr_scheduler" and "dataloader" are members, "train_state" is
// the rest.
nlohmann::json without_excluded(nlohmann::json train_state, const std::vector<std::string>& exclude);

}  // namespace titan::checkpoint

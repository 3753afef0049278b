#pragma once

// Lists what a load tries, in which order, and reads one rank's part of a candidate. How the ranks agree on one is in
// load_agreement.h.

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"
#include "worker/rank/checkpoint/shards/step_reader.h"
#include "worker/rank/checkpoint/steps/setup.h"

namespace titan::checkpoint {

// One thing that rank 0 proposes to all ranks.
struct Candidate {
  enum class From { kStep, kHuggingFace, kDcp, kFresh, kError };
  From from = From::kFresh;
  Source source = Source::kFresh;
  std::string path;
  int64_t step = -1;        // Of a step folder, which its manifest must confirm; -1: whatever the manifest says.
  bool model_only = false;  // Take the model's tensors alone.
  bool required = false;    // Unusable: an error. Otherwise it is rejected and the next one is proposed.
  bool in_place = false;    // kStep: read into the live tensors at once, since whatever may follow fills the same ones.
  bool tied_head = false;   // The head's matrix in another program's is the embedding once more. Filled by inspect().
  bool this_job = false;    // Skipped unless this job wrote it after it started from the same load_step.
  std::optional<double> load_balance_coeff;  // LoadResult's. Filled by inspect().
  std::vector<std::string> warnings;         // Filled by inspect(), for whoever reads the log.
  uint32_t manifest_crc = 0;                 // Filled by inspect(): every rank must see this manifest.
  absl::Status error;                        // kError: what load() returns.
};
nlohmann::json to_json(const Candidate& candidate);
absl::StatusOr<Candidate> candidate_from_json(const nlohmann::json& json);

// In order of precedence, ending with kFresh or kError. Looks at names only.
std::vector<Candidate> plan_load(storage::Files& files, const Setup& setup, const std::string& folder,
                                 Part part = Part::kAll);

// What a user must hear of a load that did not bring back the newest committed step; empty when it did.
std::string lost_steps_warning(const Setup& setup, const std::string& folder, const LoadResult& loaded);

// Rank 0, before it proposes a kStep, kHuggingFace or kDcp: looks whether it is this model's, reads a step's manifest
// and fills in step and manifest_crc. False: to be skipped in silence (a model-only export is no resume point).
absl::StatusOr<bool> inspect(storage::Files& files, const Setup& setup, Candidate& candidate);

// Whether an older step may fare better than one that failed so. Not where it is a store that does not answer or
// refuses: what is in there is as it was, and would be trained once more.
bool is_the_steps_fault(const Candidate& candidate, const absl::Status& why);

// What a rank read.
struct StagedLoad {
  // One per slice, undefined where nothing is loaded; none at all of a step of ours, which goes to the slices itself.
  std::vector<at::Tensor> tensors;
  std::vector<std::string> held;  // The candidate's model tensors, the same on every rank.
  std::vector<size_t> unclaimed;  // The numbers of those that this rank has no slice of, ascending.
  int64_t step = 0;
  nlohmann::json train_state = nlohmann::json::object();
  std::vector<nlohmann::json> per_rank;
};

// What is done with a step of ours, which is not staged.
enum class StepReading {
  kVerify,  // Every byte that would be read, with its checksum; the slices stay as they are.
  kFill,    // Into the slices. After an error they are filled in parts.
};

// Errors: FailedPrecondition when the tensors do not fit the slices; anything else when they cannot be read.
absl::StatusOr<StagedLoad> stage_load(storage::Files& files, const Candidate& candidate,
                                      const std::vector<Slice>& slices, const std::vector<std::string>& exclude,
                                      const HfMapper* hf, StepReading reading);

// Puts what was read into the live tensors, and lets go of it.
void fill_slices(std::vector<Slice>& slices, StagedLoad& staged);
void fill_slice(const Slice& slice, const at::Tensor& read);

// Drops what `exclude` names from a saved train state: "lr_scheduler" and "dataloader" are members, "train_state" is
// the rest.
nlohmann::json without_excluded(nlohmann::json train_state, const std::vector<std::string>& exclude);

}  // namespace titan::checkpoint

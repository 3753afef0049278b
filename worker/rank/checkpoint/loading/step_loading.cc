#include "worker/rank/checkpoint/loading/step_loading.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/checkpoint/saving/staging.h"
#include "worker/rank/checkpoint/shards/box.h"
#include "worker/rank/checkpoint/shards/model_mismatch.h"
#include "worker/rank/checkpoint/shards/step_reader.h"

namespace titan::checkpoint {
namespace {

// A slice that is loaded, and where it lies in the step.
struct Loading {
  const Slice* slice = nullptr;
  const TensorRecord* record = nullptr;

  Box box() const { return {slice->offset, slice->size()}; }
  bool plain() const { return slice->form == nullptr && !slice->store; }
  int64_t bytes() const { return box().elements() * static_cast<int64_t>(c10::elementSize(record->dtype)); }
};

bool excludes(const std::vector<std::string>& exclude, const char* name) {
  return std::find(exclude.begin(), exclude.end(), name) != exclude.end();
}

// What is not in the step, or has another shape there, is an error before anything is read.
absl::StatusOr<const TensorRecord*> find_record(const Candidate& candidate, const Manifest& manifest,
                                                const Slice& slice) {
  const TensorRecord* record = manifest.find(slice.key);
  if (record == nullptr && is_model(slice)) {
    return absl::FailedPreconditionError(absl::StrCat(candidate.path, kDoesNotFit, ": it has no ", slice.key));
  }
  if (record == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(candidate.path, " is of another optimizer: it has no ", slice.key,
                     "; put \"optimizer\" into checkpoint.exclude_from_loading to begin its state anew"));
  }
  if (record->shape != slice.shape) {
    return absl::FailedPreconditionError(absl::StrCat(candidate.path, kDoesNotFit, ": ", slice.key, " is ",
                                                      shape_text(record->shape), " there and ", shape_text(slice.shape),
                                                      " here"));
  }
  return record;
}

absl::StatusOr<std::vector<Loading>> choose(const Candidate& candidate, const Manifest& manifest,
                                            const std::vector<Slice>& slices, const std::vector<std::string>& exclude) {
  std::vector<Loading> chosen;
  for (const Slice& slice : slices) {
    if (candidate.model_only && !is_model(slice)) continue;
    if (excludes(exclude, is_model(slice) ? "model" : "optimizer")) continue;
    TITAN_ASSIGN_OR_RETURN(const TensorRecord* record, find_record(candidate, manifest, slice));
    chosen.push_back({&slice, record});
  }
  return chosen;
}

absl::Status fill_forms(StepReader& reader, const std::vector<const Loading*>& some) {
  std::vector<at::Tensor> numbers;
  numbers.reserve(some.size());  // They are pointed to.
  std::vector<Wanted> wanted;
  for (const Loading* one : some) {
    const Box box = one->box();
    numbers.push_back(at::empty(box.shape, at::TensorOptions().dtype(one->record->dtype)));
    wanted.push_back({one->record, box, &numbers.back()});
  }
  TITAN_RETURN_IF_ERROR(reader.read(wanted));
  for (size_t i = 0; i < some.size(); ++i) fill_slice(*some[i]->slice, numbers[i]);
  return absl::OkStatus();
}

absl::Status fill_all_forms(StepReader& reader, const std::vector<Loading>& chosen) {
  std::vector<const Loading*> some;
  int64_t bytes = 0;
  for (const Loading& one : chosen) {
    if (one.plain()) continue;
    if (!some.empty() && bytes + one.bytes() > kFormsMemory) {
      TITAN_RETURN_IF_ERROR(fill_forms(reader, some));
      some.clear();
      bytes = 0;
    }
    some.push_back(&one);
    bytes += one.bytes();
  }
  return fill_forms(reader, some);
}

absl::Status read(StepReader& reader, const std::vector<Loading>& chosen, StepReading reading) {
  std::vector<Wanted> wanted;
  for (const Loading& one : chosen) {
    if (reading == StepReading::kVerify) {
      wanted.push_back({one.record, one.box(), nullptr});
    } else if (one.plain()) {
      wanted.push_back({one.record, one.box(), &one.slice->local});
    }
  }
  TITAN_RETURN_IF_ERROR(reader.read(wanted));
  return reading == StepReading::kFill ? fill_all_forms(reader, chosen) : absl::OkStatus();
}

// The step's tensors of the model, and those that no slice is of.
void hold_tensors(const Manifest& manifest, const std::vector<Slice>& slices, StagedLoad& staged) {
  std::set<std::string> claimed;
  for (const Slice& slice : slices) claimed.insert(slice.key);
  for (const TensorRecord& tensor : manifest.tensors) {
    if (!absl::StartsWith(tensor.key, "model.")) continue;
    if (!claimed.contains(tensor.key)) staged.unclaimed.push_back(staged.held.size());
    staged.held.push_back(tensor.key);
  }
}

}  // namespace

absl::StatusOr<StagedLoad> load_step(storage::Files& files, const Candidate& candidate,
                                     const std::vector<Slice>& slices, const std::vector<std::string>& exclude,
                                     StepReading reading) {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<StepReader> reader, StepReader::open(files, candidate.path));
  const Manifest& manifest = reader->manifest();
  if (reader->manifest_crc() != candidate.manifest_crc) {
    return absl::DataLossError(absl::StrCat(candidate.path, ": this rank sees another manifest than rank 0"));
  }
  TITAN_ASSIGN_OR_RETURN(const std::vector<Loading> chosen, choose(candidate, manifest, slices, exclude));
  TITAN_RETURN_IF_ERROR(read(*reader, chosen, reading));
  StagedLoad staged{.step = manifest.step};
  if (!excludes(exclude, "model")) hold_tensors(manifest, slices, staged);
  if (!candidate.model_only) {
    staged.train_state = without_excluded(manifest.train_state, exclude);
    if (!excludes(exclude, "dataloader")) staged.per_rank = manifest.per_rank;
  }
  return staged;
}

}  // namespace titan::checkpoint

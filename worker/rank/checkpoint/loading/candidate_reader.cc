#include "worker/rank/checkpoint/loading/candidate_reader.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/checkpoint/formats/dcp/dcp_folder.h"
#include "worker/rank/checkpoint/formats/dcp/dcp_torchtitan.h"
#include "worker/rank/checkpoint/formats/hugging_face/tied_head.h"
#include "worker/rank/checkpoint/saving/staging.h"
#include "worker/rank/checkpoint/shards/model_mismatch.h"
#include "worker/rank/checkpoint/shards/step_reader.h"
#include "worker/rank/checkpoint/shards/tensor_box.h"

namespace titan::checkpoint {
namespace {

// A slice to load, and its record in the step.
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

// Returns the step's record of the slice. FailedPrecondition, before anything is read, if the step lacks the tensor or
// has another shape.
absl::StatusOr<const TensorRecord*> find_record(const Candidate& candidate, const Manifest& manifest,
                                                const Slice& slice) {
  const TensorRecord* record = manifest.find(slice.key);
  if (record == nullptr && is_model(slice)) {
    return absl::FailedPreconditionError(absl::StrCat(candidate.path, kDoesNotFit, ": it has no ", slice.key));
  }
  if (record == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(candidate.path, " was saved with another optimizer: it has no ", slice.key,
                     "; put \"optimizer\" into checkpoint.exclude_from_loading to start with a new optimizer state"));
  }
  if (record->shape != slice.shape) {
    return absl::FailedPreconditionError(absl::StrCat(candidate.path, kDoesNotFit, ": ", slice.key, " is ",
                                                      shape_text(record->shape), " in the checkpoint, but ",
                                                      shape_text(slice.shape), " in the configuration"));
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
  numbers.reserve(some.size());  // Keeps pointers to the elements valid.
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

// Collects the step's tensors of the model, and those that no slice belongs to.
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
    return absl::DataLossError(absl::StrCat(
        candidate.path, ": this rank reads a different manifest than rank 0; check that all ranks share the folder"));
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

namespace {

constexpr char kOurModel[] = "model.";

bool lists(const std::vector<std::string>& list, const char* name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

absl::Status misfit(const std::string& path, const Slice& slice, const std::string& there) {
  if (is_model(slice)) {
    return absl::FailedPreconditionError(absl::StrCat(path, kDoesNotFit, ": it has no ", there));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(path, " was saved with another optimizer: it has no ", there,
                   "; put \"optimizer\" into checkpoint.exclude_from_loading to start with a new optimizer state"));
}

// Returns the optimizer's step count. torch counts steps per parameter, so all counts have to be the same.
absl::StatusOr<at::Tensor> step_count(DcpFolder& folder, const std::vector<Slice>& slices) {
  const DcpNames names(folder.metadata());
  at::Tensor count;
  std::string first;
  const auto look = [&](const std::string& key) -> absl::Status {
    TITAN_ASSIGN_OR_RETURN(const at::Tensor one, folder.read(key, {}));
    if (one.numel() != 1)
      return absl::FailedPreconditionError(absl::StrCat(folder.folder(), ": ", key, " is not a single number"));
    if (!count.defined()) {
      count = one;
      first = key;
    } else if (one.item<double>() != count.item<double>()) {
      return absl::FailedPreconditionError(absl::StrCat(
          folder.folder(), ": ", first, " is ", count.item<double>(), " and ", key, " is ", one.item<double>(),
          ": the parameters were not trained together; put \"optimizer\" into checkpoint.exclude_from_loading"));
    }
    return absl::OkStatus();
  };
  for (const Slice& slice : slices) {
    const std::string key = names.of(absl::StrCat("optim.step.", slice.key.substr(sizeof kOurModel - 1)));
    if (is_model(slice) && folder.metadata().tensors.contains(key)) TITAN_RETURN_IF_ERROR(look(key));
  }
  if (count.defined()) return count;
  for (const auto& [key, tensor] : folder.metadata().tensors) {  // For a rank without parameters.
    if (!absl::StartsWith(key, kDcpOptimizer) || !absl::EndsWith(key, ".step")) continue;
    TITAN_RETURN_IF_ERROR(look(key));
    return count;
  }
  return absl::FailedPreconditionError(absl::StrCat(
      folder.folder(), ": has no ", kDcpOptimizer, "*.step: it holds no optimizer; put \"optimizer\" into ",
      "checkpoint.exclude_from_loading, or set checkpoint.initial_load_model_only = true"));
}

absl::StatusOr<at::Tensor> read_slice(DcpFolder& folder, const std::vector<Slice>& slices, const Slice& slice) {
  if (slice.key == "optim.step") return step_count(folder, slices);
  const std::string key = DcpNames(folder.metadata()).of(slice.key);
  const auto found = folder.metadata().tensors.find(key);
  if (found == folder.metadata().tensors.end()) return misfit(folder.folder(), slice, key);
  if (found->second.shape != slice.shape) {
    return absl::FailedPreconditionError(absl::StrCat(folder.folder(), kDoesNotFit, ": ", key, " is ",
                                                      shape_text(found->second.shape), " in the checkpoint, but ",
                                                      shape_text(slice.shape), " in the configuration"));
  }
  return folder.read(key, {slice.offset, slice.size()});
}

// Checks a tied head: its piece must equal `read`, the same piece of the embedding.
absl::Status check_head(DcpFolder& folder, const Slice& embedding, const at::Tensor& read) {
  const DcpNames names(folder.metadata());
  const std::string head = names.of(absl::StrCat(kOurModel, kHeadName));
  const auto found = folder.metadata().tensors.find(head);
  if (found == folder.metadata().tensors.end()) return absl::OkStatus();
  if (found->second.shape == embedding.shape) {
    TITAN_ASSIGN_OR_RETURN(const at::Tensor there, folder.read(head, {embedding.offset, embedding.size()}));
    if (at::equal(there, read)) return absl::OkStatus();
  }
  return untied_head_error(folder.folder(), head, names.of(embedding.key));
}

}  // namespace

absl::Status inspect_dcp(storage::Files& files, Candidate& candidate) {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<DcpFolder> folder, DcpFolder::open(files, candidate.path));
  candidate.manifest_crc = folder->metadata_crc();
  if (candidate.model_only) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(const nlohmann::json state, dcp_train_state(*folder));
  candidate.step = state.at("step");
  return absl::OkStatus();
}

absl::StatusOr<StagedLoad> stage_dcp(storage::Files& files, const Candidate& candidate,
                                     const std::vector<Slice>& slices, const std::vector<std::string>& exclude) {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<DcpFolder> folder, DcpFolder::open(files, candidate.path));
  if (folder->metadata_crc() != candidate.manifest_crc) {
    return absl::DataLossError(
        absl::StrCat(candidate.path, ": this rank reads a different ", kDcpMetadataName, " than rank 0"));
  }
  StagedLoad staged;
  std::set<std::string> claimed;
  for (const Slice& slice : slices) {
    at::Tensor& out = staged.tensors.emplace_back();
    claimed.insert(slice.key);
    if (candidate.model_only && !is_model(slice)) continue;
    if (lists(exclude, is_model(slice) ? "model" : "optimizer")) continue;
    TITAN_ASSIGN_OR_RETURN(out, read_slice(*folder, slices, slice));
    if (candidate.tied_head && slice.key == absl::StrCat(kOurModel, kEmbeddingName))
      TITAN_RETURN_IF_ERROR(check_head(*folder, slice, out));
  }
  const DcpNames names(folder->metadata());
  for (const auto& [there, tensor] : folder->metadata().tensors) {
    const std::string key = names.model_key(there);
    if (key.empty() || is_derived(key) || lists(exclude, "model")) continue;
    if (candidate.tied_head && key == absl::StrCat(kOurModel, kHeadName)) continue;  // It is a copy of the embedding.
    staged.held.push_back(key);
  }
  std::sort(staged.held.begin(), staged.held.end());
  for (size_t i = 0; i < staged.held.size(); ++i) {
    if (!claimed.contains(staged.held[i])) staged.unclaimed.push_back(i);
  }
  if (candidate.model_only) return staged;
  TITAN_ASSIGN_OR_RETURN(staged.train_state, dcp_train_state(*folder));
  staged.step = staged.train_state.at("step");
  staged.train_state = without_excluded(std::move(staged.train_state), exclude);
  return staged;
}

}  // namespace titan::checkpoint

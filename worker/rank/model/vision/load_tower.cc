#include "worker/rank/model/vision/load_tower.h"

#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status/status.h"
#include "common/plan/hf_config/vision.h"
#include "common/plan/models/vision.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"
#include "worker/rank/checkpoint/loading/load_candidate.h"
#include "worker/rank/model/vision/hf_names.h"

namespace titan::model {
namespace {

absl::Status misfit(const auto&... words) { return absl::FailedPreconditionError(absl::StrCat(words...)); }

// Compares the folder's config.json, if there is one, with the tower: some of its numbers are in no tensor's shape.
absl::StatusOr<std::vector<std::string>> check_config(storage::Files& files, const std::string& folder,
                                                      const models::VisionSpec& spec) {
  const std::string path = storage::join_path(folder, "config.json");
  if (!files.exists(path)) return std::vector<std::string>{};
  TITAN_ASSIGN_OR_RETURN(const std::string text, storage::read_file(files, path, 1 << 24));
  const auto there = hf_config::read_vision(nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false));
  if (!there.ok()) return misfit(storage::join_path(folder, ""), there.status().message());
  if (const std::string found = hf_config::tower_differences(there->spec, spec); !found.empty())
    return misfit(path, " says ", found);
  std::vector<std::string> notes;
  for (const std::string& note : there->notes) notes.push_back(absl::StrCat(path, ": ", note));
  return notes;
}

// A tower with more layers would lose them silently.
absl::Status check_tower_keys(const checkpoint::HfFolder& weights, const checkpoint::HfMapper& mapper) {
  for (const std::string& key : weights.keys()) {
    if (absl::StartsWith(key, "vision_model.") && !mapper.knows(key))
      return misfit(weights.folder(), ": has ", key, ", which this model's vision tower does not have");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> load_tower(storage::Files& files, const std::string& folder,
                                                    const models::VisionSpec& spec,
                                                    const std::vector<checkpoint::Slice>& slices) {
  if (!files.is_folder(folder)) return absl::NotFoundError(absl::StrCat(folder, " is not a folder"));
  TITAN_ASSIGN_OR_RETURN(std::vector<std::string> notes, check_config(files, folder, spec));
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<checkpoint::HfFolder> weights,
                         checkpoint::HfFolder::open(files, folder));
  const std::unique_ptr<checkpoint::HfMapper> mapper = make_vision_hf_mapper(spec);
  TITAN_RETURN_IF_ERROR(check_tower_keys(*weights, *mapper));
  for (const checkpoint::Slice& slice : slices) {
    const std::string fqn(absl::StripPrefix(slice.key, "model."));
    if (fqn == slice.key || !models::is_vision_parameter(fqn)) continue;
    TITAN_ASSIGN_OR_RETURN(const at::Tensor piece, checkpoint::read_parameter(*weights, *mapper, fqn, slice.shape,
                                                                              {slice.offset, slice.size()}));
    if (piece.defined()) checkpoint::fill_slice(slice, piece);
  }
  return notes;
}

}  // namespace titan::model

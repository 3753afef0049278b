#include "worker/rank/model/encoders/frozen_weights.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "worker/rank/checkpoint/shards/model_mismatch.h"

namespace titan::encoders {
namespace {

using checkpoint::Box;
using checkpoint::HfFolder;

constexpr const char* kWholeFiles[] = {"model.safetensors", "diffusion_pytorch_model.safetensors", "ae.safetensors"};
constexpr const char* kOtherFormats[] = {".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf"};
constexpr size_t kShownNames = 3;

bool of_other_format(const std::string& name) {
  return std::any_of(std::begin(kOtherFormats), std::end(kOtherFormats),
                     [&](const char* ending) { return absl::EndsWith(name, ending); });
}

absl::Status other_format(const std::string& path) {
  return absl::FailedPreconditionError(
      absl::StrCat(path,
                   ": only safetensors are read for frozen encoders; load it with the library that wrote it and "
                   "save it with save_pretrained(), which writes safetensors"));
}

// Returns the file that holds all of a folder's weights, or an empty text.
std::string whole_file(storage::Files& files, const std::string& folder) {
  for (const char* name : kWholeFiles) {
    std::string path = storage::join_path(folder, name);
    if (files.exists(path)) return path;
  }
  return "";
}

// Returns an error if the folder has only weights in other formats.
absl::Status check_format(storage::Files& files, const std::string& folder) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.list(folder));
  const auto other = std::find_if(names.begin(), names.end(), of_other_format);
  const bool has_tensors =
      std::any_of(names.begin(), names.end(), [](const auto& name) { return absl::EndsWith(name, ".safetensors"); });
  return other == names.end() || has_tensors ? absl::OkStatus() : other_format(storage::join_path(folder, *other));
}

// A shape without the ones at its end, down to `least` dims.
std::vector<int64_t> without_ones(std::vector<int64_t> shape, size_t least) {
  while (shape.size() > least && shape.back() == 1) shape.pop_back();
  return shape;
}

bool same_numbers_in(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  const size_t least = std::min(a.size(), b.size());
  return without_ones(a, least) == without_ones(b, least);
}

// Returns the box with as many dims as the file's shape, which differs from its own by ones at the end.
Box in_file(Box box, size_t dims) {
  box.offset.resize(dims, 0);
  box.shape.resize(dims, 1);
  return box;
}

std::string some_of(const std::vector<std::string>& names) {
  const auto shown = static_cast<int64_t>(std::min(names.size(), kShownNames));
  return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + shown, ", "),
                      names.size() > kShownNames ? absl::StrCat(" and ", names.size() - kShownNames, " more") : "");
}

bool starts_any(const std::vector<std::string>& names, const std::string& prefix) {
  return std::any_of(names.begin(), names.end(), [&](const auto& name) { return absl::StartsWith(name, prefix); });
}

// "encoder" for "encoder.conv_in.weight", and "decoder" in return.
std::string other_half(const std::string& half) { return half == "encoder" ? "decoder" : "encoder"; }

}  // namespace

absl::StatusOr<std::unique_ptr<HfFolder>> open_weights(storage::Files& files, const std::string& path) {
  if (!files.exists(path)) return absl::NotFoundError(absl::StrCat(path, ": no such file or folder of weights"));
  if (!files.is_folder(path)) {
    if (of_other_format(path)) return other_format(path);
    return HfFolder::open_file(files, path);
  }
  if (!files.exists(storage::join_path(path, checkpoint::kHfIndexName))) {
    if (const std::string whole = whole_file(files, path); !whole.empty()) return HfFolder::open_file(files, whole);
    TITAN_RETURN_IF_ERROR(check_format(files, path));
  }
  return HfFolder::open(files, path);
}

FrozenWeights::FrozenWeights(std::unique_ptr<HfFolder> files, WeightNames names)
    : files_(std::move(files)), names_(std::move(names)) {}

absl::Status FrozenWeights::missing(const std::string& fqn) const {
  const std::string half = fqn.substr(0, fqn.find('.')), other = other_half(half);
  const bool only_other = (half == "encoder" || half == "decoder") && !starts_any(files_->keys(), half + ".") &&
                          starts_any(files_->keys(), other + ".");
  const std::string has = only_other ? absl::StrCat("; it has only the weights of the ", other)
                                     : absl::StrCat("; it has ", some_of(files_->keys()));
  return absl::FailedPreconditionError(absl::StrCat(path(), checkpoint::kDoesNotFit, ": no tensor ",
                                                    absl::StrJoin(names_.candidates(fqn), " or "), " of ", names_.model,
                                                    has));
}

absl::StatusOr<std::string> FrozenWeights::key_of(const nn::Parameter& parameter) const {
  for (std::string& key : names_.candidates(parameter.fqn)) {
    if (!files_->has(key)) continue;
    TITAN_ASSIGN_OR_RETURN(const checkpoint::Coded coded, files_->coded(key));
    if (same_numbers_in(coded.shape, parameter.global_shape)) return std::move(key);
    return absl::FailedPreconditionError(absl::StrCat(path(), checkpoint::kDoesNotFit, ": ", names_.model, " needs ",
                                                      checkpoint::shape_text(parameter.global_shape), ", tensor ", key,
                                                      " is ", checkpoint::shape_text(coded.shape)));
  }
  return missing(parameter.fqn);
}

absl::Status FrozenWeights::check_strangers(const std::vector<nn::Parameter*>& parameters) const {
  std::set<std::string> known;
  for (const nn::Parameter* parameter : parameters) {
    for (std::string& key : names_.candidates(parameter->fqn)) known.insert(std::move(key));
  }
  std::vector<std::string> strangers;
  for (const std::string& key : files_->keys()) {
    const auto begins = [&](const std::string& unused) { return absl::StartsWith(key, unused); };
    if (known.contains(key) || known.contains(checkpoint::scaled_by(key))) continue;
    if (std::none_of(names_.unused.begin(), names_.unused.end(), begins)) strangers.push_back(key);
  }
  if (strangers.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(path(), checkpoint::kDoesNotFit, ": ", names_.model,
                                                    " of this configuration has no place for ", strangers.size(),
                                                    " of its tensors: ", some_of(strangers)));
}

absl::Status FrozenWeights::check(const std::vector<nn::Parameter*>& parameters) const {
  for (const nn::Parameter* parameter : parameters) TITAN_RETURN_IF_ERROR(key_of(*parameter).status());
  return check_strangers(parameters);
}

absl::StatusOr<at::Tensor> FrozenWeights::read(const nn::Parameter& parameter, const Box& box) const {
  TITAN_ASSIGN_OR_RETURN(const std::string key, key_of(parameter));
  TITAN_ASSIGN_OR_RETURN(const checkpoint::Coded coded, files_->coded(key));
  TITAN_ASSIGN_OR_RETURN(const at::Tensor there, files_->read(key, in_file(box, coded.shape.size())));
  return there.reshape(box.shape);
}

}  // namespace titan::encoders

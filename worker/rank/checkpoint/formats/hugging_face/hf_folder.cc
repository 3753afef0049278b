#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"
#include "worker/rank/checkpoint/shards/model_mismatch.h"

namespace titan::checkpoint {
namespace {

// Returns whether the name leads out of the folder.
bool leads_out(const std::string& name) {
  const std::filesystem::path path(name);
  return name.empty() || path.is_absolute() || std::find(path.begin(), path.end(), "..") != path.end();
}

// Returns the file of each key, from the text of the index at `path`.
absl::StatusOr<std::map<std::string, std::string>> read_index(const std::string& path, const std::string& text) {
  const nlohmann::json index = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return absl::DataLossError(absl::StrCat(path, ": no \"weight_map\" object in it"));
  }
  std::map<std::string, std::string> map;
  for (const auto& [key, file] : index["weight_map"].items()) {
    if (!file.is_string() || leads_out(file.get<std::string>()))
      return absl::DataLossError(absl::StrCat(path, ": \"weight_map\" names no file of this folder for ", key));
    map[key] = file.get<std::string>();
  }
  return map;
}

// Checks by the files' names that none is missing, "...-00001-of-00003.safetensors": without an index nothing else
// shows it.
absl::Status check_complete(const std::string& folder, const std::vector<std::string>& names) {
  std::map<std::string, int> found;  // Keyed by the common part of their names.
  for (const std::string& name : names) {
    const size_t of = name.rfind("-of-"), number = of == name.npos ? of : name.rfind('-', of - 1);
    if (number == name.npos) continue;
    ++found[absl::StrCat(name.substr(0, number), name.substr(of))];
  }
  for (const auto& [common, count] : found) {
    const size_t of = common.rfind("-of-") + 4;
    int all = 0;
    if (!absl::SimpleAtoi(common.substr(of, common.find('.', of) - of), &all) || count >= all) continue;
    return absl::DataLossError(
        absl::StrCat(folder, ": ", count, " of ", all, " files *", common.substr(of - 4), " and no ", kHfIndexName,
                     ": their writer did not finish, or a part is missing; download the folder again"));
  }
  return absl::OkStatus();
}

// Returns the name of the folder's index: transformers' or, if only that exists, diffusers'.
std::string index_of(storage::Files& files, const std::string& folder) {
  const bool diffusers = !files.exists(storage::join_path(folder, kHfIndexName)) &&
                         files.exists(storage::join_path(folder, kDiffusersIndexName));
  return diffusers ? kDiffusersIndexName : kHfIndexName;
}

}  // namespace

absl::Status HfFolder::read_quantization(const std::string& folder) {
  const std::string config = storage::join_path(folder, "config.json");
  if (!files_.exists(config)) return absl::OkStatus();
  TITAN_ASSIGN_OR_RETURN(const std::string text, storage::read_file(files_, config, 1 << 24));
  TITAN_ASSIGN_OR_RETURN(quantization_, quantization_of(text, config));
  return absl::OkStatus();
}

absl::Status HfFolder::add_file(const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<storage::ReadableFile> file, files_.open(path));
  TITAN_ASSIGN_OR_RETURN(auto entries, read_header(*file, path));
  for (auto& [key, entry] : entries) {
    keys_.push_back(key);
    if (!tensors_.try_emplace(key, Stored{file.get(), path, std::move(entry)}).second) {
      return absl::DataLossError(absl::StrCat(path, ": ", key, " is in another file too"));
    }
  }
  open_[path] = std::move(file);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<HfFolder>> HfFolder::open(storage::Files& files, const std::string& folder) {
  std::unique_ptr<HfFolder> weights(new HfFolder(files, folder));
  const std::string index_name = index_of(files, folder);
  const std::string index = storage::join_path(folder, index_name);
  TITAN_RETURN_IF_ERROR(weights->read_quantization(folder));
  std::map<std::string, std::string> map;
  std::vector<std::string> names;
  if (files.exists(index)) {
    TITAN_ASSIGN_OR_RETURN(const std::string text, storage::read_file(files, index));
    TITAN_ASSIGN_OR_RETURN(map, read_index(index, text));
    std::set<std::string> named;
    for (const auto& [key, name] : map) named.insert(name);
    names.assign(named.begin(), named.end());
    const std::string whole = index_name.substr(0, index_name.size() - sizeof ".index.json" + 1);  // All in one file.
    if (!named.contains(whole) && files.exists(storage::join_path(folder, whole))) {
      return absl::FailedPreconditionError(absl::StrCat(folder, ": has ", whole, ", which other programs read, and ",
                                                        index_name,
                                                        " of other files: remove the one that is left over"));
    }
  } else {
    auto entries = files.list(folder);
    if (!entries.ok()) return annotate(entries.status(), "Hugging Face weights");
    for (const std::string& name : *entries) {
      if (absl::EndsWith(name, ".safetensors")) names.push_back(name);
      if (name == kWriterName) {
        return absl::DataLossError(absl::StrCat(folder, ": has ", kWriterName, " and no ", kHfIndexName,
                                                ": a process is writing the folder, or was stopped while writing it"));
      }
    }
    if (names.empty()) {
      return absl::NotFoundError(
          absl::StrCat(folder, ": no *.safetensors and no ", kHfIndexName, ": not a Hugging Face weights folder"));
    }
    TITAN_RETURN_IF_ERROR(check_complete(folder, names));
  }
  for (const std::string& name : names) {
    const absl::Status added = weights->add_file(storage::join_path(folder, name));
    if (!map.empty() && absl::IsNotFound(added)) return annotate(added, absl::StrCat(index, " names ", name));
    TITAN_RETURN_IF_ERROR(added);
  }
  for (const auto& [key, name] : map) {
    const Stored* stored = weights->find(key);
    if (stored != nullptr && stored->path == storage::join_path(folder, name)) continue;
    return absl::DataLossError(absl::StrCat(index, ": says that ", key, " is in ", name, ", and it is not"));
  }
  return weights;
}

absl::StatusOr<std::unique_ptr<HfFolder>> HfFolder::open_file(storage::Files& files, const std::string& path) {
  std::unique_ptr<HfFolder> weights(new HfFolder(files, path));
  const size_t slash = path.rfind('/');
  TITAN_RETURN_IF_ERROR(weights->read_quantization(slash == path.npos ? "." : path.substr(0, slash)));
  TITAN_RETURN_IF_ERROR(weights->add_file(path));
  return weights;
}

const Stored* HfFolder::find(const std::string& key) const {
  const auto found = tensors_.find(key);
  return found == tensors_.end() ? nullptr : &found->second;
}

absl::StatusOr<const Stored*> HfFolder::stored(const std::string& key) const {
  if (const Stored* found = find(key)) return found;
  return absl::NotFoundError(absl::StrCat(folder_, ": no tensor ", key, " among ", tensors_.size()));
}

int64_t HfFolder::quantized() const {
  return std::count_if(keys_.begin(), keys_.end(), [&](const std::string& key) {
    const std::string tensor = scaled_by(key);
    return !tensor.empty() && has(tensor);
  });
}

absl::StatusOr<Coded> HfFolder::coded(const std::string& key) const {
  TITAN_ASSIGN_OR_RETURN(const Stored* tensor, stored(key));
  const Stored* scales = find(scales_of(key));
  absl::StatusOr<Coded> coded = coding_of(tensor->entry, scales == nullptr ? nullptr : &scales->entry, quantization_);
  if (!coded.ok()) return annotate(coded.status(), tensor->path);
  return coded;
}

absl::StatusOr<c10::ScalarType> HfFolder::dtype(const std::string& key) const {
  TITAN_ASSIGN_OR_RETURN(const Stored* tensor, stored(key));
  TITAN_ASSIGN_OR_RETURN(const Coded coded, this->coded(key));
  return coded.coding == Coding::kPlain ? tensor->entry.dtype : c10::ScalarType::Float;
}

absl::StatusOr<at::Tensor> HfFolder::read(const std::string& key) const {
  TITAN_ASSIGN_OR_RETURN(const Coded coded, this->coded(key));
  return read(key, whole(coded.shape));
}

absl::StatusOr<at::Tensor> HfFolder::read(const std::string& key, const Box& box) const {
  TITAN_ASSIGN_OR_RETURN(const Coded coded, this->coded(key));
  const Stored& tensor = *find(key);
  switch (coded.coding) {
    case Coding::kPlain:
      break;
    case Coding::kFloat8:
      return read_float8(tensor, *find(scales_of(key)), quantization_, box);
    case Coding::kMxfp4:
      return read_mxfp4(tensor, *find(scales_of(key)), box);
  }
  return read_stored(tensor, box);
}

namespace {

// Returns the layout in which the folder holds the parameter: the first that has a tensor there; null if none has.
const HfLayout* find_layout(const HfFolder& weights, const std::vector<HfLayout>& layouts) {
  for (const HfLayout& layout : layouts) {
    if (weights.has(layout.keys.at(0))) return &layout;
  }
  return nullptr;
}

// Checks that the folder has the layout's tensor number `number`, in its shape.
absl::Status check_tensor(const HfFolder& weights, const std::string& fqn, const std::vector<int64_t>& shape,
                          const HfLayout& layout, size_t number) {
  const std::string& key = layout.keys.at(number);
  const std::vector<int64_t> needed = hf_shape(layout, shape, number);
  const absl::StatusOr<Coded> found = weights.coded(key);
  if (absl::IsNotFound(found.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat(weights.folder(), kDoesNotFit, ": ", fqn, ": ", found.status().message()));
  }
  TITAN_RETURN_IF_ERROR(found.status());
  if (found->shape == needed) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(weights.folder(), kDoesNotFit, ": ", fqn, " needs ",
                                                    shape_text(needed), ", tensor ", key, " is ",
                                                    shape_text(found->shape)));
}

// Reads a box of a parameter with HfLayout::rows, `[box.shape...]`, in the widest type of its tensors.
absl::StatusOr<at::Tensor> read_rows(const HfFolder& weights, const std::string& fqn, const std::vector<int64_t>& shape,
                                     const HfLayout& layout, const Box& box) {
  std::vector<at::Tensor> parts;
  for (const HfRead& read : hf_reads(layout, box)) {
    TITAN_RETURN_IF_ERROR(check_tensor(weights, fqn, shape, layout, read.key));
    TITAN_ASSIGN_OR_RETURN(parts.emplace_back(), weights.read(layout.keys[read.key], read.box));
  }
  if (!parts.empty()) return at::cat(parts, 0);
  TITAN_ASSIGN_OR_RETURN(const c10::ScalarType dtype, weights.dtype(layout.keys[0]));
  return at::empty(box.shape, at::TensorOptions(dtype));
}

// Returns the first few names, for a message.
std::string some_of(const std::vector<std::string>& names) {
  const size_t shown = std::min<size_t>(names.size(), 3);
  return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + static_cast<int64_t>(shown), ", "),
                      shown < names.size() ? ", ..." : "");
}

}  // namespace

absl::Status check_keys(const HfFolder& weights, const HfMapper& mapper) {
  std::vector<std::string> strangers, alone;
  for (const std::string& key : weights.keys()) {
    const std::string tensor = scaled_by(key);
    if (mapper.knows(key)) continue;
    if (!tensor.empty() && !weights.has(tensor)) {
      alone.push_back(key);
    } else if (tensor.empty() || !mapper.knows(tensor)) {
      strangers.push_back(key);
    }
  }
  if (!alone.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(weights.folder(), ": scales without the tensor that they belong to: ", some_of(alone), " (of ",
                     scaled_by(alone[0]), "): a part of the release is missing; download it again"));
  }
  if (strangers.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(weights.folder(), kDoesNotFit, ", which has no use for ",
                                                    strangers.size(), " of its tensors: ", some_of(strangers),
                                                    "; set model.name and model.flavor to the model of these weights"));
}

std::vector<std::string> quantization_notes(const HfFolder& weights, bool expected) {
  const Quantization& said = weights.quantization();
  const bool float8 = std::any_of(weights.keys().begin(), weights.keys().end(), [&](const std::string& key) {
    const absl::StatusOr<Coded> coded = weights.coded(key);
    return coded.ok() && coded->coding == Coding::kFloat8;
  });
  if (float8 && !said.block_said) {
    return {absl::StrCat(weights.folder(), ": no quantization_config.weight_block_size in config.json: blocks of ",
                         said.block_rows, "x", said.block_columns, " numbers are assumed for float8 weights")};
  }
  if (!expected || weights.quantized() > 0) return {};
  return {absl::StrCat("checkpoint.initial_load_in_hf_quantized is set, but the weights in ", weights.folder(),
                       " are not quantized: they are read as they are")};
}

absl::StatusOr<std::optional<HfLayout>> layout_in(const HfFolder& weights, const HfMapper& mapper,
                                                  const std::string& fqn) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<HfLayout> layouts, mapper.layouts(fqn));
  const HfLayout* found = find_layout(weights, layouts);
  return found == nullptr ? std::optional<HfLayout>() : *found;
}

absl::StatusOr<at::Tensor> read_parameter(const HfFolder& weights, const HfMapper& mapper, const std::string& fqn,
                                          const std::vector<int64_t>& shape, const Box& box) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<HfLayout> layouts, mapper.layouts(fqn));
  if (layouts.empty()) return at::Tensor();
  const HfLayout* layout = find_layout(weights, layouts);
  if (layout == nullptr) {
    if (layouts[0].optional) return at::Tensor();
    layout = &layouts[0];  // For the message.
  }
  if (!layout->rows.empty()) return read_rows(weights, fqn, shape, *layout, box);
  const Box there = hf_box(*layout, shape, box);
  if (!layout->stacked) {
    TITAN_RETURN_IF_ERROR(check_tensor(weights, fqn, shape, *layout, 0));
    TITAN_ASSIGN_OR_RETURN(const at::Tensor read, weights.read(layout->keys[0], there));
    return from_hf_box(*layout, shape, box, read).contiguous();
  }
  at::Tensor rows;  // Along dim 0, only the rows of the box.
  for (int64_t row = 0; row < box.shape[0]; ++row) {
    const auto number = static_cast<size_t>(box.offset[0] + row);
    TITAN_RETURN_IF_ERROR(check_tensor(weights, fqn, shape, *layout, number));
    TITAN_ASSIGN_OR_RETURN(const at::Tensor read, weights.read(layout->keys.at(number), there));
    if (!rows.defined()) rows = at::empty(box.shape, read.options());
    // A release may quantize only some of the experts.
    rows = rows.to(at::promote_types(rows.scalar_type(), read.scalar_type()));
    rows.select(0, row).copy_(from_hf_box(*layout, shape, box, read));
  }
  return rows;
}

}  // namespace titan::checkpoint

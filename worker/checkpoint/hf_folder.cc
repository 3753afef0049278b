#include "worker/checkpoint/hf_folder.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "common/status/status.h"

namespace titan::checkpoint {
namespace {

constexpr char kModelPrefix[] = "model.";

std::string shape_text(const std::vector<int64_t>& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

absl::StatusOr<std::vector<std::string>> files_of_index(const std::string& path, const std::string& text) {
  const nlohmann::json index = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return absl::DataLossError(absl::StrCat(path, ": no \"weight_map\" object in it"));
  }
  std::set<std::string> names;
  for (const auto& [key, file] : index["weight_map"].items()) {
    if (!file.is_string()) return absl::DataLossError(absl::StrCat(path, ": no file name for ", key));
    names.insert(file.get<std::string>());
  }
  return std::vector<std::string>(names.begin(), names.end());
}

}  // namespace

absl::Status HfFolder::add_file(const std::string& name) {
  const std::string path = storage::join_path(folder_, name);
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<storage::ReadableFile> file, files_.open(path));
  TITAN_ASSIGN_OR_RETURN(auto entries, read_header(*file, path));
  for (auto& [key, entry] : entries) {
    keys_.push_back(key);
    if (!tensors_.try_emplace(key, file.get(), std::move(entry)).second) {
      return absl::DataLossError(absl::StrCat(path, ": ", key, " is in another file too"));
    }
  }
  open_[name] = std::move(file);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<HfFolder>> HfFolder::open(storage::Files& files, const std::string& folder) {
  std::unique_ptr<HfFolder> weights(new HfFolder(files, folder));
  const std::string index = storage::join_path(folder, kHfIndexName);
  std::vector<std::string> names;
  if (files.exists(index)) {
    TITAN_ASSIGN_OR_RETURN(const std::string text, storage::read_file(files, index));
    TITAN_ASSIGN_OR_RETURN(names, files_of_index(index, text));
  } else {
    auto entries = files.list(folder);
    if (!entries.ok()) return annotate(entries.status(), "Hugging Face weights");
    for (const std::string& name : *entries) {
      if (absl::EndsWith(name, ".safetensors")) names.push_back(name);
    }
    if (names.empty()) {
      return absl::NotFoundError(
          absl::StrCat(folder, ": no *.safetensors and no ", kHfIndexName, ": not a Hugging Face weights folder"));
    }
  }
  for (const std::string& name : names) TITAN_RETURN_IF_ERROR(weights->add_file(name));
  return weights;
}

absl::StatusOr<const TensorEntry*> HfFolder::entry(const std::string& key) const {
  if (const auto found = tensors_.find(key); found != tensors_.end()) return &found->second.second;
  return absl::NotFoundError(absl::StrCat(folder_, ": no tensor ", key, " among ", tensors_.size()));
}

absl::StatusOr<at::Tensor> HfFolder::read(const std::string& key, int64_t begin, int64_t end) const {
  TITAN_RETURN_IF_ERROR(entry(key).status());
  const auto& [file, entry] = tensors_.at(key);
  std::vector<int64_t> shape = entry.shape;
  int64_t first = entry.begin;
  if (end >= 0) {
    const int64_t row = entry.bytes() / std::max<int64_t>(shape.at(0), 1);
    shape[0] = end - begin;
    first += begin * row;
  }
  at::Tensor out = at::empty(shape, at::TensorOptions().dtype(entry.dtype));
  TITAN_RETURN_IF_ERROR(
      file->read(first, static_cast<int64_t>(out.nbytes()), static_cast<char*>(out.mutable_data_ptr())));
  return out;
}

absl::StatusOr<at::Tensor> read_parameter(const HfFolder& weights, const HfMapper& mapper, const std::string& fqn,
                                          const std::vector<int64_t>& shape, const Box& box) {
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> keys, mapper.keys(fqn));
  const auto misfit = [&](const std::string& key, const std::vector<int64_t>& found) {
    return absl::FailedPreconditionError(absl::StrCat(weights.folder(), " does not fit this model: ", fqn, " needs ",
                                                      shape_text(shape), ", tensor ", key, " is ", shape_text(found)));
  };
  for (const std::string& key : keys) {
    if (auto entry = weights.entry(key); !entry.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("does not fit this model: ", fqn, ": ", entry.status().message()));
    }
  }
  if (keys.size() == 1 && mapper.same_layout(fqn)) {
    TITAN_ASSIGN_OR_RETURN(const TensorEntry* entry, weights.entry(keys[0]));
    if (entry->shape != shape) return misfit(keys[0], entry->shape);
    if (shape.empty()) return weights.read(keys[0]);
    TITAN_ASSIGN_OR_RETURN(at::Tensor rows, weights.read(keys[0], box.offset[0], box.offset[0] + box.shape[0]));
    for (size_t d = 1; d < shape.size(); ++d) rows = rows.narrow(static_cast<int64_t>(d), box.offset[d], box.shape[d]);
    return rows.contiguous();
  }
  std::vector<at::Tensor> parts;
  int64_t elements = 0;
  for (const std::string& key : keys) {
    TITAN_ASSIGN_OR_RETURN(at::Tensor part, weights.read(key));
    elements += part.numel();
    parts.push_back(std::move(part));
  }
  // Before the mapper: its views would throw on a tensor of another size.
  if (elements != whole(shape).elements() || (parts.size() == 1 && parts[0].sizes().vec() != shape)) {
    return misfit(keys.at(0), parts.at(0).sizes().vec());
  }
  at::Tensor full = mapper.from_hf(fqn, parts);
  if (full.sizes().vec() != shape) return misfit(keys.at(0), full.sizes().vec());
  for (size_t d = 0; d < shape.size(); ++d) full = full.narrow(static_cast<int64_t>(d), box.offset[d], box.shape[d]);
  return full.contiguous();
}

absl::StatusOr<std::vector<HfFile>> plan_export(const Manifest& manifest, const HfMapper& mapper,
                                                const HfExport& options) {
  std::vector<HfFile> plan;
  int64_t bytes = 0;
  for (const TensorRecord& tensor : manifest.tensors) {
    if (!absl::StartsWith(tensor.key, kModelPrefix)) continue;
    const std::string fqn = tensor.key.substr(sizeof kModelPrefix - 1);
    TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> keys, mapper.keys(fqn));
    if (keys.empty()) continue;
    const int64_t size = whole(tensor.shape).elements() * static_cast<int64_t>(c10::elementSize(options.dtype));
    if (plan.empty() || bytes + size > options.max_file_bytes) {
      plan.emplace_back();
      bytes = 0;
    }
    plan.back().fqns.push_back(fqn);
    bytes += size;
  }
  for (size_t i = 0; i < plan.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, plan.size());
    plan[i].name = name;
  }
  return plan;
}

absl::StatusOr<HfWritten> write_export_file(storage::Files& files, StepReader& step, const HfMapper& mapper,
                                            const HfFile& file, const HfExport& options, const std::string& folder,
                                            const std::string& name, const std::atomic<bool>* stop) {
  std::vector<Staged> parts;
  HfWritten written;
  for (const std::string& fqn : file.fqns) {
    const TensorRecord* record = step.manifest().find(kModelPrefix + fqn);
    if (record == nullptr) return absl::InternalError(absl::StrCat("export: ", fqn, " is not in the step"));
    at::Tensor full = at::empty(record->shape, at::TensorOptions().dtype(record->dtype));
    TITAN_RETURN_IF_ERROR(step.read(*record, whole(record->shape), full));
    TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> keys, mapper.keys(fqn));
    std::vector<at::Tensor> tensors = mapper.to_hf(fqn, full.to(options.dtype));
    if (tensors.size() != keys.size()) {
      return absl::InternalError(
          absl::StrCat("export: ", fqn, " has ", keys.size(), " names and ", tensors.size(), " tensors"));
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      const std::vector<int64_t> shape = tensors[i].sizes().vec();
      written.keys.push_back(keys[i]);
      written.bytes += static_cast<int64_t>(tensors[i].nbytes());
      parts.push_back({keys[i], shape, whole(shape).offset, tensors[i].contiguous()});
    }
  }
  TITAN_RETURN_IF_ERROR(write_tensors(files, folder, name, parts, stop).status());
  return written;
}

std::string hf_index(const std::vector<HfFile>& files, const std::vector<HfWritten>& written) {
  nlohmann::json map = nlohmann::json::object();
  int64_t bytes = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    bytes += written[i].bytes;
    for (const std::string& key : written[i].keys) map[key] = files[i].name;
  }
  return nlohmann::json{{"metadata", {{"total_size", bytes}}}, {"weight_map", std::move(map)}}.dump(2) + "\n";
}

absl::Status export_folder(storage::Files& files, StepReader& step, const HfMapper& mapper, const HfExport& options,
                           const std::string& folder, const std::function<void(const std::string& file)>& progress) {
  TITAN_RETURN_IF_ERROR(files.make_folders(folder));
  TITAN_ASSIGN_OR_RETURN(const std::vector<HfFile> plan, plan_export(step.manifest(), mapper, options));
  std::vector<HfWritten> written;
  for (const HfFile& file : plan) {
    if (progress) progress(file.name);
    TITAN_ASSIGN_OR_RETURN(HfWritten one, write_export_file(files, step, mapper, file, options, folder, file.name));
    written.push_back(std::move(one));
  }
  if (const nlohmann::json config = mapper.config(); !config.is_null()) {
    TITAN_RETURN_IF_ERROR(
        storage::atomic_write(files, storage::join_path(folder, "config.json"), config.dump(2) + "\n"));
  }
  return storage::atomic_write(files, storage::join_path(folder, kHfIndexName), hf_index(plan, written));
}

}  // namespace titan::checkpoint

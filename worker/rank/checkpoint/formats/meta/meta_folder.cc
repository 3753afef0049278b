#include "worker/rank/checkpoint/formats/meta/meta_folder.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/plan/meta_config/params.h"
#include "common/plan/models/sizes.h"
#include "worker/rank/checkpoint/formats/dcp/dcp_metadata.h"
#include "worker/rank/checkpoint/formats/dcp/torch_file.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"
#include "worker/rank/checkpoint/shards/tensor_view.h"

namespace titan::checkpoint {

class MetaFile {
 public:
  explicit MetaFile(std::string path) : path_(std::move(path)) {}
  virtual ~MetaFile() = default;
  const std::string& path() const { return path_; }
  virtual std::vector<std::string> names() const = 0;
  virtual std::optional<std::vector<int64_t>> shape_of(const std::string& name) const = 0;
  virtual absl::StatusOr<at::Tensor> read(const std::string& name, const Box& box) const = 0;

 private:
  std::string path_;
};

namespace {

constexpr char kFirstSlices[] = "consolidated.00.pth", kWholeWeights[] = "consolidated.pth",
               kWholeSafetensors[] = "consolidated.safetensors";
constexpr size_t kMaxSlices = 64;

class TorchSlices : public MetaFile {
 public:
  explicit TorchSlices(std::unique_ptr<TorchFile> file) : MetaFile(file->path()), file_(std::move(file)) {}

  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : file_->tensors()) names.push_back(name);
    return names;
  }
  std::optional<std::vector<int64_t>> shape_of(const std::string& name) const override {
    const auto found = file_->tensors().find(name);
    if (found == file_->tensors().end()) return std::nullopt;
    return found->second.shape;
  }
  absl::StatusOr<at::Tensor> read(const std::string& name, const Box& box) const override {
    return file_->read(name, box);
  }

 private:
  std::unique_ptr<TorchFile> file_;
};

class SafetensorsFile : public MetaFile {
 public:
  explicit SafetensorsFile(std::unique_ptr<HfFolder> file) : MetaFile(file->folder()), file_(std::move(file)) {}

  std::vector<std::string> names() const override { return file_->keys(); }
  std::optional<std::vector<int64_t>> shape_of(const std::string& name) const override {
    const absl::StatusOr<Coded> coded = file_->coded(name);
    if (!coded.ok()) return std::nullopt;
    return coded->shape;
  }
  absl::StatusOr<at::Tensor> read(const std::string& name, const Box& box) const override {
    return file_->read(name, box);
  }

 private:
  std::unique_ptr<HfFolder> file_;
};

std::string name_of_file(size_t number) {
  return absl::StrCat("consolidated.", absl::Dec(number, absl::kZeroPad2), ".pth");
}

// Returns the names of the series in a folder's list of files, in order; empty if it has none.
absl::StatusOr<std::vector<std::string>> series_of(const std::string& folder, const std::vector<std::string>& listed) {
  const std::set<std::string> all(listed.begin(), listed.end());
  size_t count = 0;
  for (size_t i = 0; i < kMaxSlices; ++i) {
    if (all.contains(name_of_file(i))) count = i + 1;
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) {
    names.push_back(name_of_file(i));
    if (!all.contains(names.back())) {
      return absl::NotFoundError(absl::StrCat(storage::join_path(folder, names.back()), ": missing, but ",
                                              name_of_file(count - 1), " is there: download the release again"));
    }
  }
  if (names.empty() && all.contains(kWholeWeights)) names.push_back(kWholeWeights);
  if (names.empty() && all.contains(kWholeSafetensors)) names.push_back(kWholeSafetensors);
  if (!names.empty()) return names;
  return absl::NotFoundError(absl::StrCat(folder, ": has ", meta_config::kParamsName, ", but no ", kFirstSlices, ", ",
                                          kWholeWeights, " or ", kWholeSafetensors));
}

absl::StatusOr<std::unique_ptr<MetaFile>> open_slices(storage::Files& files, const std::string& path) {
  if (absl::EndsWith(path, ".safetensors")) {
    TITAN_ASSIGN_OR_RETURN(std::unique_ptr<HfFolder> file, HfFolder::open_file(files, path));
    return std::make_unique<SafetensorsFile>(std::move(file));
  }
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<TorchFile> file, TorchFile::open(files, path, is_object_in_meta));
  return std::make_unique<TorchSlices>(std::move(file));
}

// Whether two tensors of one shape have the same type and bytes.
bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.scalar_type() == y.scalar_type() && std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

}  // namespace

MetaFolder::MetaFolder(std::string folder) : folder_(std::move(folder)) {}
MetaFolder::~MetaFolder() = default;

bool MetaFolder::is_one(storage::Files& files, const std::string& folder) {
  const auto has = [&](const char* name) { return files.exists(storage::join_path(folder, name)); };
  return (has(meta_config::kParamsName) || has(kFirstSlices)) && !has("config.json");
}

absl::StatusOr<std::unique_ptr<MetaFolder>> MetaFolder::open(storage::Files& files, const std::string& folder) {
  std::unique_ptr<MetaFolder> opened(new MetaFolder(folder));
  const std::string path = storage::join_path(folder, meta_config::kParamsName);
  TITAN_ASSIGN_OR_RETURN(const std::string text, storage::read_file(files, path, 1 << 24));
  opened->params_ = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!opened->params_.is_object()) return absl::DataLossError(absl::StrCat(path, ": not a JSON object"));
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> listed, files.list(folder));
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> series, series_of(folder, listed));
  for (const std::string& name : series) {
    TITAN_ASSIGN_OR_RETURN(opened->files_.emplace_back(), open_slices(files, storage::join_path(folder, name)));
  }
  return opened;
}

bool MetaFolder::has(const std::string& name) const { return files_[0]->shape_of(name).has_value(); }

int64_t MetaFolder::vocab_size(int64_t dim) const {
  const auto shape = files_[0]->shape_of("tok_embeddings.weight");
  if (!shape || shape->size() != 2) return 0;
  return (*shape)[1] == dim ? (*shape)[0] * static_cast<int64_t>(files_.size()) : (*shape)[0];
}

absl::Status MetaFolder::check_shapes(const MetaPlace& place, const std::vector<int64_t>& needed, bool is_cut) const {
  const auto count = static_cast<int64_t>(files_.size());
  for (const auto& file : files_) {
    const auto there = file->shape_of(place.name);
    if (!there) return absl::FailedPreconditionError(absl::StrCat(file->path(), ": has no ", place.name));
    if (*there == needed) continue;
    std::string hint;
    for (size_t d = 0; is_cut && there->size() == needed.size() && d < needed.size(); ++d) {
      const int64_t uncut = needed[d] * count, slice = (*there)[d];
      if (slice > 0 && slice < needed[d] && uncut % slice == 0)
        hint =
            absl::StrCat(": it is a slice for ", uncut / slice, " files, so a file is missing, or for another model");
    }
    return absl::FailedPreconditionError(absl::StrCat(file->path(), ": ", place.name, " is ", shape_text(*there),
                                                      ", but this model in ", counted(files_.size(), "file"), " needs ",
                                                      shape_text(needed), hint));
  }
  return absl::OkStatus();
}

absl::StatusOr<MetaFolder::Pieces> MetaFolder::pieces(const models::ModelSpec& spec, const std::string& fqn,
                                                      const std::vector<int64_t>& shape) const {
  const std::vector<MetaPlace> places = meta_places(spec, fqn);
  const auto place = std::find_if(places.begin(), places.end(), [&](const MetaPlace& one) { return has(one.name); });
  if (place == places.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat(files_[0]->path(), ": has no ", places.empty() ? fqn : places[0].name));
  }
  Pieces all{.place = *place};
  const std::vector<int64_t> stored = *files_[0]->shape_of(place->name);
  if (place->cut == MetaCut::kEither) {
    const bool by_rows = stored.size() == 2 && stored[1] == shape.at(1);
    all.place.cut = by_rows ? MetaCut::kRows : MetaCut::kColumns;
  }
  const auto count = static_cast<int64_t>(files_.size());
  if (place->repeats_heads && count > spec.n_kv_heads && count % spec.n_kv_heads == 0)
    return pieces_of_heads(std::move(all), spec.n_kv_heads, shape);
  const bool is_cut = all.place.cut != MetaCut::kNone, by_rows = all.place.cut == MetaCut::kRows;
  const size_t last = shape.size() - 1, rows = shape.size() > 1 ? last - 1 : 0;
  const size_t cut = by_rows != place->transposed ? rows : last;  // This is a dim of the parameter.
  if (is_cut && (shape[cut] % count != 0 || place->rows_before % count != 0 || place->rows_after % count != 0)) {
    return absl::FailedPreconditionError(absl::StrCat(folder_, ": ", place->name, " of ", shape_text(shape),
                                                      " cannot be cut over ", counted(files_.size(), "file"),
                                                      ": one may be missing"));
  }
  std::vector<int64_t> needed = shape;
  if (is_cut) needed[cut] /= count;
  if (!place->transposed) {
    needed[0] += (place->rows_before + place->rows_after) / count;
  } else {
    std::swap(needed[rows], needed[last]);
    if (shape.size() == 3) needed = {needed[0] * needed[1], needed[2]};
  }
  TITAN_RETURN_IF_ERROR(check_shapes(*place, needed, is_cut));
  for (int64_t i = 0; i < count; ++i) {
    Piece piece{.file = static_cast<size_t>(i), .box = whole(shape), .is_copy = !is_cut && i > 0};
    if (is_cut) {
      piece.box.shape[cut] = shape[cut] / count;
      piece.box.offset[cut] = i * piece.box.shape[cut];
      piece.first_row = place->rows_before / count;
    }
    all.pieces.push_back(std::move(piece));
  }
  return all;
}

// The pieces of keys or values in more files than heads: each file has one head, and neighbouring files the same one.
absl::StatusOr<MetaFolder::Pieces> MetaFolder::pieces_of_heads(Pieces all, int64_t heads,
                                                               const std::vector<int64_t>& shape) const {
  const std::vector<int64_t> head = {shape[0] / heads, shape[1]};
  const size_t repeats = files_.size() / static_cast<size_t>(heads);
  TITAN_RETURN_IF_ERROR(check_shapes(all.place, head, false));
  for (size_t i = 0; i < files_.size(); ++i) {
    const Box box{{static_cast<int64_t>(i / repeats) * head[0], 0}, head};
    all.pieces.push_back({.file = i, .box = box, .is_copy = i % repeats != 0});
  }
  return all;
}

absl::Status MetaFolder::check(const models::ModelSpec& spec) const {
  std::set<std::string> used;
  for (const models::ParameterSpec& one : models::parameters(spec)) {
    TITAN_ASSIGN_OR_RETURN(const Pieces found, pieces(spec, one.fqn, one.shape));
    used.insert(found.place.name);
  }
  if (spec.tied_embeddings) used.insert("output.weight");
  for (const auto& file : files_) {
    for (const std::string& name : file->names()) {
      if (used.contains(name) || is_unused_in_meta(spec, name)) continue;
      return absl::FailedPreconditionError(
          absl::StrCat(file->path(), ": ", name, " has no use in this model; give the model of these weights with ",
                       "--model and --flavor"));
    }
  }
  return absl::OkStatus();
}

// Reads a part of the parameter, which lies inside the piece.
absl::StatusOr<at::Tensor> MetaFolder::read_piece(const Pieces& all, const Piece& piece, const Box& part) const {
  const MetaFile& file = *files_[piece.file];
  Box there = part;
  for (size_t d = 0; d < part.shape.size(); ++d) there.offset[d] -= piece.box.offset[d];
  if (!all.place.transposed) {
    there.offset[0] += piece.first_row;
    return file.read(all.place.name, there);
  }
  const auto swapped = [&](int64_t first_row) {
    const size_t last = part.shape.size() - 1;
    return Box{{first_row + there.offset[last], there.offset[last - 1]}, {part.shape[last], part.shape[last - 1]}};
  };
  if (part.shape.size() == 2) {
    TITAN_ASSIGN_OR_RETURN(const at::Tensor read, file.read(all.place.name, swapped(0)));
    return read.t();
  }
  std::vector<at::Tensor> experts;
  for (int64_t e = part.offset[0]; e < part.offset[0] + part.shape[0]; ++e) {
    TITAN_ASSIGN_OR_RETURN(const at::Tensor read, file.read(all.place.name, swapped(e * piece.box.shape[2])));
    experts.push_back(read.t());
  }
  return at::stack(experts);
}

absl::StatusOr<at::Tensor> MetaFolder::read(const models::ModelSpec& spec, const std::string& fqn,
                                            const std::vector<int64_t>& shape, const Box& box) const {
  if (meta_places(spec, fqn).empty()) return at::Tensor();
  TITAN_ASSIGN_OR_RETURN(const Pieces all, pieces(spec, fqn, shape));
  at::Tensor out;
  const std::string* source = nullptr;  // The file of the newest piece that is not a copy.
  for (const Piece& piece : all.pieces) {
    const std::optional<Box> part = intersect(piece.box, box);
    if (!part || part->elements() == 0) continue;
    TITAN_ASSIGN_OR_RETURN(const at::Tensor value, read_piece(all, piece, *part));
    if (!out.defined()) out = at::empty(box.shape, value.options());
    at::Tensor target = part_of(out, box, *part);
    const std::string& path = files_[piece.file]->path();
    if (piece.is_copy && !same_bytes(target, value)) {
      return absl::DataLossError(absl::StrCat(path, ": ", all.place.name, " differs from the copy in ",
                                              source == nullptr ? folder_ : *source,
                                              ": the files are not of one series"));
    }
    if (value.scalar_type() != out.scalar_type()) {
      return absl::DataLossError(absl::StrCat(path, ": ", all.place.name, " is ", c10::toString(value.scalar_type()),
                                              ", but ", c10::toString(out.scalar_type()), " in the file before"));
    }
    if (piece.is_copy) continue;
    target.copy_(value);
    source = &path;
  }
  return out;
}

}  // namespace titan::checkpoint

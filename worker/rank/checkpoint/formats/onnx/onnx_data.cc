#include "worker/rank/checkpoint/formats/onnx/onnx_data.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "common/base/status/status.h"

namespace titan::checkpoint::onnx {
namespace {

constexpr char kPrefix[] = "model.";

at::ScalarType dtype_of(Type type) {
  switch (type) {
    case Type::kFloat:
      return at::kFloat;
    case Type::kFloat16:
      return at::kHalf;
    case Type::kBFloat16:
      return at::kBFloat16;
    case Type::kInt32:
      return at::kInt;
    case Type::kInt64:
      return at::kLong;
    case Type::kBool:
      return at::kBool;
  }
  return at::kFloat;
}

int64_t padding_after(int64_t bytes) { return (kAlignment - bytes % kAlignment) % kAlignment; }

int64_t bytes_of(const Weight& weight) {
  return whole(weight.dims).elements() * static_cast<int64_t>(c10::elementSize(dtype_of(weight.type)));
}

int64_t padded_bytes_of(const Weight& weight) { return bytes_of(weight) + padding_after(bytes_of(weight)); }

class DataWriter {
 public:
  DataWriter(storage::WritableFile& file, StepReader& step, const DataOptions& options)
      : file_(file), step_(step), options_(options) {}

  absl::Status add(const Weight& weight, std::vector<std::string>& warnings) {
    Narrowing narrowing;
    if (weight.value.defined()) {
      TITAN_RETURN_IF_ERROR(append(weight.value, weight.type, narrowing));
    } else if (weight.form == Form::kTransposed && weight.dims.size() == 2) {
      TITAN_RETURN_IF_ERROR(add_matrix(weight, narrowing));
    } else {
      TITAN_RETURN_IF_ERROR(add_rows(weight, narrowing));
    }
    const std::string& key = weight.records.empty() ? weight.name : weight.records[0]->key;
    TITAN_RETURN_IF_ERROR(judge(key, narrowing, options_.overflow, warnings));
    return file_.append(std::string(static_cast<size_t>(padding_after(bytes_of(weight))), '\0'));
  }

 private:
  absl::StatusOr<at::Tensor> read(const TensorRecord& record, int64_t first, int64_t count) {
    Box box = whole(record.shape);
    box.offset[0] = first;
    box.shape[0] = count;
    at::Tensor values = at::empty(box.shape, at::TensorOptions().dtype(record.dtype));
    TITAN_RETURN_IF_ERROR(step_.read(record, box, values));
    return values;
  }

  // Columns of a stored matrix are rows of the file's.
  absl::Status add_matrix(const Weight& weight, Narrowing& narrowing) {
    TITAN_ASSIGN_OR_RETURN(const at::Tensor matrix, read(*weight.records[0], 0, weight.dims[1]));
    const at::Tensor transposed = matrix.t();
    const int64_t most = rows_at_once(weight);
    for (int64_t first = 0; first < weight.dims[0]; first += most) {
      const int64_t count = std::min(most, weight.dims[0] - first);
      TITAN_RETURN_IF_ERROR(append(transposed.narrow(0, first, count).contiguous(), weight.type, narrowing));
    }
    return absl::OkStatus();
  }

  // Indices of dim 0 are the same in the step and in the file.
  absl::Status add_rows(const Weight& weight, Narrowing& narrowing) {
    const int64_t most = rows_at_once(weight);
    for (int64_t first = 0; first < weight.dims[0]; first += most) {
      const int64_t count = std::min(most, weight.dims[0] - first);
      TITAN_ASSIGN_OR_RETURN(at::Tensor values, read(*weight.records[0], first, count));
      if (weight.form == Form::kTransposed) values = values.transpose(-1, -2).contiguous();
      if (weight.form == Form::kAlternate) {
        TITAN_ASSIGN_OR_RETURN(const at::Tensor odd, read(*weight.records[1], first, count));
        values = at::stack({values, odd}, 2).flatten(1, 2);
      }
      TITAN_RETURN_IF_ERROR(append(values, weight.type, narrowing));
    }
    return absl::OkStatus();
  }

  int64_t rows_at_once(const Weight& weight) const {
    const int64_t row_bytes = whole(weight.dims).elements() / weight.dims[0] * int64_t{sizeof(float)};
    return std::max<int64_t>(options_.max_piece_bytes / row_bytes, 1);
  }

  absl::Status append(const at::Tensor& values, Type type, Narrowing& narrowing) {
    const at::Tensor bytes = narrowing.cast(values, dtype_of(type)).contiguous();
    return file_.append({static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()});
  }

  storage::WritableFile& file_;
  StepReader& step_;
  const DataOptions& options_;
};

}  // namespace

const TensorRecord* Weights::record_of(const std::string& fqn) {
  const std::string key = kPrefix + fqn;
  const TensorRecord* record = manifest_.find(key);
  TORCH_CHECK(record != nullptr, "the step has no ", key);
  used_.insert(key);
  return record;
}

std::string Weights::append(Weight weight) {
  const auto [known, is_new] = index_.emplace(weight.name, all_.size());
  if (is_new) {
    all_.push_back(std::move(weight));
    return known->first;
  }
  const Weight& other = all_[known->second];
  TORCH_CHECK(other.form == weight.form && other.type == weight.type && other.dims == weight.dims, weight.name,
              " is used in two forms");
  return known->first;
}

std::string Weights::add(const std::string& fqn, Type type, Form form) {
  const TensorRecord* record = record_of(fqn);
  std::vector<int64_t> dims = record->shape;
  if (form == Form::kTransposed) std::swap(dims.at(dims.size() - 1), dims.at(dims.size() - 2));
  return append({fqn, type, form, std::move(dims), {record}, {}});
}

std::string Weights::add_alternate(const std::string& even, const std::string& odd, Type type) {
  const TensorRecord* first = record_of(even);
  std::vector<int64_t> dims = first->shape;
  dims.at(1) *= 2;
  return append({even, type, Form::kAlternate, std::move(dims), {first, record_of(odd)}, {}});
}

std::string Weights::add_value(const std::string& name, const at::Tensor& value, Type type) {
  return append({name, type, Form::kSame, value.sizes().vec(), {}, value});
}

std::vector<std::string> Weights::unused() const {
  std::vector<std::string> found;
  for (const TensorRecord& record : manifest_.tensors) {
    if (absl::StartsWith(record.key, kPrefix) && !used_.contains(record.key))
      found.push_back(record.key.substr(sizeof kPrefix - 1));
  }
  return found;
}

std::vector<External> places(const std::vector<Weight>& weights) {
  std::vector<External> all;
  int64_t offset = 0;
  for (const Weight& weight : weights) {
    const int64_t length = bytes_of(weight);
    all.push_back({weight.name, weight.type, weight.dims, offset, length});
    offset += padded_bytes_of(weight);
  }
  return all;
}

absl::Status write_data(storage::Files& files, StepReader& step, const std::vector<Weight>& weights,
                        const DataOptions& options, const std::string& path,
                        const std::function<void(const std::string& tensor)>& progress,
                        std::vector<std::string>& warnings) {
  int64_t bytes = 0;
  for (const Weight& weight : weights) bytes += padded_bytes_of(weight);
  TITAN_ASSIGN_OR_RETURN(const auto file, storage::create_large(files, path, bytes));
  DataWriter writer(*file, step, options);
  for (const Weight& weight : weights) {
    progress(weight.name);
    TITAN_RETURN_IF_ERROR(writer.add(weight, warnings));
  }
  TITAN_RETURN_IF_ERROR(file->sync());
  return file->close();
}

}  // namespace titan::checkpoint::onnx

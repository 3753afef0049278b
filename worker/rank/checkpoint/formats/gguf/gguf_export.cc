#include "worker/rank/checkpoint/formats/gguf/gguf_export.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/checkpoint/formats/gguf/gguf_metadata.h"
#include "worker/rank/checkpoint/formats/gguf/gguf_names.h"
#include "worker/rank/checkpoint/formats/gguf/gguf_values.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_export.h"

namespace titan::checkpoint::gguf {
namespace {

constexpr char kPrefix[] = "model.", kFile[] = "model.gguf", kFactors[] = "rope_freqs.weight";

// llama.cpp's numbers of "general.file_type".
int64_t file_type(Type type) {
  switch (type) {
    case Type::kF32:
      return 0;
    case Type::kF16:
      return 1;
    case Type::kQ8_0:
      return 7;
    case Type::kBF16:
      return 32;
  }
  return 0;
}

// llama.cpp computes with vectors, biases and the router's scores in float32.
Type type_of(const Source& source, Type wanted) {
  if (source.shape.size() < 2 || absl::EndsWith(source.name, ".bias") ||
      absl::EndsWith(source.name, "ffn_gate_inp.weight"))
    return Type::kF32;
  return wanted == Type::kQ8_0 && source.shape.back() % kBlock != 0 ? Type::kF16 : wanted;
}

struct Planned {
  Tensor tensor;
  Source source;
  const TensorRecord* record = nullptr;
};

absl::StatusOr<std::vector<Planned>> plan(const Manifest& manifest, const nlohmann::json& config,
                                          const std::string& architecture, Type type) {
  std::vector<Planned> all;
  for (const TensorRecord& record : manifest.tensors) {
    if (!absl::StartsWith(record.key, kPrefix)) continue;
    TITAN_ASSIGN_OR_RETURN(std::vector<Source> sources,
                           sources_of(config, architecture, record.key.substr(sizeof kPrefix - 1), record.shape));
    for (Source& source : sources) {
      const Tensor tensor{.name = source.name, .shape = source.shape, .type = type_of(source, type)};
      all.push_back({tensor, std::move(source), &record});
    }
  }
  return all;
}

// Writes tensors one after another, each with its padding.
class ValuesWriter {
 public:
  ValuesWriter(storage::WritableFile& file, StepReader& step, const Export& options)
      : file_(file), step_(step), options_(options) {}

  absl::Status add(const Planned& one, std::vector<std::string>& warnings) {
    Narrowing narrowing;
    const std::vector<int64_t>& rows = one.record->shape;
    const int64_t indices = one.tensor.shape[0], step = one.source.rows_per_index;
    const int64_t row_bytes = whole(rows).elements() / rows[0] * 4;
    const int64_t most = std::max<int64_t>(options_.max_piece_bytes / (row_bytes * step), 1);
    for (int64_t first = 0; first < indices; first += most) {
      const int64_t count = std::min(most, indices - first);
      Box box = whole(rows);
      box.offset[0] = first * step;
      box.shape[0] = count * step;
      at::Tensor piece = at::empty(box.shape, at::TensorOptions().dtype(one.record->dtype));
      TITAN_RETURN_IF_ERROR(step_.read(*one.record, box, piece));
      TITAN_RETURN_IF_ERROR(append(encode(take(one.source, piece), one.tensor.type, narrowing)));
    }
    TITAN_RETURN_IF_ERROR(judge(one.record->key, narrowing, options_.overflow, warnings));
    return pad(one.tensor);
  }

  absl::Status add(const Tensor& tensor, const std::vector<float>& values) {
    TITAN_RETURN_IF_ERROR(
        file_.append({reinterpret_cast<const char*>(values.data()), values.size() * sizeof values[0]}));
    return pad(tensor);
  }

 private:
  absl::Status append(const at::Tensor& bytes) {
    return file_.append({static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()});
  }
  absl::Status pad(const Tensor& tensor) {
    return file_.append(std::string(static_cast<size_t>(padding_after(bytes_of(tensor))), '\0'));
  }

  storage::WritableFile& file_;
  StepReader& step_;
  const Export& options_;
};

void add_general(const std::string& architecture, const Export& options, Metadata& to) {
  constexpr int64_t kQuantizationVersion = 2;
  to.add("general.architecture", architecture);
  to.add("general.type", "model");
  to.add("general.name", options.name);
  to.add_count("general.alignment", kAlignment);
  to.add_count("general.file_type", file_type(options.type));
  to.add_count("general.quantization_version", kQuantizationVersion);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> write_gguf(storage::Files& files, StepReader& step, const HfMapper& mapper,
                                                    const Export& options, const std::string& folder,
                                                    const std::function<void(const std::string& tensor)>& progress) {
  const nlohmann::json config = mapper.config();
  TITAN_ASSIGN_OR_RETURN(const std::string architecture, architecture_of(config));
  TITAN_RETURN_IF_ERROR(check_options(step.manifest().model, architecture));
  Metadata metadata;
  add_general(architecture, options, metadata);
  TITAN_RETURN_IF_ERROR(add_model(config, architecture, metadata));
  TITAN_ASSIGN_OR_RETURN(std::vector<std::string> warnings,
                         add_tokenizer(options.assets.folder, config["vocab_size"], options.split, metadata));
  TITAN_ASSIGN_OR_RETURN(const std::vector<Planned> planned, plan(step.manifest(), config, architecture, options.type));
  const std::vector<float> factors = frequency_factors(config);
  const Tensor factors_tensor{.name = kFactors, .shape = {static_cast<int64_t>(factors.size())}, .type = Type::kF32};
  std::vector<Tensor> tensors;
  if (!factors.empty()) tensors.push_back(factors_tensor);
  for (const Planned& one : planned) tensors.push_back(one.tensor);

  TITAN_RETURN_IF_ERROR(files.make_folders(folder));
  TITAN_ASSIGN_OR_RETURN(const auto file, files.create(storage::join_path(folder, kFile)));
  TITAN_RETURN_IF_ERROR(file->append(header(metadata, tensors)));
  ValuesWriter values(*file, step, options);
  if (!factors.empty()) TITAN_RETURN_IF_ERROR(values.add(factors_tensor, factors));
  for (const Planned& one : planned) {
    progress(absl::StrCat(kFile, ": ", one.tensor.name));
    TITAN_RETURN_IF_ERROR(values.add(one, warnings));
  }
  TITAN_RETURN_IF_ERROR(file->sync());
  TITAN_RETURN_IF_ERROR(file->close());
  TITAN_ASSIGN_OR_RETURN(const std::vector<std::string> left_out, unexported_buffers(step, mapper));
  warnings.insert(warnings.end(), left_out.begin(), left_out.end());
  return warnings;
}

}  // namespace titan::checkpoint::gguf

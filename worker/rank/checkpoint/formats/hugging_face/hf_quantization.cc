#include "worker/rank/checkpoint/formats/hugging_face/hf_quantization.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status/status.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/shards/tensor_box.h"

namespace titan::checkpoint {
namespace {

using nlohmann::json;

constexpr char kFloat8Scale[] = "_scale_inv", kMxfp4Scale[] = "_scales", kMxfp4Blocks[] = "_blocks";
constexpr int64_t kMxfp4Bytes = kMxfp4Group / 2;

// The remedy for a release that another library quantized.
struct Other {
  const char* method;
  const char* remedy;
};
constexpr Other kOthers[] = {
    {"compressed-tensors",
     "load it with transformers and CompressedTensorsConfig(run_compressed=False), and save_pretrained() that"},
    {"bitsandbytes", "load it with transformers, call dequantize() on the model, and save_pretrained() that"},
    {"gptq", "use the release that it was made from: four bits would lose what training needs"},
    {"awq", "use the release that it was made from: four bits would lose what training needs"},
};

absl::Status unread_method(const std::string& path, const std::string& method) {
  const char* remedy = "use the release that is not quantized, or convert it to bfloat16 with that library";
  for (const Other& other : kOthers) {
    if (method == other.method) remedy = other.remedy;
  }
  return absl::FailedPreconditionError(absl::StrCat(path, ": quantization_config.quant_method \"", method,
                                                    "\" is not read, only fp8 and mxfp4 are: ", remedy));
}

absl::Status read_block_size(const json& config, const std::string& path, Quantization& out) {
  const auto size = config.find("weight_block_size");
  if (size == config.end() || size->is_null()) return absl::OkStatus();
  const auto good = [](const json& n) { return n.is_number_unsigned() && n > 0 && n <= (1 << 20); };
  if (!size->is_array() || size->size() != 2 || !good((*size)[0]) || !good((*size)[1])) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": quantization_config.weight_block_size must be two ",
                                                      "integers such as [128, 128], and is ",
                                                      size->dump(-1, ' ', false, json::error_handler_t::replace)));
  }
  out.block_rows = (*size)[0];
  out.block_columns = (*size)[1];
  out.block_said = true;
  return absl::OkStatus();
}

absl::Status unfit(const TensorEntry& tensor, const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat(tensor.key, " ", what));
}

std::string stored_as(c10::ScalarType type) { return safetensors_dtype(type).value_or("an unknown type"); }

bool plain(c10::ScalarType type) { return c10::isFloatingType(type) && c10::elementSize(type) > 1; }

absl::Status check_scale_shape(const TensorEntry& scales, const TensorEntry& tensor, const std::vector<int64_t>& want,
                               const std::string& why) {
  if (scales.shape == want) return absl::OkStatus();
  return unfit(scales, absl::StrCat("is ", shape_text(scales.shape), ", but ", tensor.key, " of ",
                                    shape_text(tensor.shape), " needs ", shape_text(want), " scales: ", why));
}

absl::StatusOr<Coded> float8(const TensorEntry& tensor, const TensorEntry& scales, const Quantization& said) {
  if (tensor.shape.size() != 2) {
    return unfit(tensor, absl::StrCat("is F8_E4M3 of shape ", shape_text(tensor.shape),
                                      ": only matrices are read from blocks with scales"));
  }
  if (!plain(scales.dtype) && scales.dtype != c10::ScalarType::Float8_e8m0fnu) {
    return unfit(scales, absl::StrCat("is ", stored_as(scales.dtype), ": scales of F8_E4M3 are F32"));
  }
  const auto blocks = [](int64_t size, int64_t block) { return size / block + (size % block == 0 ? 0 : 1); };
  TITAN_RETURN_IF_ERROR(check_scale_shape(
      scales, tensor, {blocks(tensor.shape[0], said.block_rows), blocks(tensor.shape[1], said.block_columns)},
      absl::StrCat("one for each ", said.block_rows, "x", said.block_columns, " block",
                   said.block_said ? ", by quantization_config.weight_block_size" : "")));
  return Coded{Coding::kFloat8, tensor.shape};
}

absl::StatusOr<Coded> mxfp4(const TensorEntry& tensor, const TensorEntry& scales) {
  if (tensor.shape.size() < 3 || tensor.shape.back() != kMxfp4Bytes || tensor.bytes() == 0) {
    return unfit(tensor, absl::StrCat("is U8 of shape ", shape_text(tensor.shape), ": MXFP4 has [..., groups, ",
                                      kMxfp4Bytes, "]"));
  }
  if (scales.dtype != c10::ScalarType::Byte && scales.dtype != c10::ScalarType::Float8_e8m0fnu) {
    return unfit(scales, absl::StrCat("is ", stored_as(scales.dtype), ": scales of MXFP4 are exponents, U8"));
  }
  Coded coded{Coding::kMxfp4, tensor.shape};
  coded.shape.pop_back();
  TITAN_RETURN_IF_ERROR(check_scale_shape(scales, tensor, coded.shape, "one for each group of 16 bytes"));
  coded.shape.back() *= kMxfp4Group;  // Twice the bytes in the file, so it fits 63 bits.
  return coded;
}

}  // namespace

absl::StatusOr<Quantization> quantization_of(const std::string& text, const std::string& path) {
  Quantization said;
  const json config = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return absl::FailedPreconditionError(absl::StrCat(path, ": not a JSON object"));
  const json* found = nullptr;
  for (const json* place : {&config, config.contains("text_config") ? &config["text_config"] : &config}) {
    if (found == nullptr && place->is_object() && place->contains("quantization_config")) {
      found = &(*place)["quantization_config"];
    }
  }
  if (found == nullptr || found->is_null()) return said;
  const auto method = found->is_object() ? found->find("quant_method") : found->end();
  if (method == found->end() || !method->is_string()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": quantization_config names no quant_method: name it (fp8, mxfp4), or remove ",
                     "quantization_config when the weights are not quantized"));
  }
  said.method = method->get<std::string>();
  if (said.method == "fp8") {
    TITAN_RETURN_IF_ERROR(read_block_size(*found, path, said));
  } else if (said.method != "mxfp4") {
    return unread_method(path, said.method);
  }
  return said;
}

std::string scaled_by(const std::string& key) {
  const absl::string_view name = key;
  if (absl::EndsWith(name, kFloat8Scale)) {
    const std::string tensor(name.substr(0, name.size() - (sizeof kFloat8Scale - 1)));
    return scales_of(tensor) == key ? tensor : "";  // "X_blocks" has other scales.
  }
  if (!absl::EndsWith(name, kMxfp4Scale)) return "";
  return absl::StrCat(name.substr(0, name.size() - (sizeof kMxfp4Scale - 1)), kMxfp4Blocks);
}

std::string scales_of(const std::string& key) {
  const absl::string_view name = key;
  if (!absl::EndsWith(name, kMxfp4Blocks)) return absl::StrCat(name, kFloat8Scale);
  return absl::StrCat(name.substr(0, name.size() - (sizeof kMxfp4Blocks - 1)), kMxfp4Scale);
}

absl::StatusOr<Coded> coding_of(const TensorEntry& tensor, const TensorEntry* scales, const Quantization& said) {
  const bool bytes = tensor.dtype == c10::ScalarType::Byte && absl::EndsWith(tensor.key, kMxfp4Blocks);
  if (bytes || tensor.dtype == c10::ScalarType::Float8_e4m3fn) {
    if (scales != nullptr) return bytes ? mxfp4(tensor, *scales) : float8(tensor, *scales, said);
    return unfit(tensor, absl::StrCat("is ", stored_as(tensor.dtype), " and has no scales: ", scales_of(tensor.key),
                                      " is missing; download the release again"));
  }
  if (!plain(tensor.dtype)) {
    return unfit(tensor, absl::StrCat("is stored as ", stored_as(tensor.dtype),
                                      ": of quantized weights only F8_E4M3 with X_scale_inv and MXFP4 are read; ",
                                      "convert them to bfloat16 with the library that made them"));
  }
  if (scales != nullptr) {
    return unfit(tensor, absl::StrCat("is ", stored_as(tensor.dtype), " and has scales, ", scales->key,
                                      ": remove them if they are in the numbers already"));
  }
  return Coded{Coding::kPlain, tensor.shape};
}

}  // namespace titan::checkpoint

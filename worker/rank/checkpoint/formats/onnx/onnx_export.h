#pragma once

// Writes a step's model as a folder that ONNX Runtime and onnxruntime-genai open.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "common/plan/models/model_spec.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_export.h"
#include "worker/rank/checkpoint/formats/onnx/onnx_decoder.h"

namespace titan::checkpoint::onnx {

inline constexpr char kModelFile[] = "model.onnx", kDataFile[] = "model.onnx.data";

struct Export {
  bool microsoft = false;  // Target::microsoft.
  int64_t opset = 0;       // 0: 23 for standard operators, 21 for ONNX Runtime's own.
  Positions positions;
  HfExport hugging_face;  // Type of the weights, treatment of overflows, the tokenizer's folder.
};

// Writes into the new folder model.onnx.data, config.json, the tokenizer's files, genai_config.json and, last,
// model.onnx. Tensors are read, converted and written in pieces (write_data()). Returns warnings. Errors: those of
// build_graph(), reading and writing; OutOfRange, names a tensor with values beyond its type.
absl::StatusOr<std::vector<std::string>> write_onnx(storage::Files& files, StepReader& step, const HfMapper& mapper,
                                                    const models::ModelSpec& spec, const Export& options,
                                                    const std::string& folder,
                                                    const std::function<void(const std::string& tensor)>& progress);

}  // namespace titan::checkpoint::onnx

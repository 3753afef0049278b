#pragma once

// Implements titan-checkpoint, without its command line.

#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "common/io/storage/file.h"
#include "worker/rank/tools/model_choice.h"

namespace titan::tools {

// Prints the contents of a step-N folder, or of all step-N folders in a folder. `json`: one object per line.
absl::Status inspect(storage::Files& files, const std::string& path, bool tensors, bool json, std::ostream& out);

// Reads every byte of the steps. Lists all damage; then returns DataLoss if there is any.
absl::Status verify(storage::Files& files, const std::string& path, std::ostream& out);

// Writes the model of a step as a new Hugging Face folder, atomically. The step's manifest records the model. `choice`
// may repeat it, and is required for a step of an older Titan without the record. Errors: InvalidArgument (a choice is
// needed, or options conflict), FailedPrecondition, which names the numbers or tensors that do not fit (nothing is
// written), OutOfRange, which names a tensor with values beyond its type's range.
struct ExportOptions {
  // Empty: float32, except that a "dcp" to resume from keeps all types. "q8_0" is a type of "gguf" only,
  // "float8_block" of "hf" only (hf_quantize.h).
  std::string dtype;
  int64_t max_file_bytes = int64_t{2} << 30;
  // "hf": a whole model; "peft": the adapters of a step, for the PEFT library; "dcp": torchtitan's format; "torch",
  // "torchtune": one file of torch.save (torch_export.h); "gguf": one file for llama.cpp (gguf_export.h); "onnx": a
  // graph, its weights and settings for ONNX Runtime (onnx_export.h).
  std::string format = "hf";
  bool model_only = false;  // "dcp": omits optimizer, schedule, train state and position in the data.
  bool merge =
      false;         // "hf", "gguf" or "onnx" of a step with adapters: writes the model `base` with the adapters added.
  std::string base;  // A step-N folder or a Hugging Face folder. Empty: the one that the step's job used.
  // Folder of the model's tokenizer, whose files are written next to the weights. Empty: the one that the step's job
  // used.
  std::string tokenizer;
  std::string gguf_pre;                     // "gguf": gguf::Export::split.
  std::string onnx_operators = "standard";  // "onnx": or "microsoft", onnx::Export::microsoft.
  int64_t onnx_opset = 0;                   // "onnx": onnx::Export::opset.
  bool allow_overflow = false;  // Values beyond the range of `dtype` become infinite. False: they are an error.
};
absl::Status export_step(storage::Files& files, const std::string& step, const std::string& target,
                         const ModelChoice& choice, const ExportOptions& options, std::ostream& out);

// Imports a Hugging Face folder, a folder that Meta or Mistral releases (params.json and consolidated.*), a folder of
// torch.distributed.checkpoint or a file of torch.save, under torchtitan's or torchtune's names, as a new model-only
// step, atomically. The flavor "config.json" is the model of the folder's own config.json or params.json. Name it in
// checkpoint.initial_load_path, or make it {dump}/{folder}/step-0. A config.json next to the weights must be the
// model's. Quantized weights (fp8, MXFP4) become float32. Tensors are split into pieces of at most `max_file_bytes`,
// about three of which are in memory at once. InvalidArgument if the new folder is named like a step other than 0.
absl::Status import_weights(storage::Files& files, const std::string& source, const std::string& step,
                            const ModelChoice& choice, std::ostream& out, int64_t max_file_bytes = int64_t{256} << 20);

}  // namespace titan::tools

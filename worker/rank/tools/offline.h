#pragma once

// What titan-checkpoint does, apart from its command line.

#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "common/io/storage/file.h"
#include "worker/rank/tools/model_choice.h"

namespace titan::tools {

// A step-N folder, or a folder of such: what is in it. `json`: one object a line.
absl::Status inspect(storage::Files& files, const std::string& path, bool tensors, bool json, std::ostream& out);

// Reads every byte of the steps. DataLoss when anything is damaged, after listing all of it.
absl::Status verify(storage::Files& files, const std::string& path, std::ostream& out);

// The model of a step as a Hugging Face folder that did not exist before, and appears whole or not at all. The step's
// manifest says which model it is; a choice may repeat it, and must be made for a step of a Titan that did not write it
// down. Errors: InvalidArgument (a choice is needed, or options do not go together), FailedPrecondition naming the
// numbers or tensors that do not fit (nothing is written), OutOfRange naming a tensor with numbers that its type cannot
// hold.
struct ExportOptions {
  std::string dtype;  // Empty: float32. Of a "dcp" to go on from nothing else: all of it keeps its type.
  int64_t max_file_bytes = int64_t{2} << 30;
  // A whole model; "peft": the adapters of a step that holds those, for the PEFT library; "dcp": torchtitan's own;
  // "torch", "torchtune": one file of torch.save (torch_export.h).
  std::string format = "hf";
  bool model_only = false;  // "dcp": leave optimizer, schedule, train state and place in the data out.
  bool merge = false;       // "hf" of such a step: the model `base` with its adapters added to its weights.
  std::string base;         // A step-N folder or a Hugging Face folder; empty: where the step's job had it from.
  // Folder of the tokenizer that the model was trained with, whose files are written beside the weights; empty: where
  // the step's job had it from.
  std::string tokenizer;
  bool allow_overflow = false;  // Numbers that `dtype` cannot hold become infinite; else they are an error.
};
absl::Status export_step(storage::Files& files, const std::string& step, const std::string& target,
                         const ModelChoice& choice, const ExportOptions& options, std::ostream& out);

// A Hugging Face folder, a folder of torch.distributed.checkpoint or a file of torch.save, under torchtitan's names or
// torchtune's, as a model-only step that did not exist before: name it in checkpoint.initial_load_path, or
// make it {dump}/{folder}/step-0. It appears whole or not at all. A config.json beside the weights must be the model's.
// Quantized weights (fp8, MXFP4) become float32. Tensors are cut into pieces of `max_file_bytes` at most, of which some
// three are in memory at once. Errors: InvalidArgument (the new folder is called as a step that is no seed).
absl::Status import_weights(storage::Files& files, const std::string& source, const std::string& step,
                            const ModelChoice& choice, std::ostream& out, int64_t max_file_bytes = int64_t{256} << 20);

}  // namespace titan::tools

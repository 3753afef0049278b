#pragma once

// Writes a step's model as one GGUF file.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/storage/file.h"
#include "worker/rank/checkpoint/formats/gguf/gguf_file.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_assets.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"
#include "worker/rank/checkpoint/shards/narrowing.h"
#include "worker/rank/checkpoint/shards/step_reader.h"

namespace titan::checkpoint::gguf {

struct Export {
  Type type = Type::kF32;  // Type of matrices. Norms, biases, sinks and routers stay in float32.
  std::string name;        // The model's, for people.
  HfAssets assets;         // The tokenizer's folder.
  std::string split;       // See add_tokenizer().
  Overflow overflow = Overflow::kRefuse;
  int64_t max_piece_bytes = int64_t{256} << 20;  // Bytes of a tensor held in memory, a few times.
};

// Writes `{folder}/model.gguf` into the new folder. Tensors are read, converted and written in pieces. With kQ8_0,
// matrices whose rows are not whole blocks are float16. Returns warnings. Errors: FailedPrecondition if llama.cpp has
// no such model or tokenizer; those of reading and writing; OutOfRange, names a tensor with values beyond its type.
absl::StatusOr<std::vector<std::string>> write_gguf(storage::Files& files, StepReader& step, const HfMapper& mapper,
                                                    const Export& options, const std::string& folder,
                                                    const std::function<void(const std::string& tensor)>& progress);

}  // namespace titan::checkpoint::gguf

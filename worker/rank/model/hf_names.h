#pragma once

// What a family says about its Hugging Face weights, a table of names and config.json, and the mapper that checkpoints
// import and export with, which is made of it.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/models/model_spec.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"

namespace titan::model {

enum class HfForm {
  kSame,
  kQueryHeads,            // Rows permuted within each query head: halves there, neighbouring pairs here.
  kKeyHeads,              // The same for key heads.
  kEachExpert,            // One tensor for each expert; the second {} of the name is its number.
  kTransposed,            // Last two dims swapped.
  kTransposedFirstHalf,   // The same, as the first half of the last dim.
  kTransposedSecondHalf,  // And as the second.
  kNowhere,               // No such tensor: neither read nor written.
};

// One row. The first {} of both names is the layer. Several rows with one `fqn` are the forms that folders may have;
// the first is the one that exports write.
struct HfName {
  std::string fqn;  // "layers.{}.attention.wq.weight"
  std::string hf;   // "model.layers.{}.self_attn.q_proj.weight"
  HfForm form = HfForm::kSame;
  bool optional = false;   // Folders may lack it.
  bool read_only = false;  // Exports never have it (HfLayout::read_only).
  checkpoint::KeepFloat32 float32 = checkpoint::KeepFloat32::kNever;
};
using HfNames = std::vector<HfName>;

struct HfFamily {
  std::string name;  // As in ModelSpec.
  HfNames (*names)(const models::ModelSpec& spec) = nullptr;
  // config.json with which transformers opens a folder of these weights. `seq_len`: how long the sequences of training
  // were, which decides whether DeepSeek's positions were stretched.
  nlohmann::json (*config)(const models::ModelSpec& spec, int64_t seq_len) = nullptr;
  // Tensors that such folders may have and training does not use (a vision tower); null: none. Tables of rotary
  // frequencies and heads that are tied need no mention.
  bool (*ignores)(const models::ModelSpec& spec, const std::string& key) = nullptr;
};

// Of a family in the registry. Unimplemented: an unknown family, or one whose weights have no such names.
absl::StatusOr<HfFamily> hf_family(const std::string& name);

// What most families share, appended to `names`; `prefix` is "model." or what stands in its place.
void add_embedding_and_norms(HfNames& names, const std::string& prefix);  // Not the head.
void add_attention_projections(HfNames& names, const std::string& prefix, bool bias);
void add_swiglu(HfNames& names, const std::string& fqn, const std::string& hf);   // w1, w2, w3: gate, down, up.
void add_experts(HfNames& names, const std::string& fqn, const std::string& hf);  // Stored apart.

// config.json entries that all families name alike.
nlohmann::json common_config(const models::ModelSpec& spec, const std::string& architecture,
                             const std::string& model_type);

// A model's names and layouts in the form that checkpoints import and export with, config.json included. `seq_len`: of
// the training sequences (HfFamily::config); 0: the longest that the model is made for. Unimplemented for a family
// without Hugging Face names.
absl::StatusOr<std::unique_ptr<checkpoint::HfMapper>> make_hf_mapper(const models::ModelSpec& spec,
                                                                     int64_t seq_len = 0);

// The same for a family that is not in the registry.
std::unique_ptr<checkpoint::HfMapper> make_hf_mapper(const HfFamily& family, const models::ModelSpec& spec,
                                                     int64_t seq_len = 0);

}  // namespace titan::model

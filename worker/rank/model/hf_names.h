#pragma once

// Describes a family's Hugging Face weights by a table of names and a config.json, from which make_hf_mapper() makes
// the mapper that imports and exports checkpoints.

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
  kQueryHeads,            // Rows are permuted within each query head: Hugging Face pairs halves, Titan neighbours.
  kKeyHeads,              // The same for key heads.
  kEachExpert,            // One tensor per expert. The second {} of the name is the expert's number.
  kTransposed,            // The last two dims are swapped.
  kTransposedFirstHalf,   // The last two dims are swapped, and the parameter is the first half of the stored last dim.
  kTransposedSecondHalf,  // The same, second half.
  kRows,                  // The parameter is some rows of a tensor that holds others too (HfName::first_row).
  kNotStored,             // No such tensor exists: it is neither read nor written.
};

// One row of the table. The first {} of both names is the layer. Rows with the same `fqn` are alternative forms in
// which a folder may store it. Exports write the first form.
struct HfName {
  std::string fqn;  // For example "layers.{}.attention.wq.weight".
  std::string hf;   // For example "model.layers.{}.self_attn.q_proj.weight".
  HfForm form = HfForm::kSame;
  bool optional = false;   // Folders may lack it.
  bool read_only = false;  // Exports never write it (HfLayout::read_only).
  checkpoint::KeepFloat32 float32 = checkpoint::KeepFloat32::kNever;
  // With HfForm::kRows: the first row there, and the number of rows.
  int64_t first_row = 0, total_rows = 0;
};
using HfNames = std::vector<HfName>;

struct HfFamily {
  std::string name;  // ModelSpec::name.
  HfNames (*names)(const models::ModelSpec& spec) = nullptr;
  // Returns the config.json with which transformers opens a folder of these weights. `seq_len`: length of the training
  // sequences, which decides whether DeepSeek's positions are stretched.
  nlohmann::json (*config)(const models::ModelSpec& spec, int64_t seq_len) = nullptr;
  // Whether a folder may have the tensor although training does not use it (a vision tower). Null: no tensor. Tables of
  // rotary frequencies and tied heads are handled for every family.
  bool (*ignores)(const models::ModelSpec& spec, const std::string& key) = nullptr;
  // Makes the whole mapper, for weights that a table cannot describe. Null: `names` and `config` describe them.
  std::unique_ptr<checkpoint::HfMapper> (*mapper)(const models::ModelSpec& spec) = nullptr;
};

// Looks up a family in the registry. Unimplemented: the family is unknown or its weights have no Hugging Face names.
absl::StatusOr<HfFamily> hf_family(const std::string& name);

// Append to `names` the entries that most families share. `prefix` is "model." or its equivalent.
void add_embedding_and_norms(HfNames& names, const std::string& prefix);  // Without the head.
void add_attention_projections(HfNames& names, const std::string& prefix, bool bias);
void add_swiglu(HfNames& names, const std::string& fqn, const std::string& hf);   // w1, w2, w3 are gate, down, up.
void add_experts(HfNames& names, const std::string& fqn, const std::string& hf);  // One tensor per expert.

// In what the names of grouped-query decoders differ. The spec decides which parameters there are.
struct DecoderNames {
  std::string prefix = "model.";
  // Norms of a layer: of what attention and feed-forward read, and of what they add. Null: the usual names for the
  // spec's placement of norms.
  const char *attention_norm = nullptr, *attention_post_norm = nullptr;
  const char *ffn_norm = nullptr, *ffn_post_norm = nullptr;
  bool fused_qkv = false;         // One qkv_proj.
  bool fused_gate_up = false;     // One gate_up_proj in dense feed-forwards.
  bool pairs_neighbours = false;  // The class rotates neighbouring channels; otherwise it rotates halves.
  const char* moe = "mlp";
  const char *expert_gate = "gate_proj", *expert_down = "down_proj", *expert_up = "up_proj";
};

// Returns the names of a whole decoder with grouped-query attention: embedding, layers, norm and head.
HfNames decoder_names(const models::ModelSpec& spec, const DecoderNames& names = {});

// Returns the part of a head that is rotated, as config.json states it: the class truncates head_dim times this number.
double partial_rotary_factor(const models::ModelSpec& spec);

// Returns Gemma's query_pre_attn_scalar, whose root divides the scores: an integer where it is one.
nlohmann::json query_pre_attn_scalar(const models::ModelSpec& spec);

// Returns the number; null if it is 0, which stands for "off".
nlohmann::json null_if_zero(double number);
nlohmann::json null_if_zero(int64_t number);

// Returns "sliding_attention" or "full_attention" for each layer.
nlohmann::json layer_types(const models::ModelSpec& spec);

// Adds the keys of classes that choose the layers with windows by use_sliding_window.
void add_optional_windows(const models::ModelSpec& spec, nlohmann::json& config);

// Returns the entries of config.json whose names all families share.
nlohmann::json common_config(const models::ModelSpec& spec, const std::string& architecture,
                             const std::string& model_type);

// Adds what classes with a dense feed-forward and a default padding token share. Such a token may be beyond the
// vocabulary, and transformers would not train its embedding: exports have none.
nlohmann::json decoder_config(const models::ModelSpec& spec, const std::string& architecture,
                              const std::string& model_type);

// Makes a model's mapper, including config.json. `seq_len`: length of the training sequences (HfFamily::config); 0: the
// model's maximum. Unimplemented: the family has no Hugging Face names. FailedPrecondition, names the number: its
// config.json cannot describe the model, whose numbers a job may have changed.
absl::StatusOr<std::unique_ptr<checkpoint::HfMapper>> make_hf_mapper(const models::ModelSpec& spec,
                                                                     int64_t seq_len = 0);

// Does the same for a family that is not in the registry.
std::unique_ptr<checkpoint::HfMapper> make_hf_mapper(const HfFamily& family, const models::ModelSpec& spec,
                                                     int64_t seq_len = 0);

}  // namespace titan::model

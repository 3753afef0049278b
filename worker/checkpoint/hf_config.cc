#include "worker/checkpoint/hf_config.h"

#include <optional>

#include "worker/data/tokenizer.h"

namespace titan::checkpoint {
namespace {

nlohmann::json id_or_null(const std::optional<int32_t>& id) { return id ? nlohmann::json(*id) : nlohmann::json(); }

}  // namespace

nlohmann::json with_token_ids(nlohmann::json config, const std::string& tokenizer_folder) {
  std::optional<int32_t> bos, eos;
  if (!tokenizer_folder.empty()) {
    // One that cannot be read fails a training job long before; weights can be exported without.
    if (const auto tokenizer = data::Tokenizer::load(tokenizer_folder); tokenizer.ok()) {
      bos = (*tokenizer)->bos_id();
      eos = (*tokenizer)->eos_id();
    }
  }
  config["bos_token_id"] = id_or_null(bos);
  config["eos_token_id"] = id_or_null(eos);
  return config;
}

absl::Status write_hf_config(storage::Files& files, const std::string& folder, const HfMapper& mapper,
                             const std::string& tokenizer_folder) {
  const nlohmann::json config = mapper.config();
  if (config.is_null()) return absl::OkStatus();
  return storage::atomic_write(files, storage::join_path(folder, "config.json"),
                               with_token_ids(config, tokenizer_folder).dump(2) + "\n");
}

}  // namespace titan::checkpoint

#include "worker/rank/model/flux/encoder_identity.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/io/storage/crc32c.h"
#include "common/io/storage/file.h"
#include "common/plan/encoders/config.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"
#include "worker/rank/model/encoders/frozen_weights.h"

namespace titan::model::flux {
namespace {

// Keys of config.json that name programs or files, and not the model.
constexpr const char* kIgnoredKeys[] = {"transformers_version", "_diffusers_version", "_name_or_path", "torch_dtype",
                                        "dtype"};
constexpr char kSampleCaption[] = "A photo of 2 cats, \"asleep\" on the émigré's SOFA";

uint32_t add(uint32_t sum, std::string_view bytes) { return storage::crc32c(bytes.data(), bytes.size(), sum); }

absl::StatusOr<uint32_t> add_config(uint32_t sum, const std::string& path) {
  absl::StatusOr<nlohmann::json> config = encoders::read_config(storage::posix_files(), path);
  if (!config.ok()) return sum;  // An autoencoder's file has none.
  for (const char* key : kIgnoredKeys) config->erase(key);
  return add(sum, config->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

// The first numbers of a tensor: those of its last dim at index 0 of the others.
checkpoint::Box beginning(const std::vector<int64_t>& shape) {
  constexpr int64_t kNumbers = 64;
  checkpoint::Box box{std::vector<int64_t>(shape.size(), 0), std::vector<int64_t>(shape.size(), 1)};
  if (!shape.empty()) box.shape.back() = std::min(shape.back(), kNumbers);
  return box;
}

absl::StatusOr<uint32_t> add_weights(uint32_t sum, const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(const auto weights, encoders::open_weights(storage::posix_files(), path));
  std::vector<std::string> keys = weights->keys();
  std::sort(keys.begin(), keys.end());
  for (const std::string& key : keys) {
    TITAN_ASSIGN_OR_RETURN(const checkpoint::Coded coded, weights->coded(key));
    TITAN_ASSIGN_OR_RETURN(const at::Tensor numbers, weights->read(key, beginning(coded.shape)));
    const at::Tensor whole = numbers.contiguous();
    sum = add(sum, absl::StrCat(key, " ", c10::toString(whole.scalar_type()), " ", absl::StrJoin(coded.shape, ",")));
    sum = add(sum, {static_cast<const char*>(whole.const_data_ptr()), whole.nbytes()});
  }
  return sum;
}

absl::StatusOr<std::string> identify(const ConditionerOptions& options, const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(uint32_t sum, add_config(0, path));
  if (options.random_seed) return absl::StrFormat("random by seed %d, %08x", *options.random_seed, sum);
  TITAN_ASSIGN_OR_RETURN(sum, add_weights(sum, path));
  return absl::StrFormat("%08x", sum);
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> identify_encoders(const ConditionerOptions& options,
                                                                     CaptionTokenizers& tokenizers) {
  std::map<std::string, std::string> marks;
  for (const auto& [name, path] : {std::pair{"t5_encoder", &options.t5}, std::pair{"clip_encoder", &options.clip},
                                   std::pair{"autoencoder_path", &options.autoencoder}}) {
    const absl::StatusOr<std::string> mark = identify(options, *path);
    if (!mark.ok()) return annotate(mark.status(), absl::StrCat("encoder.", name));
    marks[name] = *mark;
  }
  std::vector<int64_t> ids(static_cast<size_t>(tokenizers.t5_length() + tokenizers.clip_length()));
  TITAN_RETURN_IF_ERROR(
      tokenizers.encode(kSampleCaption, kSampleCaption, ids.data(), ids.data() + tokenizers.t5_length()));
  marks["tokenizers"] =
      absl::StrFormat("%08x", add(0, {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int64_t)}));
  return marks;
}

}  // namespace titan::model::flux

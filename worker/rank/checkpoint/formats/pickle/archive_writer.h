#pragma once

// torch.save's archives, and the values of PyTorch in pickles.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"
#include "worker/rank/pickle/writer.h"

namespace titan::pickle {

// torch.size(sizes) on the reader's stack.
Writer& torch_size(Writer& writer, const std::vector<int64_t>& sizes);

// A tensor whose storage is the archive's entry data/KEY.
Writer& tensor(Writer& writer, std::string_view type, const std::vector<int64_t>& shape, const std::string& key);

// An entry of an archive.
struct Entry {
  std::string name;
  std::string_view bytes;
};
// An archive as torch.load reads it, in memory (archive_stream.h).
std::string archive_of(const std::vector<Entry>& entries);

// torch.save of a plain object; of a contiguous tensor of `type` ("float32") with `bytes`.
std::string save_plain(const nlohmann::json& value);
std::string save_tensor(std::string_view type, const std::vector<int64_t>& shape, std::string_view bytes);

}  // namespace titan::pickle

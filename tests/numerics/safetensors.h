#pragma once

#include <ATen/ATen.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

// A second, minimal reader of safetensors files, so that golden tests do not depend on the product's own. Returns each
// tensor by name with the shape in the file.
namespace titan::testing {

inline std::map<std::string, at::Tensor> read_safetensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path);
  uint64_t header_size = 0;
  file.read(reinterpret_cast<char*>(&header_size), sizeof header_size);
  std::string header(header_size, '\0');
  file.read(header.data(), static_cast<std::streamsize>(header_size));
  const std::vector<char> data((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::map<std::string, at::Tensor> tensors;
  const nlohmann::json entries = nlohmann::json::parse(header);
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__") continue;
    const std::string type = entry["dtype"];
    if (type != "F32" && type != "F64" && type != "I64") throw std::runtime_error(name + ": unexpected type " + type);
    const at::ScalarType scalar = type == "F32" ? at::kFloat : type == "F64" ? at::kDouble : at::kLong;
    at::Tensor value = at::empty(entry["shape"].get<std::vector<int64_t>>(), scalar);
    const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    if (end > data.size() || end - begin != value.nbytes()) throw std::runtime_error(name + ": wrong size in " + path);
    std::memcpy(value.data_ptr(), data.data() + begin, end - begin);
    tensors.emplace(name, std::move(value));
  }
  return tensors;
}

}  // namespace titan::testing

// Measures how fast quantized weights are read: quantized_load FOLDER KEY_SUFFIX. First reads all files of the folder
// as bytes, then every tensor with a name that ends with KEY_SUFFIX as numbers. Prints processor seconds and counts as
// one JSON line. quantized_load.py makes the folder.

#include <algorithm>
#include <ctime>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/io/storage/file.h"
#include "nlohmann/json.hpp"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"

namespace {

using namespace titan;

// Returns the processor time of this process, which other processes on the machine change little.
double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Reads all bytes of the folder's files, in reads as large as those of tensors.
int64_t read_bytes(const std::string& folder) {
  std::string buffer(size_t{16} << 20, '\0');
  int64_t bytes = 0;
  const std::vector<std::string> names = storage::posix_files().list(folder).value();
  for (const std::string& name : names) {
    if (!absl::EndsWith(name, ".safetensors")) continue;
    const auto file = storage::posix_files().open(storage::join_path(folder, name)).value();
    for (int64_t at = 0; at < file->size(); at += static_cast<int64_t>(buffer.size())) {
      const int64_t count = std::min(file->size() - at, static_cast<int64_t>(buffer.size()));
      if (const absl::Status read = file->read(at, count, buffer.data()); !read.ok())
        throw std::runtime_error(read.ToString());
      bytes += count;
    }
  }
  return bytes;
}

int run(const std::string& folder, const std::string& suffix) {
  nlohmann::json row;
  double start = processor_seconds();
  row["bytes"] = read_bytes(folder);
  row["bytes_seconds"] = processor_seconds() - start;
  const auto weights = checkpoint::HfFolder::open(storage::posix_files(), folder).value();
  start = processor_seconds();
  int64_t numbers = 0;
  for (const std::string& key : weights->keys()) {
    if (absl::EndsWith(key, suffix)) numbers += weights->read(key).value().numel();
  }
  row["numbers"] = numbers;
  row["numbers_seconds"] = processor_seconds() - start;
  std::cout << row.dump() << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: quantized_load FOLDER KEY_SUFFIX" << std::endl;
    return 2;
  }
  try {
    return run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::cerr << "quantized_load: " << error.what() << std::endl;
    return 1;
  }
}

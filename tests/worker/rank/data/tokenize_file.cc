// Tokenizes the texts of a file for comparison with the Python package: tokenize_file FOLDER TEXTS IDS [repeats
// [DECODED]]. TEXTS: for each text a little-endian uint32 length, then UTF-8. IDS: for each text a uint32 count, then
// int32 tokens. DECODED: the decoded text of each text's tokens, in the form of TEXTS.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iostream>
#include <sstream>

#include "worker/rank/data/tokenizer/tokenizer.h"

namespace {

void decode_all(titan::data::Tokenizer& tokenizer, const std::string& all, const char* path) {
  std::ofstream out(path, std::ios::binary);
  std::vector<int32_t> tokens;
  for (size_t at = 0; at + 4 <= all.size();) {
    uint32_t length;
    std::memcpy(&length, all.data() + at, 4);
    tokens.clear();
    if (!tokenizer.encode({all.data() + at + 4, length}, tokens).ok()) return;
    at += 4 + length;
    const std::string text = tokenizer.decode(tokens);
    const auto size = static_cast<uint32_t>(text.size());
    out.write(reinterpret_cast<const char*>(&size), 4);
    out << text;
  }
}

int run(const char* folder, const char* texts_path, const char* ids_path, int repeats, const char* decoded_path) {
  auto tokenizer = titan::data::Tokenizer::load(folder);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status() << "\n";
    return 2;
  }
  std::ostringstream buffer;
  buffer << std::ifstream(texts_path, std::ios::binary).rdbuf();
  const std::string all = buffer.str();
  std::ofstream out(ids_path, std::ios::binary);
  std::vector<int32_t> tokens;
  size_t bytes = 0;
  const std::clock_t start = std::clock();  // CPU time of this program: other processes share the machine.
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (size_t at = 0; at + 4 <= all.size();) {
      uint32_t length;
      std::memcpy(&length, all.data() + at, 4);
      tokens.clear();
      if (absl::Status status = (*tokenizer)->encode({all.data() + at + 4, length}, tokens); !status.ok()) {
        std::cerr << "text at " << at << ": " << status << "\n";
        return 3;
      }
      at += 4 + length;
      bytes += length;
      if (repeat > 0) continue;
      const auto count = static_cast<uint32_t>(tokens.size());
      out.write(reinterpret_cast<const char*>(&count), 4);
      out.write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(4 * tokens.size()));
    }
  }
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  std::printf("%.2f\n", static_cast<double>(bytes) / 1e6 / seconds);
  if (decoded_path != nullptr) decode_all(**tokenizer, all, decoded_path);
  return out.flush() ? 0 : 4;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: tokenize_file FOLDER TEXTS IDS [repeats [DECODED]]\n";
    return 1;
  }
  return run(argv[1], argv[2], argv[3], argc > 4 ? std::atoi(argv[4]) : 1, argc > 5 ? argv[5] : nullptr);
}

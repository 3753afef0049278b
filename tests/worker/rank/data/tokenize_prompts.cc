// Tokenizes the prompts of a file for comparison with the package `transformers`: tokenize_prompts FOLDER LENGTH TEXTS
// IDS [test]. TEXTS as for tokenize_file. IDS: int64 [texts, LENGTH]. Prints the kind of the tokenizer and what decided
// it. LENGTH 0 is the folder's own.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>

#include "worker/rank/data/tokenizer/prompt_tokenizer.h"

namespace {

using titan::data::PromptTokenizer;

std::vector<std::string> read_texts(const char* path) {
  std::ostringstream buffer;
  buffer << std::ifstream(path, std::ios::binary).rdbuf();
  const std::string all = buffer.str();
  std::vector<std::string> texts;
  for (size_t at = 0; at + 4 <= all.size();) {
    uint32_t length;
    std::memcpy(&length, all.data() + at, 4);
    texts.push_back(all.substr(at + 4, length));
    at += 4 + length;
  }
  return texts;
}

int run(const std::string& folder, int64_t length, const char* texts_path, const char* ids_path, bool test) {
  auto tokenizer = test ? PromptTokenizer::load_for_test(folder, length) : PromptTokenizer::load(folder, length);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status() << "\n";
    return 2;
  }
  const std::vector<std::string> texts = read_texts(texts_path);
  std::vector<int64_t> ids(texts.size() * static_cast<size_t>(tokenizer->length()));
  if (const absl::Status status = tokenizer->encode_rows(texts, ids.data()); !status.ok()) {
    std::cerr << status << "\n";
    return 3;
  }
  std::ofstream out(ids_path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(8 * ids.size()));
  const char* names[] = {"T5", "CLIP", "test"};
  std::cout << names[static_cast<int>(tokenizer->kind())] << " " << tokenizer->length() << " "
            << tokenizer->kind_source() << "\n";
  return out.flush() ? 0 : 4;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::cerr << "usage: tokenize_prompts FOLDER LENGTH TEXTS IDS [test]\n";
    return 1;
  }
  return run(argv[1], std::atoll(argv[2]), argv[3], argv[4], argc > 5);
}

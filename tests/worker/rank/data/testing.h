#pragma once

// Tests use a tokenizer of single bytes, and datasets in a temporary folder.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "common/base/text/utf8.h"
#include "nlohmann/json.hpp"

namespace titan::data::testing {

// Returns GPT-2's character for each byte: token i is byte i.
inline nlohmann::json byte_vocabulary() {
  nlohmann::json vocabulary;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    std::string spelling;
    text::append_utf8(spelling, printable ? byte : next++);
    vocabulary[spelling] = byte;
  }
  return vocabulary;
}

// Returns a tokenizer with bytes as tokens 0-255, "<bos>" 256 and "<eos>" 257.
inline nlohmann::json byte_tokenizer() {
  const auto special = [](int id, const char* content) {
    return nlohmann::json{
        {"id", id},        {"content", content}, {"special", true}, {"normalized", false}, {"single_word", false},
        {"lstrip", false}, {"rstrip", false}};
  };
  return {{"version", "1.0"},
          {"added_tokens", {special(256, "<bos>"), special(257, "<eos>")}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"model", {{"type", "BPE"}, {"vocab", byte_vocabulary()}, {"merges", nlohmann::json::array()}}}};
}

class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "titan-data-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::string path = path_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  void write_tokenizer(const nlohmann::json& tokenizer) const {
    write("tokenizer.json", tokenizer.dump());
    write("tokenizer_config.json", R"({"bos_token": "<bos>", "eos_token": {"content": "<eos>"}})");
  }

 private:
  std::string path_;
};

}  // namespace titan::data::testing

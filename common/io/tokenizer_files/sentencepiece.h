#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::tokenizer_files {

struct SentencePiece {
  enum class Type { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  std::string text;
  float score = 0;
  Type type = Type::kNormal;
};

// A model of SentencePiece: what of its encoded message (sentencepiece_model.proto) tells how text becomes tokens. Read
// here, since the package's library brings a Protobuf of its own that ends every program with another one.
struct SentencePieceModel {
  enum class Kind { kUnigram = 1, kBytePairs = 2 };
  Kind kind = Kind::kUnigram;
  std::vector<SentencePiece> pieces;  // By number.
  bool byte_fallback = false;
  int32_t unknown_id = 0, bos_id = -1, eos_id = -1;  // -1: none.
  std::string unknown_surface = " \u2047 ";

  std::string charsmap;  // Compiled rules of normalisation; empty: none.
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

// InvalidArgument: what is no such message, pieces that contradict each other, options that are not supported, by name.
absl::StatusOr<SentencePieceModel> parse_sentencepiece(std::string_view bytes);

}  // namespace titan::tokenizer_files

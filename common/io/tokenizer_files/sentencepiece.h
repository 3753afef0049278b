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

// A SentencePiece model: the parts of its encoded message (sentencepiece_model.proto) that decide how text becomes
// tokens. Titan parses it itself, because the package's library includes a Protobuf that aborts every program with
// another one.
struct SentencePieceModel {
  enum class Kind { kUnigram = 1, kBytePairs = 2 };
  Kind kind = Kind::kUnigram;
  std::vector<SentencePiece> pieces;  // Indexed by token id.
  bool byte_fallback = false;
  int32_t unknown_id = 0, bos_id = -1, eos_id = -1;  // -1: none.
  std::string unknown_surface = " \u2047 ";

  std::string charsmap;  // Compiled normalization rules; empty: none.
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

// Parses a model. Errors: InvalidArgument for bytes that are not such a message, pieces that contradict each other, and
// unsupported options, which it names.
absl::StatusOr<SentencePieceModel> parse_sentencepiece(std::string_view bytes);

}  // namespace titan::tokenizer_files

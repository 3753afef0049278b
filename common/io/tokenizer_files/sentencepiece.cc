#include "common/io/tokenizer_files/sentencepiece.h"

#include <array>
#include <bit>
#include <cmath>
#include <functional>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status/status.h"
#include "common/base/text/utf8.h"

namespace titan::tokenizer_files {
namespace {

using Type = SentencePiece::Type;
using Kind = SentencePieceModel::Kind;

constexpr size_t kMaxPieces = (1 << 22) - 1;
constexpr size_t kMaxPieceLength = 8000;  // In bytes; the limit of the sentencepiece package.

absl::Status wrong(const std::string& what) { return absl::InvalidArgumentError(what); }

// One field of an encoded message.
struct Field {
  uint64_t number = 0;
  uint64_t value = 0;      // For numbers, as encoded.
  std::string_view bytes;  // For texts and messages.
};

class Message {
 public:
  explicit Message(std::string_view bytes) : rest_(bytes) {}

  // Calls `take` with each field, in order.
  absl::Status each(const std::function<absl::Status(const Field&)>& take) {
    while (!rest_.empty()) {
      Field field;
      if (!read(field)) return wrong("is not a SentencePiece model: its encoded message is damaged or truncated");
      TITAN_RETURN_IF_ERROR(take(field));
    }
    return absl::OkStatus();
  }

 private:
  bool read(Field& field) {
    uint64_t tag = 0;
    if (!varint(tag)) return false;
    field.number = tag >> 3;
    switch (tag & 7) {
      case 0:
        return varint(field.value);
      case 1:
        return fixed(8, field.value);
      case 2:
        if (!varint(field.value) || field.value > rest_.size()) return false;
        field.bytes = rest_.substr(0, field.value);
        rest_.remove_prefix(field.value);
        return true;
      case 5:
        return fixed(4, field.value);
    }
    return false;
  }

  bool varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_[0]);
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool fixed(size_t size, uint64_t& value) {
    if (rest_.size() < size) return false;
    for (size_t i = 0; i < size; ++i) value |= static_cast<uint64_t>(static_cast<unsigned char>(rest_[i])) << (8 * i);
    rest_.remove_prefix(size);
    return true;
  }

  std::string_view rest_;
};

class ModelReader {
 public:
  absl::StatusOr<SentencePieceModel> read(std::string_view bytes) {
    TITAN_RETURN_IF_ERROR(Message(bytes).each([&](const Field& field) -> absl::Status {
      if (field.number == 1) return piece(field.bytes);
      if (field.number == 2) return trainer(field.bytes);
      if (field.number == 3) return normalizer(field.bytes);
      if (field.number == 5) return denormalizer(field.bytes);
      return absl::OkStatus();
    }));
    TITAN_RETURN_IF_ERROR(check_pieces());
    return std::move(model_);
  }

 private:
  absl::Status piece(std::string_view bytes) {
    SentencePiece piece;
    TITAN_RETURN_IF_ERROR(Message(bytes).each([&](const Field& field) {
      if (field.number == 1) piece.text = field.bytes;
      if (field.number == 2) piece.score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
      if (field.number == 3) piece.type = static_cast<Type>(field.value);
      return absl::OkStatus();
    }));
    const auto type = static_cast<uint64_t>(piece.type);
    if (type < 1 || type > 6) return wrong(absl::StrCat(name(piece), " has the unknown type ", type));
    model_.pieces.push_back(std::move(piece));
    if (model_.pieces.size() > kMaxPieces) return wrong(absl::StrCat("has more than ", kMaxPieces, " pieces"));
    return absl::OkStatus();
  }

  absl::Status trainer(std::string_view bytes) {
    return Message(bytes).each([&](const Field& field) {
      if (field.number == 3) return kind(field.value);
      if (field.number == 24 && field.value != 0) return wrong("treat_whitespace_as_suffix is not supported");
      if (field.number == 35) model_.byte_fallback = field.value != 0;
      if (field.number == 44) model_.unknown_surface = field.bytes;
      if (field.number == 46) bos_ = field.bytes;
      if (field.number == 47) eos_ = field.bytes;
      return absl::OkStatus();
    });
  }

  absl::Status kind(uint64_t value) {
    if (value != 1 && value != 2) {
      return wrong(absl::StrCat("model_type is ",
                                value == 3   ? "WORD"
                                : value == 4 ? "CHAR"
                                             : absl::StrCat(value),
                                "; only UNIGRAM and BPE are supported"));
    }
    model_.kind = static_cast<Kind>(value);
    return absl::OkStatus();
  }

  absl::Status normalizer(std::string_view bytes) {
    return Message(bytes).each([&](const Field& field) {
      if (field.number == 2) model_.charsmap = field.bytes;
      if (field.number == 3) model_.add_dummy_prefix = field.value != 0;
      if (field.number == 4) model_.remove_extra_whitespaces = field.value != 0;
      if (field.number == 5) model_.escape_whitespaces = field.value != 0;
      return absl::OkStatus();
    });
  }

  absl::Status denormalizer(std::string_view bytes) {
    return Message(bytes).each([&](const Field& field) {
      const bool rules = field.number == 2 && !field.bytes.empty();
      return rules ? wrong("denormalizer_spec with rules is not supported") : absl::OkStatus();
    });
  }

  absl::Status check_pieces() {
    absl::flat_hash_set<std::string> normal, reserved;
    std::array<bool, 256> bytes{};
    int unknown = 0;
    for (size_t id = 0; id < model_.pieces.size(); ++id) {
      const SentencePiece& piece = model_.pieces[id];
      if (piece.text.empty() || piece.text.find('\0') != std::string::npos ||
          text::valid_utf8(piece.text) != piece.text) {
        return wrong(absl::StrCat("piece ", id, " is empty or not UTF-8"));
      }
      if (piece.text.size() >= kMaxPieceLength) {
        return wrong(absl::StrCat("piece ", id, " has ", piece.text.size(), " bytes; the limit is ", kMaxPieceLength));
      }
      if (!std::isfinite(piece.score)) return wrong(absl::StrCat(name(piece), " has no finite score"));
      const bool is_reserved =
          piece.type == Type::kUnknown || piece.type == Type::kControl || piece.type == Type::kByte;
      if (!(is_reserved ? reserved : normal).insert(piece.text).second)
        return wrong(absl::StrCat(name(piece), " occurs twice"));
      if (piece.type == Type::kUnknown && ++unknown == 1) model_.unknown_id = static_cast<int32_t>(id);
      if (piece.type == Type::kControl && piece.text == bos_) model_.bos_id = static_cast<int32_t>(id);
      if (piece.type == Type::kControl && piece.text == eos_) model_.eos_id = static_cast<int32_t>(id);
      if (piece.type == Type::kByte) TITAN_RETURN_IF_ERROR(byte(piece, bytes));
    }
    if (unknown != 1) return wrong(absl::StrCat("has ", unknown, " pieces of type UNKNOWN instead of one"));
    if (!model_.byte_fallback) return absl::OkStatus();
    for (size_t value = 0; value < bytes.size(); ++value) {
      if (!bytes[value]) return wrong(absl::StrFormat("byte_fallback is set, but there is no piece <0x%02X>", value));
    }
    return absl::OkStatus();
  }

  absl::Status byte(const SentencePiece& piece, std::array<bool, 256>& bytes) {
    uint32_t value = 0;
    if (!model_.byte_fallback || piece.text.size() != 6 || !absl::SimpleHexAtoi(piece.text.substr(1, 4), &value) ||
        piece.text != absl::StrFormat("<0x%02X>", value)) {
      return wrong(absl::StrCat(name(piece), " is a byte, ",
                                model_.byte_fallback ? "but not spelled like <0x0A>" : "but byte_fallback is not set"));
    }
    bytes.at(value) = true;
    return absl::OkStatus();
  }

  static std::string name(const SentencePiece& piece) {
    return absl::StrCat("piece \"", absl::CHexEscape(piece.text.substr(0, 60)), "\"");
  }

  SentencePieceModel model_;
  std::string bos_ = "<s>", eos_ = "</s>";
};

}  // namespace

absl::StatusOr<SentencePieceModel> parse_sentencepiece(std::string_view bytes) { return ModelReader().read(bytes); }

}  // namespace titan::tokenizer_files

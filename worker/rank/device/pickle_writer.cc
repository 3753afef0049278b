#include "worker/rank/device/pickle_writer.h"

#include <bit>
#include <limits>

namespace titan::device {
namespace {

// The format's operations, by their names in Python's pickletools.
enum Opcode : unsigned char {
  kProto = 0x80,
  kStop = '.',
  kNone = 'N',
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kBinInt = 'J',
  kLong1 = 0x8a,
  kBinFloat = 'G',
  kBinUnicode = 'X',
  kEmptyDict = '}',
  kEmptyList = ']',
  kAppend = 'a',
  kSetItem = 's',
  kTuple2 = 0x86,
  kBinPut = 'q',
  kLongBinPut = 'r',
  kBinGet = 'h',
  kLongBinGet = 'j',
};

}  // namespace

PickleWriter::PickleWriter() {
  raw(kProto, 1);
  raw(2, 1);
}

// Little-endian.
template <typename Number>
void PickleWriter::raw(Number value, int bytes) {
  auto bits = static_cast<uint64_t>(value);
  for (int i = 0; i < bytes; ++i, bits >>= 8) out_.push_back(static_cast<char>(bits & 0xff));
}

void PickleWriter::none() { raw(kNone, 1); }
void PickleWriter::boolean(bool value) { raw(value ? kNewTrue : kNewFalse, 1); }

void PickleWriter::integer(int64_t value) {
  if (value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max()) {
    raw(kBinInt, 1);
    raw(value, 4);
  } else {
    raw(kLong1, 1);
    raw(8, 1);  // Bytes.
    raw(value, 8);
  }
}

void PickleWriter::real(double value) {
  raw(kBinFloat, 1);
  const auto bits = std::bit_cast<uint64_t>(value);
  for (int shift = 56; shift >= 0; shift -= 8) raw(bits >> shift, 1);  // Big-endian, alone of all.
}

void PickleWriter::text(std::string_view value) {
  if (const auto found = texts_.find(value); found != texts_.end()) return recall(found->second);
  raw(kBinUnicode, 1);
  raw(value.size(), 4);
  out_.append(value);
  texts_.emplace(value, remember());
}

void PickleWriter::dict() { raw(kEmptyDict, 1); }
void PickleWriter::list() { raw(kEmptyList, 1); }
void PickleWriter::append() { raw(kAppend, 1); }
void PickleWriter::set() { raw(kSetItem, 1); }
void PickleWriter::pair() { raw(kTuple2, 1); }

int PickleWriter::remember() {
  const int place = remembered_++;
  raw(place < 256 ? kBinPut : kLongBinPut, 1);
  raw(place, place < 256 ? 1 : 4);
  return place;
}

void PickleWriter::recall(int remembered) {
  raw(remembered < 256 ? kBinGet : kLongBinGet, 1);
  raw(remembered, remembered < 256 ? 1 : 4);
}

void PickleWriter::field(std::string_view key, bool value) {
  field(key, [&] { boolean(value); });
}
void PickleWriter::field(std::string_view key, int64_t value) {
  field(key, [&] { integer(value); });
}
void PickleWriter::field(std::string_view key, double value) {
  field(key, [&] { real(value); });
}
void PickleWriter::field(std::string_view key, std::string_view value) {
  field(key, [&] { text(value); });
}

std::string PickleWriter::finish() && {
  raw(kStop, 1);
  return std::move(out_);
}

}  // namespace titan::device

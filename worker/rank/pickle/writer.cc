#include "worker/rank/pickle/writer.h"

#include <bit>

#include "worker/rank/pickle/opcodes.h"

namespace titan::pickle {

Writer::Writer(int protocol) { opcode(kProtocol).number(static_cast<uint64_t>(protocol), 1); }

Writer& Writer::opcode(uint8_t code) {
  out_.push_back(static_cast<char>(code));
  return *this;
}

void Writer::number(uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out_.push_back(static_cast<char>(value >> (8 * i)));
}

Writer& Writer::none() { return opcode(kNone); }
Writer& Writer::boolean(bool value) { return opcode(value ? kTrue : kFalse); }

Writer& Writer::integer(int64_t value) {
  if (value >= 0 && value < 256) {
    opcode(kInt1).number(static_cast<uint64_t>(value), 1);
  } else if (value == static_cast<int32_t>(value)) {
    opcode(kInt4).number(static_cast<uint64_t>(value), 4);
  } else {
    opcode(kLong1).number(8, 1);
    number(static_cast<uint64_t>(value), 8);
  }
  return *this;
}

Writer& Writer::real(double value) {
  opcode(kFloat).number(__builtin_bswap64(std::bit_cast<uint64_t>(value)), 8);
  return *this;
}

Writer& Writer::text(std::string_view value) {
  if (const auto known = texts_.find(value); known != texts_.end()) return get_memo(known->second);
  opcode(kUnicode4).number(value.size(), 4);
  out_ += value;
  texts_.emplace(value, memoize());
  return *this;
}

Writer& Writer::bytes(std::string_view value) {
  opcode(kBytes4).number(value.size(), 4);
  out_ += value;
  return *this;
}

Writer& Writer::name(std::string_view module, std::string_view name) {
  const std::string line = std::string(module) + "\n" + std::string(name) + "\n";
  if (const auto known = names_.find(line); known != names_.end()) return get_memo(known->second);
  opcode(kGlobal);
  out_ += line;
  names_.emplace(line, memoize());
  return *this;
}

Writer& Writer::integers(const std::vector<int64_t>& values) {
  mark();
  for (const int64_t value : values) integer(value);
  return tuple();
}

Writer& Writer::plain(const nlohmann::json& value) {
  if (value.is_null()) return none();
  if (value.is_boolean()) return boolean(value.get<bool>());
  if (value.is_number_integer()) return integer(value.get<int64_t>());
  if (value.is_number()) return real(value.get<double>());
  if (value.is_string()) return text(value.get_ref<const std::string&>());
  if (value.is_binary()) {
    const auto& binary = value.get_binary();
    return bytes({reinterpret_cast<const char*>(binary.data()), binary.size()});
  }
  if (value.is_array()) {
    empty_list().mark();
    for (const auto& item : value) plain(item);
    return appends();
  }
  empty_dict().mark();
  for (const auto& [key, item] : value.items()) text(key).plain(item);
  return set_items();
}

Writer& Writer::mark() { return opcode(kMark); }
Writer& Writer::tuple() { return opcode(kTuple); }
Writer& Writer::empty_list() { return opcode(kEmptyList); }
Writer& Writer::empty_dict() { return opcode(kEmptyDict); }
Writer& Writer::appends() { return opcode(kAppends); }
Writer& Writer::append() { return opcode(kAppend); }
Writer& Writer::set_items() { return opcode(kSetItems); }
Writer& Writer::reduce() { return opcode(kReduce); }
Writer& Writer::object(std::string_view module, std::string_view name) {
  return this->name(module, name).opcode(kEmptyTuple).opcode(kNewObject);
}
Writer& Writer::build() { return opcode(kBuild); }
Writer& Writer::reference() { return opcode(kPersistentId); }

uint32_t Writer::memoize() {
  const bool small = remembered_ < 256;
  opcode(small ? kPut1 : kPut4).number(remembered_, small ? 1 : 4);
  return remembered_++;
}

Writer& Writer::get_memo(uint32_t number) {
  const bool small = number < 256;
  opcode(small ? kGet1 : kGet4).number(number, small ? 1 : 4);
  return *this;
}

std::string Writer::finish() {
  opcode(kStop);
  return std::move(out_);
}

}  // namespace titan::pickle

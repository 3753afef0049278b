#pragma once

// Writes Python's pickles, opcode by opcode, and torch.save's archives.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

namespace titan::pickle {

// Protocol 3; 2 where it has no bytes in it. What is called leaves one value on the reader's stack, unless it says
// otherwise.
class Writer {
 public:
  explicit Writer(int protocol = 3);

  Writer& none();
  Writer& boolean(bool value);
  Writer& integer(int64_t value);
  Writer& real(double value);
  Writer& text(std::string_view value);
  Writer& bytes(std::string_view value);
  Writer& name(std::string_view module, std::string_view name);  // A class or function.
  Writer& integers(const std::vector<int64_t>& values);          // A tuple.
  // Numbers, texts, lists and dicts; binary as bytes.
  Writer& plain(const nlohmann::json& value);

  Writer& mark();   // Leaves a mark; what follows up to the call that ends it is its contents.
  Writer& tuple();  // Ends a mark.
  Writer& empty_list();
  Writer& empty_dict();
  Writer& appends();    // Ends a mark: its contents go into the list before it.
  Writer& set_items();  // Ends a mark: keys and values by turns, into the dict before it.
  Writer& reduce();     // Of a function and the tuple behind it.
  Writer& object(std::string_view module, std::string_view name);  // A new object without a state;
  Writer& build();                                                 // the value behind it becomes it.
  Writer& reference();                                             // What the value before names beside the pickle.

  std::string finish();  // The pickle.

 private:
  Writer& opcode(uint8_t code);
  void number(uint64_t value, int bytes);

  std::string out_;
  std::map<std::string, uint32_t> names_;  // Numbers under which they are kept.
};

// torch.size(sizes) on the reader's stack.
Writer& torch_size(Writer& writer, const std::vector<int64_t>& sizes);

// An entry of an archive.
struct Entry {
  std::string name;
  std::string_view bytes;
};
// An archive as torch.load reads it, in memory (archive_stream.h).
std::string archive_of(const std::vector<Entry>& entries);

// torch.save of a plain object; of a contiguous tensor of `type` ("float32") with `bytes`.
std::string save_plain(const nlohmann::json& value);
std::string save_tensor(std::string_view type, const std::vector<int64_t>& shape, std::string_view bytes);
// The tensor's place in a pickle, its storage being data/KEY.
Writer& tensor(Writer& writer, std::string_view type, const std::vector<int64_t>& shape, const std::string& key);

}  // namespace titan::pickle

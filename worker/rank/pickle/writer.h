#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

namespace titan::pickle {

// Writes Python's pickles, opcode by opcode, so that a file of a hundred thousand entries needs no more memory than its
// bytes. Each call leaves one value on the reader's stack unless its comment says otherwise. Numbers, texts, lists and
// dicts take opcodes that all of PyTorch's readers know, its memory viewer included.
class Writer {
 public:
  // Protocol 3; 2 suffices for a pickle without bytes().
  explicit Writer(int protocol = 3);

  Writer& none();
  Writer& boolean(bool value);
  Writer& integer(int64_t value);
  Writer& real(double value);
  Writer& text(std::string_view value);  // Written once; a repetition refers to it.
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
  Writer& append();     // The last value goes into the list before it: the viewer cannot take 100,000 by appends().
  Writer& set_items();  // Ends a mark: alternating keys and values go into the dict before it.
  Writer& reduce();     // Calls a function with the tuple after it.
  Writer& object(std::string_view module, std::string_view name);  // A new object without a state;
  Writer& build();                                                 // the value after it becomes its state.
  Writer& reference();  // Replaces the last value by what it names outside of the pickle.

  uint32_t remember();              // The number of the last value, which stays;
  Writer& recall(uint32_t number);  // the same object again.

  std::string finish();  // The pickle.

 private:
  using Numbers = std::map<std::string, uint32_t, std::less<>>;

  Writer& opcode(uint8_t code);
  void number(uint64_t value, int bytes);

  std::string out_;
  uint32_t remembered_ = 0;
  Numbers texts_, names_;
};

}  // namespace titan::pickle

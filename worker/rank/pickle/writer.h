#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

namespace titan::pickle {

// Writes Python pickles opcode by opcode, so that a file of a hundred thousand entries needs only the memory of its
// bytes. Each call leaves one value on the reader's stack unless its comment says otherwise. Numbers, texts, lists and
// dicts use opcodes that all of PyTorch's readers support, including its memory viewer.
class Writer {
 public:
  // Protocol 3. Protocol 2 suffices without bytes().
  explicit Writer(int protocol = 3);

  Writer& none();
  Writer& boolean(bool value);
  Writer& integer(int64_t value);
  Writer& real(double value);
  Writer& text(std::string_view value);  // Written once; repetitions refer to it.
  Writer& bytes(std::string_view value);
  Writer& name(std::string_view module, std::string_view name);  // A class or function.
  Writer& integers(const std::vector<int64_t>& values);          // A tuple.
  // Writes numbers, texts, lists and dicts; binary JSON becomes bytes.
  Writer& plain(const nlohmann::json& value);

  Writer& mark();   // Leaves a mark. The values up to the call that ends the mark are its contents.
  Writer& tuple();  // Ends a mark.
  Writer& empty_list();
  Writer& empty_dict();
  Writer& appends();  // Ends a mark and appends its contents to the list before it.
  // Appends the last value to the list before it. The viewer does not support 100,000 values in appends().
  Writer& append();
  Writer& set_items();  // Ends a mark and puts its alternating keys and values into the dict before it.
  Writer& reduce();     // Calls the function on the stack with the tuple after it.
  Writer& object(std::string_view module, std::string_view name);  // A new object without state.
  Writer& build();      // Makes the last value the state of the object before it.
  Writer& reference();  // Replaces the last value by the object outside the pickle that it names.

  uint32_t memoize();                 // Returns a number for the last value, which stays.
  Writer& get_memo(uint32_t number);  // Pushes that object again.

  std::string finish();  // Returns the pickle.

 private:
  using Numbers = std::map<std::string, uint32_t, std::less<>>;

  Writer& opcode(uint8_t code);
  void number(uint64_t value, int bytes);

  std::string out_;
  uint32_t remembered_ = 0;
  Numbers texts_, names_;
};

}  // namespace titan::pickle

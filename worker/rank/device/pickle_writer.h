#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>

namespace titan::device {

// Writes Python's pickle format (protocol 2) value by value, so that a file of a hundred thousand entries needs no more
// memory than its text. Only what PyTorch's analysers and its memory viewer read is used. Numbers, texts and none() end
// up on the format's stack; append() and set() take them from there into the list or the dict below.
class PickleWriter {
 public:
  PickleWriter();

  void none();
  void boolean(bool value);
  void integer(int64_t value);
  void real(double value);
  void text(std::string_view value);  // A text that was written before is only named.
  void dict();                        // An empty one, to be filled by set().
  void list();                        // An empty one, to be filled by append().

  void append();  // The newest value, to the list under it.
  void set();     // The newest value, under the text before it, into the dict under both.
  void pair();    // The two newest values become one tuple.

  // The newest value, which stays; recall() puts the same object down again.
  int remember();
  void recall(int remembered);

  void field(std::string_view key, bool value);
  void field(std::string_view key, int64_t value);
  void field(std::string_view key, double value);
  void field(std::string_view key, std::string_view value);
  void field(std::string_view key, const char* value) { field(key, std::string_view(value)); }
  template <typename Put>
  requires std::is_invocable_v<Put>
  void field(std::string_view key, const Put& put) {  // `put` writes one value.
    text(key);
    put();
    set();
  }

  std::string finish() &&;  // The pickle of the one value that is left.

 private:
  template <typename Number>
  void raw(Number value, int bytes);

  std::string out_;
  int remembered_ = 0;
  std::map<std::string, int, std::less<>> texts_;
};

}  // namespace titan::device

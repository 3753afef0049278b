#include "worker/rank/checkpoint/formats/pickle/reader.h"

#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/rank/checkpoint/formats/pickle/names.h"
#include "worker/rank/pickle/opcodes.h"

namespace titan::pickle {

using Kind = PickleValue::Kind;

namespace {

// Opcodes of Python that checkpoints do not contain.
constexpr std::pair<uint8_t, const char*> kRefused[] = {
    {'0', "POP"},          {'1', "POP_MARK"},
    {'2', "DUP"},          {'F', "FLOAT"},
    {'I', "INT"},          {'L', "LONG"},
    {'P', "PERSID"},       {'S', "STRING"},
    {'T', "BINSTRING"},    {'U', "SHORT_BINSTRING"},
    {'V', "UNICODE"},      {'d', "DICT"},
    {'g', "GET"},          {'i', "INST"},
    {'l', "LIST"},         {'o', "OBJ"},
    {'p', "PUT"},          {0x82, "EXT1"},
    {0x83, "EXT2"},        {0x84, "EXT4"},
    {0x8b, "LONG4"},       {0x8f, "EMPTY_SET"},
    {0x90, "ADDITEMS"},    {0x91, "FROZENSET"},
    {0x92, "NEWOBJ_EX"},   {0x96, "BYTEARRAY8"},
    {0x97, "NEXT_BUFFER"}, {0x98, "READONLY_BUFFER"},
};

constexpr std::string_view kGetattr = "builtins.getattr";

std::string opcode_name(uint8_t opcode) {
  for (const auto& [known, name] : kRefused) {
    if (known == opcode) return name;
  }
  return absl::StrFormat("0x%02x", opcode);
}

}  // namespace

// Keeps the first error. Later steps then work on empty values, and their results are not used.
class Unpickler {
 public:
  Unpickler(std::string bytes, const std::string& where, const ReadLimits& limits) : where_(where), limits_(limits) {
    document_.bytes_ = std::make_unique<const std::string>(std::move(bytes));
    left_ = *document_.bytes_;
    document_.values_.emplace_back();
  }

  absl::StatusOr<ParsedPickle> run() {
    if (left_.size() > limits_.bytes)
      refuse(absl::StatusCode::kResourceExhausted, absl::StrCat("larger than ", limits_.bytes, " bytes"));
    while (status_.ok() && !stopped_) step(static_cast<uint8_t>(number(1)));
    if (!status_.ok()) return status_;
    return std::move(document_);
  }

 private:
  void refuse(absl::StatusCode code, const std::string& what) {
    if (!status_.ok()) return;
    status_ = absl::Status(
        code, absl::StrCat(where_, ": byte ", document_.bytes_->size() - left_.size(), " of the pickle: ", what));
  }
  void damaged(const std::string& what) { refuse(absl::StatusCode::kDataLoss, what); }

  std::string_view take(uint64_t size) {
    if (size > left_.size()) {
      damaged("it is cut short");
      left_ = {};
      return {};
    }
    const std::string_view part = left_.substr(0, size);
    left_.remove_prefix(size);
    return part;
  }
  uint64_t number(size_t size) {  // Little-endian.
    uint64_t value = 0;
    const std::string_view part = take(size);
    for (size_t i = part.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(part[i]);
    return value;
  }
  std::string_view line() {
    const size_t end = left_.find('\n');
    const std::string_view text = take(end == left_.npos ? left_.size() + 1 : end);
    take(1);
    return text;
  }

  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  // Pops a value that may be getattr, which only `reduce` and the memo accept.
  Id pop_callee() {
    if (stack_.size() <= floor()) {
      damaged("it pops from an empty stack");
      return 0;
    }
    const Id id = stack_.back();
    stack_.pop_back();
    return id;
  }
  Id pop() {
    const Id id = pop_callee();
    if (is_getattr(id)) foreign_name("builtins", "getattr");
    return id;
  }
  // Pops the values since the last mark, and the mark.
  std::vector<Id> pop_to_mark() {
    if (marks_.empty()) {
      damaged("a mark is missing");
      return {};
    }
    std::vector<Id> items(stack_.begin() + static_cast<ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    for (const Id id : items) {
      if (is_getattr(id)) foreign_name("builtins", "getattr");
    }
    return items;
  }
  // Returns the collection that receives items; it stays on the stack.
  PickleValue& top(Kind kind) {
    const Id id = pop();
    stack_.push_back(id);
    if (document_.values_[id].kind == kind) return document_.values_[id];
    damaged(absl::StrCat(name(kind), " is needed, ", name(document_.values_[id].kind), " is there"));
    return scratch_;
  }

  void push(PickleValue value) {
    if (document_.values_.size() >= limits_.values) {
      return refuse(absl::StatusCode::kResourceExhausted, absl::StrCat("more than ", limits_.values, " values"));
    }
    stack_.push_back(static_cast<Id>(document_.values_.size()));
    document_.values_.push_back(std::move(value));
  }
  void push(Kind kind, std::vector<Id> items) {
    PickleValue value;
    value.kind = kind;
    value.items = std::move(items);
    push(std::move(value));
  }
  void push_text(Kind kind, std::string_view text) {
    PickleValue value;
    value.kind = kind;
    value.text = text;
    push(std::move(value));
  }
  void push_integer(Kind kind, int64_t integer) {
    PickleValue value;
    value.kind = kind;
    value.integer = integer;
    push(std::move(value));
  }
  void push_tuple(size_t size) {
    std::vector<Id> items(size);
    for (size_t i = size; i-- > 0;) items[i] = pop();
    push(Kind::kTuple, std::move(items));
  }

  // Pushes an integer of up to 8 bytes, in two's complement.
  void push_long(size_t size) {
    if (size > 8) return refuse(absl::StatusCode::kFailedPrecondition, absl::StrCat("an integer of ", size, " bytes"));
    const uint64_t bits = number(size);
    const size_t unused = 64 - 8 * size;
    push_integer(Kind::kInt, size == 0 ? 0 : static_cast<int64_t>(bits << unused) >> unused);
  }
  void push_float() {
    PickleValue value;
    value.kind = Kind::kFloat;
    value.real = std::bit_cast<double>(__builtin_bswap64(number(8)));
    push(std::move(value));
  }

  bool is_getattr(Id id) const { return document_.at(id).kind == Kind::kClass && document_.at(id).text == kGetattr; }
  void foreign_name(std::string_view module, std::string_view name) {
    refuse(absl::StatusCode::kFailedPrecondition,
           absl::StrCat("it names ", std::string(module.substr(0, 128)), ".", std::string(name.substr(0, 128)),
                        ", which no checkpoint of model, optimizer and train state needs; nothing of it was run"));
  }
  void push_name(std::string_view module, std::string_view name) {
    // Protocol 2 writes the module's name in Python 2.
    if (name == "getattr" && (module == "builtins" || module == "__builtin__")) {
      return push_text(Kind::kClass, kGetattr);
    }
    const std::string_view known = known_name(module, name);
    if (known.empty() && status_.ok()) return foreign_name(module, name);
    push_text(Kind::kClass, known);
  }
  void stack_global() {
    const Id name = pop(), module = pop();
    if (document_.at(name).kind != Kind::kText || document_.at(module).kind != Kind::kText)
      return damaged("a name that is not a text");
    push_name(document_.at(module).text, document_.at(name).text);
  }

  // Debian 12's Python 3.11.2 pickles a member of an enum as getattr(CLASS, "NAME"). It becomes the object that other
  // versions write, CLASS(VALUE). Any other attribute is refused.
  void enum_member(Id arguments) {
    const std::vector<Id> items = document_.at(arguments).items;
    if (document_.at(arguments).kind != Kind::kTuple || items.size() != 2) return foreign_name("builtins", "getattr");
    const PickleValue& of = document_.at(items[0]);
    const PickleValue& member = document_.at(items[1]);
    const std::optional<int64_t> value =
        of.kind == Kind::kClass && member.kind == Kind::kText ? known_enum_value(of.text, member.text) : std::nullopt;
    if (!value.has_value()) return foreign_name("builtins", "getattr");
    push_integer(Kind::kInt, *value);
    push_tuple(1);
    if (status_.ok()) push(Kind::kObject, {items[0], pop()});
  }

  // Makes an object: a class or function, and its arguments.
  void reduce() {
    const Id arguments = pop(), callee = pop_callee();
    if (is_getattr(callee)) return enum_member(arguments);
    if (document_.at(callee).kind != Kind::kClass)
      return damaged(absl::StrCat("it calls ", name(document_.at(callee).kind)));
    if (document_.at(arguments).kind != Kind::kTuple) return damaged("arguments that are not a tuple");
    // An empty dict, to which entries are added later.
    if (document_.at(callee).text == "collections.OrderedDict") return push(Kind::kDict, {});
    push(Kind::kObject, {callee, arguments});
  }
  void build() {
    const Id state = pop();
    // Ignores attributes of a dict subclass, such as a module's state_dict().
    if (stack_.size() > floor() && document_.at(stack_.back()).kind == Kind::kDict) return;
    PickleValue& object = top(Kind::kObject);
    if (object.items.size() != 2) return damaged("an object gets its state twice");
    object.items.push_back(state);
  }

  void add(Kind kind, const std::vector<Id>& items) {
    PickleValue& target = top(kind);
    if (kind == Kind::kDict && items.size() % 2 != 0) return damaged("a key without a value");
    target.items.insert(target.items.end(), items.begin(), items.end());
  }

  void get(uint64_t index) {
    if (index >= memo_.size())
      return damaged(absl::StrCat("it refers to number ", index, " of ", memo_.size(), " values"));
    stack_.push_back(memo_[index]);
  }
  // Python numbers entries without gaps.
  void put(uint64_t index) {
    const Id id = pop_callee();
    stack_.push_back(id);
    if (index > memo_.size())
      return damaged(absl::StrCat("it keeps number ", index, " after ", memo_.size(), " values"));
    if (index == memo_.size()) memo_.emplace_back();
    memo_[index] = id;
  }

  void mark() {
    if (marks_.size() >= limits_.depth) {
      return refuse(absl::StatusCode::kResourceExhausted, absl::StrCat("nested deeper than ", limits_.depth));
    }
    marks_.push_back(stack_.size());
  }
  void stop() {
    document_.root_ = pop();
    if (!stack_.empty() || !marks_.empty()) damaged("it ends with more than one value");
    stopped_ = true;
  }

  void step(uint8_t opcode) {
    if (!status_.ok()) return;
    switch (opcode) {
      case kProtocol:
        if (const uint64_t version = number(1); version < 2 || version > 5)
          refuse(absl::StatusCode::kFailedPrecondition, absl::StrCat("pickle protocol ", version, "; 2 to 5 are read"));
        return;
      case kFrame:
        return void(number(8));  // Frames only help readers that read in parts.
      case kStop:
        return stop();
      case kMark:
        return mark();
      default:
        return step_value(opcode);
    }
  }

  void step_value(uint8_t opcode) {
    switch (opcode) {
      case kNone:
        return push({});
      case kTrue:
      case kFalse:
        return push_integer(Kind::kBool, opcode == kTrue);
      case kInt1:
      case kInt2:
        return push_integer(Kind::kInt, static_cast<int64_t>(number(opcode == kInt1 ? 1 : 2)));
      case kInt4:
        return push_long(4);
      case kLong1:
        return push_long(number(1));
      case kFloat:
        return push_float();
      case kUnicode1:
        return push_text(Kind::kText, take(number(1)));
      case kUnicode4:
        return push_text(Kind::kText, take(number(4)));
      case kUnicode8:
        return push_text(Kind::kText, take(number(8)));
      case kBytes1:
        return push_text(Kind::kBytes, take(number(1)));
      case kBytes4:
        return push_text(Kind::kBytes, take(number(4)));
      case kBytes8:
        return push_text(Kind::kBytes, take(number(8)));
      default:
        return step_collection(opcode);
    }
  }

  void step_collection(uint8_t opcode) {
    switch (opcode) {
      case kEmptyTuple:
        return push_tuple(0);
      case kTuple1:
      case kTuple2:
      case kTuple3:
        return push_tuple(size_t{opcode} - kTuple1 + 1);
      case kTuple:
        return push(Kind::kTuple, pop_to_mark());
      case kEmptyList:
        return push(Kind::kList, {});
      case kEmptyDict:
        return push(Kind::kDict, {});
      case kAppend:
        return add(Kind::kList, {pop()});
      case kAppends:
        return add(Kind::kList, pop_to_mark());
      case kSetItem: {
        const Id value = pop(), key = pop();
        return add(Kind::kDict, {key, value});
      }
      case kSetItems:
        return add(Kind::kDict, pop_to_mark());
      default:
        return step_object(opcode);
    }
  }

  void step_object(uint8_t opcode) {
    switch (opcode) {
      case kGlobal: {
        const std::string_view module = line();
        return push_name(module, line());
      }
      case kStackGlobal:
        return stack_global();
      case kReduce:
      case kNewObject:
        return reduce();
      case kBuild:
        return build();
      case kPersistentId:
        return push(Kind::kPersistent, {pop()});
      case kGet1:
      case kGet4:
        return get(number(opcode == kGet1 ? 1 : 4));
      case kPut1:
      case kPut4:
        return put(number(opcode == kPut1 ? 1 : 4));
      case kMemoize:
        return put(memo_.size());
      default:
        refuse(absl::StatusCode::kFailedPrecondition,
               absl::StrCat("opcode ", opcode_name(opcode), ", which checkpoints do not contain"));
    }
  }

  const std::string& where_;
  const ReadLimits& limits_;
  ParsedPickle document_;
  std::string_view left_;
  std::vector<Id> stack_, memo_;
  std::vector<size_t> marks_;  // Sizes of the stack at the marks.
  PickleValue scratch_;        // Receives writes when the expected collection is missing.
  absl::Status status_;
  bool stopped_ = false;
};

absl::StatusOr<ParsedPickle> read(std::string bytes, const std::string& where, const ReadLimits& limits) {
  return Unpickler(std::move(bytes), where, limits).run();
}

}  // namespace titan::pickle

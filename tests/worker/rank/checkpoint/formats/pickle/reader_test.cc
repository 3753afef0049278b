// Tests that a pickle is read as data: its calls never run, and everything unknown is refused by name.

#include "worker/rank/checkpoint/formats/pickle/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "worker/rank/checkpoint/formats/pickle/archive_writer.h"
#include "worker/rank/checkpoint/formats/pickle/plain.h"

namespace titan::pickle {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::Not;

std::string outcome(const std::string& pickle, const ReadLimits& limits = {}) {
  const auto document = read(pickle, "x.pkl", limits);
  return document.ok() ? "read" : std::string(document.status().message());
}

std::string refusal(const std::string& pickle) {
  const auto document = read(pickle, "x.pkl");
  return document.status().code() == absl::StatusCode::kFailedPrecondition ? std::string(document.status().message())
                                                                           : "no refusal";
}

// Tries os.system("id") in protocols 0 to 4, and opcodes that would bypass a check of only GLOBAL.
TEST(PickleReaderTest, RefusesForeignNamesAndOpcodes) {
  EXPECT_THAT(refusal("\x80\x02"
                      "cposix\nsystem\n(X\x02\0\0\0idtR."),
              AllOf(HasSubstr("x.pkl: byte 16"), HasSubstr("posix.system")));
  EXPECT_THAT(refusal(std::string("\x80\x04\x8c\x05posix\x8c\x06system\x93", 18)), HasSubstr("posix.system"));
  EXPECT_THAT(refusal(std::string("\x80\x02"
                                  "c__builtin__\neval\n")),
              HasSubstr("__builtin__.eval"));
  EXPECT_THAT(refusal(std::string("\x80\x02"
                                  "cbuiltins\ngetattr\n.")),
              HasSubstr("builtins.getattr"));
  EXPECT_THAT(refusal(std::string("\x80\x02"
                                  "ctorch\nload\n")),
              HasSubstr("torch.load"));
  EXPECT_THAT(refusal("\x80\x02(S'id'\niposix\nsystem\n."), HasSubstr("opcode STRING"));
  EXPECT_THAT(refusal("\x80\x02(iposix\nsystem\n."), HasSubstr("opcode INST"));
  EXPECT_THAT(refusal("\x80\x02\x82\x01."), HasSubstr("opcode EXT1"));
  EXPECT_THAT(refusal("\x80\x02(o."), HasSubstr("opcode OBJ"));
  EXPECT_THAT(refusal(std::string("\x80\x01N.", 4)), HasSubstr("protocol 1"));
  EXPECT_THAT(refusal(std::string("\x80\x02\x8a\x09"
                                  "123456789.",
                                  14)),
              HasSubstr("integer of 9 bytes"));
}

std::string pickled_in(char protocol, const std::string& body) { return std::string("\x80") + protocol + body + "."; }

// Most versions of Python write a member of an enum as CLASS(VALUE); 3.11.2, which is Debian 12's, writes
// getattr(CLASS, "NAME"). Both are the same object, under Python 2's name of the module (protocol 2) as well.
TEST(PickleReaderTest, ReadsEnumMembersInBothForms) {
  const std::string metadata = "ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n";
  const std::string sharded = "ctorch.distributed._shard.sharded_tensor.metadata\nMEM_FORMAT_ENCODING\n";
  const std::string preserve = std::string("\x8c\x15", 2) + "TORCH_PRESERVE_FORMAT";
  const std::string by_value = pickled_in(4, metadata + "K\x02\x85R");
  const std::string by_name[] = {
      pickled_in(4, "cbuiltins\ngetattr\n" + metadata + preserve + "\x86R"),
      pickled_in(2, "c__builtin__\ngetattr\n" + metadata + preserve + "\x86R"),
      pickled_in(4,
                 "\x8c\x08"
                 "builtins"
                 "\x8c\x07"
                 "getattr"
                 "\x93" +
                     metadata + preserve + "\x86R"),
      pickled_in(2, "cbuiltins\ngetattr\nq" + std::string(1, '\0') + sharded + preserve + "\x86R"),
  };
  const auto expected = read(by_value, "x.pkl");
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const std::string& pickle : by_name) {
    const auto document = read(pickle, "x.pkl");
    ASSERT_TRUE(document.ok()) << document.status();
    EXPECT_EQ(document->root().kind, PickleValue::Kind::kObject);
    EXPECT_THAT(std::string(document->class_of(document->root())), HasSubstr("MEM_FORMAT_ENCODING"));
    const PickleValue& arguments = document->at(document->root().items[1]);
    ASSERT_EQ(arguments.items.size(), 1u);
    EXPECT_EQ(document->at(arguments.items[0]).integer, 2);
  }
}

// getattr reaches everything in Python, so only a known member of a known enum may follow it, and it may appear nowhere
// else.
TEST(PickleReaderTest, RefusesEveryOtherUseOfGetattr) {
  const std::string getattr = "cbuiltins\ngetattr\n";
  const std::string known = "ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n";
  const std::string member = std::string("\x8c\x15", 2) + "TORCH_PRESERVE_FORMAT";
  for (const std::string& body : {
           getattr,              // The name itself.
           "]" + getattr + "a",  // In a list, a tuple, a dict, as a key.
           "(" + getattr + "t",
           "}K\x01" + getattr + "s",
           "}" + getattr + "K\x01s",
           "](" + getattr + "e",
           getattr + "q" + std::string(1, '\0') + "0",                     // Stored, then dropped.
           getattr + known + std::string("\x8c\x07", 2) + "__doc__\x86R",  // Not a member.
           getattr + "ctorch\nSize\n" + member + "\x86R",                  // Not an enum.
           getattr + known + "\x85R",  // Too few and too many arguments, or other ones.
           getattr + known + member + "N\x87R",
           getattr + known + "]\x86R",
           getattr + known + "R",
           getattr + "]" + member + "\x86R",
           getattr + getattr + member + "\x86R",
           getattr + known + getattr + "\x86R",
           getattr + known + member + "\x86Rb",  // BUILD without an object below it.
           getattr + "N\x81",                    // A class of NEWOBJ.
           getattr + "Q",                        // A persistent name.
       }) {
    EXPECT_THAT(outcome(pickled_in(4, body)), Not(Eq("read"))) << testing::PrintToString(body);
  }
  EXPECT_THAT(refusal(pickled_in(4, getattr + "ctorch\nSize\n" + member + "\x86R")), HasSubstr("builtins.getattr"));
  EXPECT_THAT(refusal(pickled_in(4, "]" + getattr + "a")), HasSubstr("builtins.getattr"));
}

TEST(PickleReaderTest, ErrorsNameThePositionOfDamage) {
  EXPECT_THAT(outcome(""), HasSubstr("x.pkl: byte 0 of the pickle: it is cut short"));
  EXPECT_THAT(outcome("\x80\x02N"), HasSubstr("byte 3"));
  EXPECT_THAT(outcome("\x80\x02."), HasSubstr("empty stack"));
  EXPECT_THAT(outcome("\x80\x02NN."), HasSubstr("more than one value"));
  EXPECT_THAT(outcome("\x80\x02t."), HasSubstr("a mark is missing"));
  EXPECT_THAT(outcome("\x80\x02Na."), HasSubstr("empty stack"));
  EXPECT_THAT(outcome("\x80\x02NNa."), HasSubstr("a list is needed, None is there"));
  EXPECT_THAT(outcome("\x80\x02}(Nu."), HasSubstr("a key without a value"));
  EXPECT_THAT(outcome("\x80\x02Nh\x05."), HasSubstr("refers to number 5 of 0"));
  EXPECT_THAT(outcome("\x80\x02Nq\x05."), HasSubstr("keeps number 5 after 0"));
  EXPECT_THAT(outcome("\x80\x02N)R."), HasSubstr("it calls None"));
  EXPECT_THAT(outcome(std::string("\x80\x02X\xff\xff\xff\xff"
                                  "a.",
                                  9)),
              HasSubstr("it is cut short"));
}

TEST(PickleReaderTest, EnforcesItsLimits) {
  EXPECT_THAT(outcome("\x80\x02" + std::string(65, '(')), HasSubstr("nested deeper than 64"));
  EXPECT_THAT(outcome("\x80\x02" + std::string(101, 'N'), {.values = 100}), HasSubstr("more than 100 values"));
  EXPECT_THAT(outcome("\x80\x02N.", {.bytes = 3}), HasSubstr("larger than 3 bytes"));
}

// A list that contains itself, and one that would expand to millions of copies, are both read, and refused as plain
// objects.
TEST(PickleReaderTest, SharedValuesAreNotExpanded) {
  const auto ring = read(std::string("\x80\x02]q\x00h\x00"
                                     "a.",
                                     9),
                         "x.pkl");
  ASSERT_TRUE(ring.ok()) << ring.status();
  EXPECT_EQ(plain(*ring, "x").status().code(), absl::StatusCode::kResourceExhausted);
  std::string laughs("\x80\x02(]q\x00", 6);  // Each pair holds the one before twice.
  for (char i = 0; i < 24; ++i) laughs += {'h', i, 'h', i, '\x86', 'q', static_cast<char>(i + 1)};
  const auto pairs = read(laughs + "t.", "x.pkl");
  ASSERT_TRUE(pairs.ok()) << pairs.status();
  EXPECT_LT(pairs->size(), 30u);
  EXPECT_EQ(plain(*pairs, "x").status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(PickleReaderTest, ReadsBackWrittenValues) {
  const json value = {{"none", nullptr},
                      {"yes", true},
                      {"small", 7},
                      {"negative", -3},
                      {"large", int64_t{1} << 40},
                      {"real", 0.1},
                      {"text", "é"},
                      {"list", {1, 2.5, "x"}},
                      {"bytes", json::binary({0, 200, 10})},
                      {"empty", json::object()}};
  const auto document = read(Writer().plain(value).finish(), "x.pkl");
  ASSERT_TRUE(document.ok()) << document.status();
  EXPECT_EQ(plain(*document, "x").value(), value);
}

// The writer refers to repeated texts, names and memoized lists by number; 300 texts need numbers of both widths.
TEST(PickleReaderTest, ReadsBackRepeatedValues) {
  Writer writer(2);
  writer.empty_list();
  json expected = json::array();
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 300; ++i) {
      const std::string text = "a text that is long enough, number " + std::to_string(i);
      writer.text(text).append();
      expected.push_back(text);
    }
  }
  writer.empty_list().mark().integer(1).text("two").appends();
  const uint32_t number = writer.memoize();
  writer.append().get_memo(number).append();
  for (int i = 0; i < 2; ++i) expected.push_back({1, "two"});
  const std::string pickle = writer.finish();
  EXPECT_LT(pickle.size(), size_t{300 * 60});
  const auto document = read(pickle, "x.pkl");
  ASSERT_TRUE(document.ok()) << document.status();
  EXPECT_EQ(plain(*document, "x").value(), expected);
}

// In protocol 2, Python 3 writes bytes as a call that encodes Latin-1 text.
TEST(PickleReaderTest, BytesAsLatin1Text) {
  Writer writer(2);
  writer.name("_codecs", "encode").mark().text("a\xc3\xbf").text("latin1").tuple().reduce();
  const auto document = read(writer.finish(), "x.pkl");
  ASSERT_TRUE(document.ok());
  EXPECT_EQ(bytes_of(plain(*document, "x").value()), "a\xff");
}

// Changed bytes, cut ends and repeated parts never crash the reader, and every error names a position.
TEST(PickleReaderTest, SurvivesMutations) {
  Writer writer;
  writer.object("torch.distributed.checkpoint.metadata", "Metadata").empty_dict().mark().text("a");
  torch_size(writer, {3, 1 << 20}).text("b").plain({1, "two", 3.0, nullptr, json::binary({1, 2})}).text("c");
  tensor(writer, "float32", {2, 2}, "0").set_items().build();
  const std::string good = writer.finish();
  ASSERT_EQ(outcome(good), "read");
  std::mt19937 random(7);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string bad = good;
    const size_t at = random() % bad.size();
    if (i % 3 == 0) bad[at] = static_cast<char>(random());
    if (i % 3 == 1) bad.resize(at);
    if (i % 3 == 2) bad.insert(at, bad.substr(random() % bad.size(), random() % 16));
    const auto document = read(bad, "x.pkl");
    if (document.ok()) {
      (void)plain(*document, "x");
      continue;
    }
    ++refused;
    EXPECT_THAT(std::string(document.status().message()), HasSubstr("x.pkl: byte "));
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace titan::pickle

// Written by tools/unicode_changes.py. The characters of properties, which the package
// `tokenizers` has in addition to those of Unicode 14; with the prefix -, those that it
// lacks. The last three rows belong to the pre-tokenizers Punctuation and Digits.
#include "io/tokenizer/unicode_changes.h"

namespace haliax {

std::span<const UnicodeChange> unicode_changes() {
  static constexpr UnicodeChange changes[] = {
      {"alphabetic",
       "363-36f 897 c04 cf3 f82-f83 1c89-1c8a 1dd3-1de6 a7cb-a7cd a7da-a7dc 105c0-105f3 "
       "10d4a-10d65 10d69 10d6f-10d85 10ec2-10ec4 10efc 11080-11081 1123f-11241 "
       "11380-11389 1138b 1138e 11390-113b5 113b7-113c0 113c2 113c5 113c7-113ca "
       "113cc-113cd 113d1 113d3 11bc0-11be0 11f00-11f10 11f12-11f3a 11f3e-11f40 1342f "
       "13441-13446 13460-143fa 16100-1612e 16d40-16d6c 18cff 1b132 1b155 1df25-1df2a "
       "1e030-1e06d 1e08f 1e4d0-1e4eb 1e5d0-1e5ed 1e5f0 2b739 2ebf0-2ee5d 31350-323af"},
      {"arabic", "897 10ec2-10ec4 10efc-10eff"},
      {"balinese", "1b4e-1b4f 1b7f"},
      {"cf", "13439-1343f"},
      {"common",
       "2427-2429 2ffc-2fff 31e4-31e5 31ef 1cc00-1ccf9 1cd00-1ceb3 1d2c0-1d2d3 1f6dc "
       "1f774-1f776 1f77b-1f77f 1f7d9 1f8b2-1f8bb 1f8c0-1f8c1 1fa75-1fa77 1fa87-1fa89 "
       "1fa8f 1faad-1faaf 1fabb-1fabf 1fac6 1face-1facf 1fada-1fadc 1fadf 1fae8-1fae9 "
       "1faf7-1faf8 1fbcb-1fbef"},
      {"cyrillic", "1c89-1c8a 1e030-1e06d 1e08f"},
      {"devanagari", "11b00-11b09"},
      {"egyptianhieroglyphs", "1342f 13439-13455 13460-143fa"},
      {"emoji",
       "1f6dc 1fa75-1fa77 1fa87-1fa89 1fa8f 1faad-1faaf 1fabb-1fabf 1fac6 1face-1facf "
       "1fada-1fadc 1fadf 1fae8-1fae9 1faf7-1faf8"},
      {"emojipresentation",
       "1f6dc 1fa75-1fa77 1fa87-1fa89 1fa8f 1faad-1faaf 1fabb-1fabf 1fac6 1face-1facf "
       "1fada-1fadc 1fadf 1fae8-1fae9 1faf7-1faf8"},
      {"garay", "10d40-10d65 10d69-10d85 10d8e-10d8f"},
      {"gurungkhema", "16100-16139"},
      {"han", "2b739 2ebf0-2ee5d 31350-323af"},
      {"hiragana", "1b132"},
      {"kannada", "cf3"},
      {"katakana", "1b155"},
      {"kawi", "11f00-11f10 11f12-11f3a 11f3e-11f5a"},
      {"khitansmallscript", "18cff"},
      {"khojki", "1123f-11241"},
      {"kiratrai", "16d40-16d79"},
      {"lao", "ece"},
      {"latin", "a7cb-a7cd a7da-a7dc 1df25-1df2a"},
      {"ll", "1c8a a7cd a7db 10d70-10d85 1df25-1df2a"},
      {"lm", "10d4e 10d6f 16d40-16d42 16d6b-16d6c 1e030-1e06d 1e4eb"},
      {"lo",
       "105c0-105f3 10d4a-10d4d 10d4f 10ec2-10ec4 1123f-11240 11380-11389 1138b 1138e "
       "11390-113b5 113b7 113d1 113d3 11bc0-11be0 11f02 11f04-11f10 11f12-11f33 1342f "
       "13441-13446 13460-143fa 16100-1611d 16d43-16d6a 18cff 1b132 1b155 1e4d0-1e4ea "
       "1e5d0-1e5ed 1e5f0 2b739 2ebf0-2ee5d 31350-323af"},
      {"lowercase", "10fc 1c8a a7cd a7db a7f2-a7f4 ab69 10d70-10d85 1df25-1df2a 1e030-1e06d"},
      {"lu", "1c89 a7cb-a7cc a7da a7dc 10d50-10d65"},
      {"mc",
       "cf3 113b8-113ba 113c2 113c5 113c7-113ca 113cc-113cd 113cf 1171e 11f03 "
       "11f34-11f35 11f3e-11f3f 11f41 1612a-1612c"},
      {"mn",
       "897 ece 10d69-10d6d 10efc-10eff 11241 113bb-113c0 113ce 113d0 113d2 113e1-113e2 "
       "11f00-11f01 11f36-11f3a 11f40 11f42 11f5a 13440 13447-13455 1611e-16129 "
       "1612d-1612f 1e08f 1e4ec-1e4ef 1e5ee-1e5ef"},
      {"-mn", "1171e"},
      {"myanmar", "116d0-116e3"},
      {"nagmundari", "1e4d0-1e4f9"},
      {"nd",
       "10d40-10d49 116d0-116e3 11bf0-11bf9 11f50-11f59 16130-16139 16d70-16d79 "
       "1ccf0-1ccf9 1e4f0-1e4f9 1e5f1-1e5fa"},
      {"no", "1d2c0-1d2d3"},
      {"olonal", "1e5d0-1e5fa 1e5ff"},
      {"pd", "10d6e"},
      {"po",
       "1b4e-1b4f 1b7f 113d4-113d5 113d7-113d8 11b00-11b09 11be1 11f43-11f4f 16d6d-16d6f "
       "1e5ff"},
      {"sm", "10d8e-10d8f"},
      {"so",
       "2427-2429 2ffc-2fff 31e4-31e5 31ef 1cc00-1ccef 1cd00-1ceb3 1f6dc 1f774-1f776 "
       "1f77b-1f77f 1f7d9 1f8b2-1f8bb 1f8c0-1f8c1 1fa75-1fa77 1fa87-1fa89 1fa8f "
       "1faad-1faaf 1fabb-1fabf 1fac6 1face-1facf 1fada-1fadc 1fadf 1fae8-1fae9 "
       "1faf7-1faf8 1fbcb-1fbef"},
      {"sunuwar", "11bc0-11be1 11bf0-11bf9"},
      {"todhri", "105c0-105f3"},
      {"tulutigalari",
       "11380-11389 1138b 1138e 11390-113b5 113b7-113c0 113c2 113c5 113c7-113ca "
       "113cc-113d5 113d7-113d8 113e1-113e2"},
      {"uppercase", "1c89 a7cb-a7cc a7da a7dc 10d50-10d65"},
      {"punctuation", "166d 111c9"},
      {"-punctuation",
       "61d 9fd a76 c77 c84 1b4e-1b4f 1b7d-1b7f 2e43-2e4f 2e52-2e5d 10d6e 10ead "
       "10f55-10f59 10f86-10f89 113d4-113d5 113d7-113d8 1144b-1144f 1145a-1145b 1145d "
       "11660-1166c 116b9 1183b 11944-11946 119e2 11a3f-11a46 11a9a-11a9c 11a9e-11aa2 "
       "11b00-11b09 11be1 11c41-11c45 11c70-11c71 11ef7-11ef8 11f43-11f4f 11fff "
       "12ff1-12ff2 16d6d-16d6f 16e97-16e9a 16fe2 1e5ff 1e95e-1e95f"},
      {"digits", "11de0-11de9 16ff4-16ff6"},
  };
  return changes;
}

}  // namespace haliax
